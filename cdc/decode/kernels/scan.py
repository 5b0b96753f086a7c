"""The compiled walk over events: which row events belong to a table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.crc import crc32
from cdc.binlog.jit import inlined, njit
from cdc.decode.kernels.constants import (
    BAD_CRC,
    BAD_EVENT,
    BAD_FRAME,
    FULL,
    MAX_LAYOUTS,
    OK,
    SCAN_BAD_POS,
    SCAN_BAD_TYPE,
    SCAN_IDS,
    SCAN_LAYOUTS,
    SCAN_ORDINAL,
    SCAN_POS,
    SCAN_TX,
    TOO_MANY_LAYOUTS,
)

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@inlined
def u16(buf: Bytes, p: int) -> int:
    """Little-endian, 2 bytes."""
    return np.int64(buf[p]) | np.int64(buf[p + 1]) << 8


@inlined
def u24(buf: Bytes, p: int) -> int:
    """Little-endian, 3 bytes."""
    return np.int64(buf[p]) | np.int64(buf[p + 1]) << 8 | np.int64(buf[p + 2]) << 16


@inlined
def u32(buf: Bytes, p: int) -> int:
    """Little-endian, 4 bytes."""
    return np.int64(buf[p]) | np.int64(buf[p + 1]) << 8 | np.int64(buf[p + 2]) << 16 | np.int64(buf[p + 3]) << 24


@inlined
def u48(buf: Bytes, p: int) -> int:
    """Little-endian, 6 bytes."""
    return u32(buf, p) | u16(buf, p + 4) << 32


@inlined
def i64(buf: Bytes, p: int) -> int:
    """Little-endian, 8 bytes; the top bit is the sign."""
    return np.int64(u32(buf, p)) | np.int64(u32(buf, p + 4)) << np.int64(32)


@inlined
def same_bytes(buf: Bytes, a: int, b: int, size: int) -> bool:
    """Whether two runs of the same length, both inside the buffer, are equal."""
    difference = np.uint8(0)
    for i in range(size):  # without an early end, so that it is compiled into wide instructions
        difference |= buf[a + i] ^ buf[b + i]
    return bool(difference == 0)


@inlined
def has_name(buf: Bytes, p: int, end: int, name: Bytes) -> bool:
    """Whether ``name`` (length, database, NUL, length, table, NUL) stands at ``p``."""
    if end - p < name.shape[0]:
        return False
    difference = np.uint8(0)
    for i in range(name.shape[0]):
        difference |= buf[p + i] ^ name[i]
    return bool(difference == 0)


@njit
def find_layout(buf: Bytes, start: int, stop: int, layouts: Longs, count: int) -> int:
    """Number of the table map with the same bytes from ``start`` to ``stop``, or -1. The newest is the likeliest."""
    for k in range(count - 1, -1, -1):
        if layouts[k, 1] - layouts[k, 0] == stop - start and same_bytes(buf, layouts[k, 0], start, stop - start):
            return k
    return -1


@inlined
def sound(buf: Bytes, pos: int, stop: int, tail: int, scratch: Bytes) -> bool:
    """Whether an event's checksum, if it has one at ``stop``, is right."""
    return tail == 0 or np.int64(crc32(buf, pos, stop, scratch)) == u32(buf, stop)


@inlined
def event_length(buf: Bytes, pos: int, end: int, tail: int) -> int:
    """The length of the event at ``pos`` by its header; -1 where the event, or its checksum, does not fit."""
    if end - pos < 19:
        return -1
    length = u32(buf, pos + 9)
    return -1 if length < 19 + tail or length > end - pos else length


@inlined
def holds_rows(kind: int) -> bool:
    """Whether an event of this type is a row event."""
    return bool((kind >= 23 and kind <= 25) or (kind >= 30 and kind <= 32) or kind == 39)


@inlined
def recall(ids: Longs, n_ids: int, table_id: int) -> int:
    """What a table id stands for, -1 where it is not known."""
    for i in range(n_ids):
        if ids[i, 0] == table_id:
            return np.int64(ids[i, 1])
    return np.int64(-1)


@inlined
def remember(ids: Longs, n_ids: int, table_id: int, what: int) -> int:
    """Let a table id stand for something from here on; where there is no room, the oldest goes, which is of a statement
    long past. Returns the number of ids."""
    for i in range(n_ids):
        if ids[i, 0] == table_id:
            ids[i, 1] = what
            return n_ids
    if n_ids == ids.shape[0]:
        for i in range(1, n_ids):
            ids[i - 1, 0] = ids[i, 0]
            ids[i - 1, 1] = ids[i, 1]
        n_ids -= 1
    ids[n_ids, 0] = table_id
    ids[n_ids, 1] = what
    return n_ids + 1


