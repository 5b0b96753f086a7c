"""The compiled walk that counts row events by table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.jit import njit
from cdc.decode.kernels.constants import BAD_FRAME, FULL, OK
from cdc.decode.kernels.scan import event_length, holds_rows, recall, remember, same_bytes, u48

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@njit
def count_row_events(
    buf: Bytes, tx_begin: Longs, tx_end: Longs, tail: int, tables: Longs, slots: Longs, ids: Longs
) -> tuple[int, int, int]:
    """Find the tables that have a table map inside the transactions, and count their row events.

    ``tables`` (n, 3): where the names begin (length, database, NUL, length, table, NUL), their size, row events.
    ``slots`` (a power of two, all -1): tables by the hash of their names. ``ids`` (m, 2): room for table ids.
    ``tail``: bytes of checksum that end each event; they are not looked at.
    Returns (OK, FULL or a fault, number of tables, position of the fault); FULL: more than n tables.
    """
    count = 0
    mask = slots.shape[0] - 1
    for tx in range(tx_begin.shape[0]):
        pos = tx_begin[tx]
        end = tx_end[tx]
        n_ids = 0
        if pos < 0 or end > buf.shape[0]:
            return BAD_FRAME, count, pos
        while pos < end:
            length = event_length(buf, pos, end, tail)
            if length < 0:
                return BAD_FRAME, count, pos
            kind = np.int64(buf[pos + 4])
            stop = pos + length - tail
            if kind == 19:
                p = pos + 27
                if stop - p < 2 or stop - p < 2 + np.int64(buf[p]) + 2:
                    return BAD_FRAME, count, pos
                size = 2 + np.int64(buf[p])
                size += 2 + np.int64(buf[p + size])
                if stop - p < size:
                    return BAD_FRAME, count, pos
                code = np.uint64(1469598103934665603)
                for i in range(p, p + size):
                    code = (code ^ np.uint64(buf[i])) * np.uint64(1099511628211)
                slot = np.int64((code ^ code >> np.uint64(32)) & np.uint64(mask))
                while slots[slot] >= 0:
                    known = slots[slot]
                    if tables[known, 1] == size and same_bytes(buf, tables[known, 0], p, size):
                        break
                    slot = (slot + 1) & mask
                if slots[slot] < 0:
                    if count == tables.shape[0]:
                        return FULL, count, pos
                    tables[count, 0] = p
                    tables[count, 1] = size
                    tables[count, 2] = 0
                    slots[slot] = count
                    count += 1
                n_ids = remember(ids, n_ids, u48(buf, pos + 19), slots[slot])
            elif holds_rows(kind):
                if stop - pos < 27:
                    return BAD_FRAME, count, pos
                known = recall(ids, n_ids, u48(buf, pos + 19))
                if known >= 0:
                    tables[known, 2] += 1
            pos += length
    return OK, count, 0
