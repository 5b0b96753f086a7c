"""The commands of ``cdc``, a module for each, with ``register(app)``.

Only :mod:`cdc.cli.main` imports them. They parse options, call the stages and print; the rules of the product are in
the other packages. Heavy modules (numba, pyarrow, the drivers) are imported inside functions, so that ``cdc --help``
answers at once.
"""
