"""The compiled loop over entries: writes the messages of each, until the output is full or the caller has to act."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.kernels.jit import njit
from cdc.mq.kernels import rows as r
from cdc.mq.kernels.envelope import put_envelopes
from cdc.mq.kernels.flat import put_flat
from cdc.mq.kernels.raw import put_entries
from cdc.mq.kernels.rows import Bytes, Definitions, EntryParts, MessageOutput, definition_of, read_entry

Longs = npt.NDArray[np.int64]

FLAT, RAW, ENVELOPE = 0, 1, 2


@njit
def put_messages(
    buf: Bytes,
    at: int,
    end: int,
    entry: EntryParts,
    definitions: Definitions,
    output: MessageOutput,
    form: int,
    batch: int,
    now_us: int,
    tombstones: bool,
) -> tuple[int, int]:
    """Writes the messages of the entries in ``buf[at:end]``. Returns a status and the offset of the entry that it is
    about; OK: all are written, and the offset is ``end``. ``entry`` then has the parts of that entry."""
    while at < end:
        stop = read_entry(buf, at, entry)
        if entry.kind == r.ROWS:
            if entry.rows_end == 0 or entry.change > r.DELETE:
                return r.STATEMENT, at
            table = definition_of(buf, entry, definitions)
            if table < 0:
                return r.NEED_DEFINITION, at
            if form == FLAT:
                status = put_flat(buf, entry, table, definitions, output, batch, now_us // 1000)
            elif form == RAW:
                status = put_entries(buf, entry, table, definitions, output)
            else:
                status = put_envelopes(buf, entry, table, definitions, output, now_us, tombstones)
            if status != r.OK:
                return status, at
        at = stop
    return r.OK, at
