"""Unpacks MariaDB's compressed row events (``log_bin_compress``), which a store holds as received.

Such an event is a row event of which only the rows are compressed: a byte ``0x80 | size of the length``, the rows'
length (big-endian), and a zlib stream.
Source: MariaDB's ``Rows_log_event::write_compressed`` and ``binlog_buf_compress``.
"""

from __future__ import annotations

import zlib
from dataclasses import replace

import numpy as np

from cdc.binlog.constants import EventType
from cdc.decode.faults import row_fault
from cdc.decode.kernels import constants as k
from cdc.decode.kernels.scan import copy_plain_parts, locate_packed_rows
from cdc.decode.row_events import RowEvents
from cdc.decode.transactions import Transactions

_UNPACKED_TYPE = np.arange(256)
_UNPACKED_TYPE[EventType.MARIADB_WRITE_ROWS_COMPRESSED_V1 : EventType.MARIADB_DELETE_ROWS_COMPRESSED_V1 + 1] = range(
    EventType.WRITE_ROWS_V1, EventType.DELETE_ROWS_V1 + 1
)
_UNPACKED_TYPE[EventType.MARIADB_WRITE_ROWS_COMPRESSED : EventType.MARIADB_DELETE_ROWS_COMPRESSED + 1] = range(
    EventType.WRITE_ROWS, EventType.DELETE_ROWS + 1
)


def unpacked_events(run: RowEvents, transactions: Transactions) -> RowEvents:
    """The row events with the compressed ones among them unpacked, all in a buffer of their own, with zeros for their
    checksums; ``run`` itself if none is compressed. Raises DamagedError.

    A server leaves events with few bytes as they are, so both kinds alternate, and must not part a run.
    """
    packed = np.flatnonzero(_UNPACKED_TYPE[run.type] != run.type)
    if not len(packed):
        return run
    events = run.for_kernels(transactions.tail)
    packed_at, sizes = np.zeros(len(run), dtype=np.int64), np.zeros(len(run), dtype=np.int64)
    bad = locate_packed_rows(events, packed_at, sizes)
    if bad >= 0:
        raise row_fault(k.BAD_HEADER, transactions.path, None, int(run.origin[bad]), run.layout, -1)
    begin = np.zeros(len(run) + 1, dtype=np.int64)
    np.cumsum(packed_at - run.offset + sizes + transactions.tail, out=begin[1:])
    buf = np.zeros(int(begin[-1]), dtype=np.uint8)
    copy_plain_parts(events, packed_at, buf, begin)
    source, target = memoryview(run.buf), memoryview(buf)  # type: ignore[arg-type]
    stops = run.offset + run.length - transactions.tail
    places = (array[packed].tolist() for array in (packed_at, stops, sizes, begin[1:] - sizes - transactions.tail))
    for number, at, stop, size, rows_at in zip(packed.tolist(), *places, strict=True):
        try:
            target[rows_at : rows_at + size] = _inflated(source[at + 1 + (source[at] & 7) : stop], size)
        except (zlib.error, ValueError) as error:
            why = f"its compressed rows cannot be unpacked ({error})"
            origin = int(run.origin[number])
            raise row_fault(k.BAD_HEADER, transactions.path, None, origin, run.layout, -1, why) from None
    return replace(run, buf=buf, offset=begin[:-1].copy(), length=np.diff(begin), type=_UNPACKED_TYPE[run.type])


def _inflated(packed: memoryview, size: int) -> bytes:
    """Unpacks a stream that is said to hold ``size`` bytes. A damaged one must not unfold into more memory than it
    claims. Raises zlib.error, ValueError."""
    stream = zlib.decompressobj()
    rows = stream.decompress(packed, size + 1)
    if len(rows) != size:
        raise ValueError(f"it says that it has {size} bytes, and has {'more' if len(rows) > size else len(rows)}")
    if not stream.eof or stream.unused_data:
        raise ValueError("its stream is cut" if not stream.eof else "bytes follow its stream")
    return rows
