"""Events with partial updates of JSON columns, made into ordinary ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.decode.binary_json.kernels.expand import expand_events
from cdc.decode.kernels import constants as k

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


class PartialFault(Exception):
    """A damaged partial update: a code of ``kernels.constants``, the column or -1, the position in the buffer."""

    def __init__(self, code: int, column: int, pos: int) -> None:
        super().__init__(code)
        self.code, self.column, self.pos = code, column, pos


def expand_partial(
    buf: Bytes, offset: Longs, length: Longs, tail: int, spec: Longs, json_columns: Longs
) -> tuple[Bytes, Longs, Longs]:
    """Rewrite PARTIAL_UPDATE_ROWS events into UPDATE_ROWS events in a new buffer; it, their offsets and lengths.

    ``offset``, ``length`` (events,): the events in ``buf``; ``tail``: bytes of checksum, zero in the new events;
    ``spec`` (columns, SPEC_SIZE); ``json_columns`` (columns,): 1 for JSON. A new value that is given as diffs becomes
    0xFF, the size of the old row's document (4 bytes), that document, the diffs: ``json_text`` knows what to do with
    it. Raises PartialFault; its code is PART_IMAGE where rows do not hold all columns.
    Source: MySQL's ``Update_rows_log_event`` with ``binlog_row_value_options=PARTIAL_JSON``.
    """
    err = np.zeros(k.ERR_SIZE, dtype=np.int64)
    before = np.zeros((len(spec), 2), dtype=np.int64)
    begin = np.zeros(len(offset) + 1, dtype=np.int64)
    nothing = np.empty(0, dtype=np.uint8)
    size = expand_events(buf, offset, length, tail, spec, json_columns, before, nothing, begin, False, err)
    out = np.empty(max(0, size), dtype=np.uint8)
    if size >= 0:
        size = expand_events(buf, offset, length, tail, spec, json_columns, before, out, begin, True, err)
    if size < 0:
        raise PartialFault(int(err[k.ERR_CODE]), int(err[k.ERR_COLUMN]), int(err[k.ERR_POS]))
    return out, begin[:-1].copy(), np.diff(begin)