@njit
def list_table_maps(
    buf: Bytes, tx_begin: Longs, tx_end: Longs, tail: int, out: Longs, slots: Longs, ids: Longs, scratch: Bytes
) -> tuple[int, int, int]:
    """List the distinct table maps, flags and table ids aside, in the order of their first appearance.

    ``out`` (n, 3): offset and length of the events, and the length of the largest row event that came under them.
    ``slots`` (a power of two, more than n): room for a hash table, filled with -1. ``ids`` (m, 2): room for table ids.
    Returns (OK or a fault, number of table maps, position of the fault); FULL: ``out`` is too small.
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
            stop = pos + length - tail
            if buf[pos + 4] == 19:
                if not sound(buf, pos, stop, tail, scratch):
                    return BAD_CRC, count, pos
                if stop - pos < 27:
                    return BAD_FRAME, count, pos
                size = stop - pos - 27
                code = np.uint64(1469598103934665603)
                for i in range(pos + 27, stop):
                    code = (code ^ np.uint64(buf[i])) * np.uint64(1099511628211)
                slot = np.int64((code ^ code >> np.uint64(32)) & np.uint64(mask))
                while slots[slot] >= 0:
                    known = slots[slot]
                    if out[known, 1] == length and same_bytes(buf, out[known, 0] + 27, pos + 27, size):
                        break
                    slot = (slot + 1) & mask
                if slots[slot] < 0:
                    if count == out.shape[0]:
                        return FULL, count, pos
                    out[count, 0] = pos
                    out[count, 1] = length
                    out[count, 2] = 0
                    slots[slot] = count
                    count += 1
                n_ids = remember(ids, n_ids, u48(buf, pos + 19), slots[slot])
            elif holds_rows(np.int64(buf[pos + 4])):
                if stop - pos < 27:
                    return BAD_FRAME, count, pos
                known = recall(ids, n_ids, u48(buf, pos + 19))
                if known >= 0 and length > out[known, 2]:
                    out[known, 2] = length
            pos += length
    return OK, count, 0


@njit
def scan_events(
    buf: Bytes,
    tx_begin: Longs,
    tx_end: Longs,
    tail: int,
    name: Bytes,
    state: Longs,
    ids: Longs,
    layouts: Longs,
    out_offset: Longs,
    out_length: Longs,
    out_type: Longs,
    out_tx: Longs,
    out_ordinal: Longs,
    out_layout: Longs,
    max_bytes: int,
    scratch: Bytes,
) -> tuple[int, int]:
    """List the row events of the table called ``name``, going on where ``state`` says.

    ``tail``: bytes of checksum that end each event; every event's is verified. ``ids`` (MAX_IDS, 2): table id, layout,
    as far as in force; ``layouts`` (MAX_LAYOUTS, 2): from the name on to the end of each distinct table map of the
    table.
    Returns (OK, FULL or a fault, number of events listed). FULL: as many as fit, or more than ``max_bytes``.
    """
    count = 0
    size = 0
    tx = state[SCAN_TX]
    pos = state[SCAN_POS]
    ordinal = state[SCAN_ORDINAL]
    n_ids = state[SCAN_IDS]
    n_layouts = state[SCAN_LAYOUTS]
    status = OK
    while tx < tx_begin.shape[0]:
        if pos < 0:
            pos = tx_begin[tx]
            ordinal = 0
            n_ids = 0
        end = tx_end[tx]
        if pos < 0 or end > buf.shape[0]:
            status = BAD_FRAME
            break
        while pos < end:
            length = event_length(buf, pos, end, tail)
            if length < 0:
                status = BAD_FRAME
                break
            kind = np.int64(buf[pos + 4])
            stop = pos + length - tail
            # Of others' events, too: a flipped bit in a type, an id or a name would make ours look like one of them.
            if not sound(buf, pos, stop, tail, scratch):
                status = BAD_CRC
                break
            if kind == 19:
                if stop - pos < 27:
                    status = BAD_FRAME
                    break
                table_id = u48(buf, pos + 19)
                for k in range(n_ids):
                    if ids[k, 0] == table_id:
                        n_ids -= 1
                        ids[k, 0] = ids[n_ids, 0]
                        ids[k, 1] = ids[n_ids, 1]
                        break
                if has_name(buf, pos + 27, stop, name):
                    layout = find_layout(buf, pos + 27, stop, layouts, n_layouts)
                    if layout < 0:
                        if n_layouts == MAX_LAYOUTS:
                            status = TOO_MANY_LAYOUTS
                            break
                        layout = n_layouts
                        layouts[layout, 0] = pos + 27
                        layouts[layout, 1] = stop
                        n_layouts += 1
                    n_ids = remember(ids, n_ids, table_id, layout)
            elif holds_rows(kind):
                if stop - pos < 27:
                    status = BAD_FRAME
                    break
                table_id = u48(buf, pos + 19)
                layout = recall(ids, n_ids, table_id)
                if layout >= 0:
                    if count == out_offset.shape[0] or (count > 0 and size + length > max_bytes):
                        status = FULL
                        break
                    out_offset[count] = pos
                    out_length[count] = length
                    out_type[count] = kind
                    out_tx[count] = tx
                    out_ordinal[count] = ordinal
                    out_layout[count] = layout
                    count += 1
                    ordinal += 1
                    size += length
            elif (kind >= 20 and kind <= 22) or kind == 26 or kind == 40 or (kind >= 166 and kind <= 171):
                status = BAD_EVENT
                break
            pos += length
        if status != OK:
            break
        tx += 1
        pos = -1
    state[SCAN_TX] = tx
    state[SCAN_POS] = pos
    state[SCAN_ORDINAL] = ordinal
    state[SCAN_IDS] = n_ids
    state[SCAN_LAYOUTS] = n_layouts
    if status > FULL:
        state[SCAN_BAD_POS] = pos
        if pos >= 0 and pos + 4 < buf.shape[0]:
            state[SCAN_BAD_TYPE] = buf[pos + 4]
    return status, count
