"""Interim."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class PartialFault(Exception):
    """A damaged partial update: a code of ``kernels.constants``, the column or -1, the position in the buffer."""

    def __init__(self, code: int, column: int, pos: int) -> None:
        super().__init__(code)
        self.code, self.column, self.pos = code, column, pos


def expand_partial(
    buf: npt.NDArray[np.uint8],
    offset: npt.NDArray[np.int64],
    length: npt.NDArray[np.int64],
    tail: int,
    spec: npt.NDArray[np.int64],
    json_columns: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    raise NotImplementedError
