"""Decodes row images into Arrow columns, by compiled kernels.

Imported by the Spark jobs and the command line; imports ``binlog`` and what lies below it, and the store's index and
staged segments, and nothing of MySQL's network side, Airflow or Spark. It promises that a value arrives as SELECT shows
it or not at all: a value that cannot be decoded raises an error with file, position, table and column, and no byte
outside an event is read.

The path of :func:`decode_range`, from a byte range to record batches:

1. ``reader.py`` takes the call and selects transactions;
2. ``transactions.py`` opens and maps the segment and reads its index entries;
3. ``scan.py`` finds the table's row events, by the loops in ``kernels/scan.py``;
4. ``layout.py`` makes the layout of each new table map, from ``columns.py`` (the source's types) and
   ``column_types.py`` (the Arrow types and conversions);
5. ``reader.py`` has the rows found and measured by ``kernels/rows.py``, allocates the Arrow buffers, and has the values
   written into them by ``kernels/fill.py``;
6. the conversions of ``conversions/``, ``charsets/`` and ``binary_json/`` finish the columns whose bytes the kernels
   only copy.

``faults.py`` turns the kernels' codes into errors. ``policies.py`` applies a user's column policies (drop, hash, mask,
rename) to decoded batches, in the executors, and ``jsonl.py`` prints batches.
"""

from cdc.decode.column_types import ValuePolicies
from cdc.decode.layout import TableLayout, layouts, list_tables
from cdc.decode.reader import DecodeOptions, DecodeStats, decode_range, read

__all__ = [
    "DecodeOptions",
    "DecodeStats",
    "TableLayout",
    "ValuePolicies",
    "decode_range",
    "layouts",
    "list_tables",
    "read",
]
