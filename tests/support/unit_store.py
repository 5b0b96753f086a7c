"""Makes small stores to damage and to open again."""

from __future__ import annotations

import shutil
from pathlib import Path

from cdc.store.formats.index import IndexFile
from cdc.store.formats.layout import list_segments
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler


def fill(path: Path, transactions: int = 10, *, ddl_at: int = -1, segment_bytes: int = 1 << 30) -> BinlogBuilder:
    log = BinlogBuilder()
    for n in range(transactions):
        if n == ddl_at:
            log.ddl("ALTER TABLE orders ADD x INT")
        else:
            log.transaction("shop", "orders" if n % 2 else "items", [n] * (n + 1))
    filler = Filler(path, segment_bytes=segment_bytes)
    filler.put(log)
    filler.close()
    return log


def all_seqs(path: Path) -> list[int]:
    """Returns the seqs of all entries of a store's index."""
    return [int(seq) for segment in list_segments(path) for seq in IndexFile(segment).entries["seq"]]


def content(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of each file below a folder, by its path in the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def copy(path: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(path, to)
    return to


def reopen(path: Path) -> None:
    Filler(path).close()


def forget_checkpoint(path: Path) -> None:
    """Turns the store into one of an older Towpath, where only the index tells what was acknowledged."""
    (path / "checkpoint").unlink()
