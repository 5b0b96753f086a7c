"""The commands of ``cdc``, a module for each, with a function or a group of commands that is called like it.

Only :mod:`cdc.cli.main` imports them. They parse options, call the stages and print; the rules of the product are in
the other packages. ``cdc COMMAND`` imports the module of that command alone, and ``cdc --help`` imports none.
"""
