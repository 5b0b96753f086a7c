"""Row images into Arrow columns, by compiled kernels.

Imported by the Spark jobs and the command line; imports ``binlog`` and the store's index, nothing of MySQL's
network side, Airflow or Spark. It promises that a value arrives as SELECT shows it or not at all: what cannot be
decoded is an error with file, position, table and column, never a wrong value, and no byte outside an event is read.

``scan_kernels``, ``row_kernels``, ``fill_kernels`` and ``value_kernels`` hold the compiled loops, ``constants``
the numbers they agree on.
"""

from cdc.decode.layout import TableLayout
from cdc.decode.reader import DecodeStats, decode_range, layouts, read

__all__ = ["DecodeStats", "TableLayout", "decode_range", "layouts", "read"]
