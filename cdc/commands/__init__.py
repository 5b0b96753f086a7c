"""The commands of ``cdc``, one module each, with ``register(app)``.

Only :mod:`cdc.cli` imports them. They parse options, call the stages, and print; no rule of the product lives
here. Everything heavy is imported inside functions, so that ``cdc --help`` answers at once.
"""
