"""Foreign keys whose actions change rows without row events.

:mod:`.rules` says which keys can be followed and how the server compares values, :mod:`.actions` executes actions on
rows, :mod:`.events` reads the row events that they need, and :mod:`.row_history` finds the changes of one row. Apply
knows the rows of the lake as well: see ``cdc.lake.apply.foreign_keys``.
"""
