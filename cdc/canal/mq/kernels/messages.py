"""The compiled loop over entries: writes the messages of each, until the output is full or the caller has to act."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.canal.mq.kernels import rows as r
from cdc.canal.mq.kernels.envelope import put_envelopes
from cdc.canal.mq.kernels.flat import put_flat
from cdc.canal.mq.kernels.raw import put_entries
from cdc.canal.mq.kernels.rows import MessageOutput, MessageSource, definition_of, read_entry
from cdc.kernels.jit import njit

Longs = npt.NDArray[np.int64]

FLAT, RAW, ENVELOPE = 0, 1, 2


@njit
def put_messages(
    source: MessageSource,
    at: int,
    end: int,
    output: MessageOutput,
    form: int,
    batch: int,
    now_us: int,
    tombstones: bool,
) -> tuple[int, int]:
    """Writes the messages of the entries between ``at`` and ``end``. Returns a status and the offset of the entry that
    it is about; OK: all are written, and the offset is ``end``. ``source.entry`` then has the parts of that entry."""
    buf, entry, definitions = source.buf, source.entry, source.definitions
    while at < end:
        stop = read_entry(buf, at, entry)
        if entry.kind == r.ROWS:
            if entry.rows_end == 0 or entry.change > r.DELETE:
                return r.STATEMENT, at
            table = definition_of(buf, entry, definitions)
            if table < 0:
                return r.NEED_DEFINITION, at
            if form == FLAT:
                status = put_flat(source, table, output, batch, now_us // 1000)
            elif form == RAW:
                status = put_entries(source, table, output)
            else:
                status = put_envelopes(source, table, output, now_us, tombstones)
            if status != r.OK:
                return status, at
        at = stop
    return r.OK, at
