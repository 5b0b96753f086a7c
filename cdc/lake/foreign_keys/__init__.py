"""Foreign keys whose actions change rows without row events.

:mod:`.actions` executes actions on rows, :mod:`.events` reads the row events that they need, and :mod:`.row_history`
finds the changes of one row. :mod:`cdc.source.foreign_keys` says which keys can be followed and how the server compares
values. Apply knows the rows of the lake as well: see ``cdc.lake.apply.foreign_keys``. Needs no Spark.
"""
