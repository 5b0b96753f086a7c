"""Row images into Arrow columns, by compiled kernels.

Imported by the Spark jobs and the command line; imports ``binlog`` and the store's index, nothing of MySQL's
network side, Airflow or Spark. It promises that a value arrives as SELECT shows it or not at all: what cannot be
decoded is an error with file, position, table and column, never a wrong value, and no byte outside an event is read.

The way of the data: ``transactions`` opens files, ``events`` finds a table's events (``kernels.scan``), ``table_maps``,
``columns``, ``plans`` and ``layout`` say what its columns are and become, ``decoder`` has their rows found and written
(``kernels.rows``, ``kernels.fill``, ``buffers``), and the conversions of ``charsets``, ``binary_json`` and ``values``
finish what the kernels only copy. ``reader`` is what others call.
What a user wants otherwise of columns (dropped, hashed, renamed) is done by ``policies``, in the executors.
"""

from cdc.decode.decoder import DecodeStats
from cdc.decode.layout import TableLayout
from cdc.decode.plans import ValuePolicies
from cdc.decode.reader import decode_range, read
from cdc.decode.table_maps import layouts
from cdc.decode.tables import list_tables

__all__ = ["DecodeStats", "TableLayout", "ValuePolicies", "decode_range", "layouts", "list_tables", "read"]
