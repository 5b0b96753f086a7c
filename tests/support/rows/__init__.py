"""A second, slow decoder of row events, against which the fast one is tested.

It is plain Python, a value at a time, written from the servers' descriptions of the protocol; it shares nothing with
``cdc.decode`` but the parsed table maps. :func:`decode_rows` gives each change as the Python objects that
``cdc.decode``'s record batches give with ``to_pylist()``.
"""

from tests.support.rows.events import ABSENT, RowChange, decode_rows

__all__ = ["ABSENT", "RowChange", "decode_rows"]
