"""A second opinion about decoded rows: the independent library mysql-replication decodes a sample of the stored
transactions once more, and every value is compared with ours.

:mod:`.sample` chooses the transactions; :mod:`.library` feeds the library from bytes, without a server; :mod:`.rows`
compares the rows of both decoders; :mod:`.values` compares two values, and lists the types and values that the library
is known to read wrongly; :mod:`.report` has the result. No Spark is needed: the process that reaches the store does it.
Used by ``cdc verify``, its DAG, and ``cdc decode``.
"""

ROWS = 10_000
"""Rows of a sample, if no other number is asked for."""
