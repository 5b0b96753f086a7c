"""Verification: whether the Delta tables hold exactly what the source holds, and whether the history is whole.

``run`` checks the tables of a destination, ``history`` the GTIDs and the store, ``source`` reads checksums and rows
from the server in a consistent snapshot, ``columns`` has the canonical text of each type, ``buckets`` the parts of a
table that are compared as sums, ``compare`` finds differing keys, ``ledger`` checks the commits, ``report`` has the
result. Imported by ``cdc.lake.pipeline``, ``cdc.cli`` and ``cdc.lake.verify.lake``, which computes the lake's side and
which this package does not import. Promises that nothing is written, neither to the source nor to the lake, and that a
table counts as proved only if every row was compared, in all columns that the configuration asks for.
"""
