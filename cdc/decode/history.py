"""What ``information_schema`` said of a table at each place of a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cdc.schemas import Schemas, TableSchema
from cdc.store.formats.layout import schemas_folder, segments_folder

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TableHistory:
    """How ``information_schema`` described one table, as capture stored it: in force after each ``since`` (ascending
    seqs), the first one before it, too."""

    since: tuple[int, ...] = ()
    schema: Callable[[int], TableSchema | None] = lambda _: None
    """One of them, by its number: a file is read only where rows ask for it."""

    @classmethod
    def always(cls, schema: TableSchema | None) -> TableHistory:
        return cls((0,), lambda _: schema)

    def at(self, seqs: npt.NDArray[np.uint64]) -> Longs:
        """Which of the schemas holds at each seq."""
        if len(self.since) < 2:
            return np.zeros(len(seqs), dtype=np.int64)
        found = np.searchsorted(np.array(self.since, dtype=np.uint64), seqs, side="right") - 1
        return np.maximum(found, 0).astype(np.int64)


NO_HISTORY = TableHistory()


def history_of(path: Path, table: str) -> TableHistory:
    """What the store of a segment says of a table; nothing for another file."""
    folder = schemas_folder(path.parent.parent)
    if path.parent != segments_folder(path.parent.parent) or not folder.is_dir():
        return NO_HISTORY
    files = sorted((int(one.stem), one) for one in folder.glob("*.json") if one.stem.isdigit())
    if not files:
        return NO_HISTORY
    return TableHistory(tuple(seq for seq, _ in files), lambda number: Schemas.load(files[number][1]).tables.get(table))
