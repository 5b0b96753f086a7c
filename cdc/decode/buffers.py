"""The Arrow buffers of a slice: how large, where each column lies, and the arrays made of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.decode.kernels import constants as k
from cdc.decode.kernels.fill import BLOCK_ROWS, fill_rows
from cdc.decode.layout import KernelSpec, latin1_table, value_width

LATIN1_TABLE = latin1_table()


class FillFault(Exception):
    """A kernel's report: code, row of the slice, column, position."""

    def __init__(self, code: int, row: int, column: int, pos: int) -> None:
        super().__init__(code)
        self.code, self.row, self.column, self.pos = code, row, column, pos


@dataclass(frozen=True)
class Filled:
    """A slice's columns in the kernels' types; ``null_dates`` counts by the table's columns."""

    arrays: list[pa.Array]
    null_dates: npt.NDArray[np.int64]


def _round_up(size: int) -> int:
    return (size + 63) & ~63


def plan(spec: KernelSpec, rows: int, totals: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """Places of every column's parts in one buffer (columns, OUT_SIZE), and the buffer's size in bytes."""
    places = np.zeros((len(spec.spec), k.OUT_SIZE), dtype=np.int64)
    at = 0
    for i, kind in zip(spec.columns, spec.raw, strict=True):
        width = value_width(kind)
        places[i, k.OUT_VALIDITY] = at
        at += _round_up((rows + 7) // 8)
        if width == 0:
            places[i, k.OUT_OFFSETS] = at
            at += _round_up(4 * (rows + 1))
        places[i, k.OUT_VALUES] = at
        places[i, k.OUT_LIMIT] = at + (int(totals[i]) if width == 0 else width * rows)
        at = _round_up(int(places[i, k.OUT_LIMIT]))
    return places, at


def fill(
    buf: npt.NDArray[np.uint8],
    limit: int,
    row_at: npt.NDArray[np.int64],
    spec: KernelSpec,
    totals: npt.NDArray[np.int64],
) -> Filled:
    """Decode the rows at ``row_at`` (-1: none, all null). Raises FillFault."""
    rows = len(row_at)
    places, size = plan(spec, rows, totals)
    memory = pa.allocate_buffer(max(64, size))
    out = np.frombuffer(memory, dtype=np.uint8)
    for i, kind in zip(spec.columns, spec.raw, strict=True):
        begin = places[i, k.OUT_VALIDITY]
        out[begin : begin + _round_up((rows + 7) // 8)] = 0xFF
        if value_width(kind) == 0:
            begin = places[i, k.OUT_OFFSETS]
            out[begin : begin + 4] = 0
    err = np.zeros(k.ERR_SIZE, dtype=np.int64)
    null_dates = np.zeros(len(spec.spec), dtype=np.int64)
    whole = out[: len(out) & ~7]
    code = fill_rows(
        buf,
        limit,
        row_at,
        spec.spec,
        places,
        spec.member_at,
        spec.members,
        LATIN1_TABLE,
        out,
        whole.view(np.int16),
        whole.view(np.int32),
        whole.view(np.int64),
        places[:, k.OUT_VALUES].copy(),
        null_dates,
        np.empty(BLOCK_ROWS, dtype=np.int64),
        err,
    )
    if code != k.OK:
        raise FillFault(int(code), int(err[k.ERR_EVENT]), int(err[k.ERR_COLUMN]), int(err[k.ERR_POS]))
    arrays = []
    for i, kind in zip(spec.columns, spec.raw, strict=True):
        width = value_width(kind)
        validity = memory.slice(int(places[i, k.OUT_VALIDITY]), (rows + 7) // 8)
        begin = int(places[i, k.OUT_VALUES])
        if width:
            buffers = [validity, memory.slice(begin, width * rows)]
        else:
            offsets = memory.slice(int(places[i, k.OUT_OFFSETS]), 4 * (rows + 1))
            buffers = [validity, offsets, memory.slice(begin, int(places[i, k.OUT_LIMIT]) - begin)]
        arrays.append(pa.Array.from_buffers(kind, rows, buffers))
    return Filled(arrays, null_dates)
