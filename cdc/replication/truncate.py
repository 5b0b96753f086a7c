"""Cutting what a master never had, and keeping it as evidence in the store's folder ``cut/``."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from cdc import files
from cdc.binlog.entry import ENTRY, ENTRY_SIZE, HEADER_SIZE
from cdc.durable import make_folder, replace_file, storage_errors, sync_folder
from cdc.errors import CorruptStreamError
from cdc.log import get_logger
from cdc.replication.messages import Have
from cdc.replication.reconcile import Plan, index_bytes, segment_path
from cdc.replication.snapshot import View
from cdc.store.formats import layout
from cdc.store.formats.index import first_bad, make_header

log = get_logger(__name__)

FOLDER = "cut"
_PIECE = 1 << 20


def cut(store: Path, plan: Plan, fetched: dict[str, bytes], why: str) -> int:
    """Carry out a plan; returns how many transactions were cut. ``fetched``: the master's entries for each of
    ``plan.fetch``. Each step leaves a store that opens, with all that is common in it, and may be repeated. The
    checkpoint must not claim any more what goes. Raises StorageError."""
    evidence = store / FOLDER / datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    for name in plan.gone:
        remove_segment(store, name)
    lost = 0
    for name in reversed(plan.cut):
        lost += _move(store, name, evidence)
    for have in reversed(plan.have):
        entries = fetched.get(have.segment)
        if entries is not None:
            _replace_entries(store, have, entries)
        lost += _shorten(store, have, evidence)
    if lost:
        log.warning(
            "cut off what the master never had", store=str(store), transactions=lost, kept=str(evidence), why=why
        )
    return lost


def remove_segment(store: Path, name: str) -> None:
    """The segment first: an index without one is nobody's."""
    path = segment_path(store, name)
    with storage_errors(path):
        for each in (path, layout.index_path(path)):
            with suppress(FileNotFoundError):
                files.layer.unlink(each)
        sync_folder(path.parent)


def _move(store: Path, name: str, evidence: Path) -> int:
    view = View(store, name)
    count = len(view.with_bytes)
    if not count:
        remove_segment(store, name)
        return 0
    make_folder(evidence)
    with storage_errors(evidence):
        # The index last: without it the segment would be one whose index is lost, with it alone there is none.
        for path in (view.path, layout.index_path(view.path)):
            with suppress(FileNotFoundError):
                files.layer.replace(path, evidence / path.name)
        sync_folder(evidence)
        sync_folder(view.path.parent)
    return count


def _replace_entries(store: Path, have: Have, entries: bytes) -> None:
    """Put the master's entries in the place of those behind the common ones, in one step: an index that lacked them
    for a moment would make a recovery doubt the segment."""
    view = View(store, have.segment)
    common = have.entries - len(entries) // ENTRY_SIZE
    path = layout.index_path(view.path)
    whole = make_header() + view.entries[:common].tobytes() + entries
    mine, after = view.with_bytes, np.frombuffer(whole, dtype=ENTRY, offset=HEADER_SIZE)
    numbers = np.flatnonzero(after["length"])
    keys = ["seq", "offset", "length", "checksum"]
    fits = len(numbers) <= len(mine) and all(
        np.array_equal(after[key][numbers], view.entries[key][mine[: len(numbers)]]) for key in keys
    )
    if first_bad(after) >= 0 or not fits:
        raise CorruptStreamError("the master's entries are not those that it was asked for", place=have.segment)
    # Those of transactions that are to be cut stay until their bytes are kept.
    tail = view.entries[int(mine[len(numbers)]) :].tobytes() if len(numbers) < len(mine) else b""
    replace_file(path, whole + tail)


def _shorten(store: Path, have: Have, evidence: Path) -> int:
    """Cut a segment and its index to what is common."""
    path = segment_path(store, have.segment)
    view = View(store, have.segment)
    ends = view.entries["offset"][view.with_bytes] + view.entries["length"][view.with_bytes]
    lost = int((ends > have.size_bytes).sum())
    with storage_errors(path):
        if path.stat().st_size > have.size_bytes and lost:
            make_folder(evidence)
            _copy_tail(path, have.size_bytes, evidence / f"{path.name}.{have.size_bytes}.cut")
            sync_folder(evidence)
        # The index first: one that says more than its segment would be damage.
        index = layout.index_path(path)
        size = index_bytes(have.entries)
        _truncate(index, size, make_header())
        _truncate(path, have.size_bytes, b"")
        sync_folder(path.parent)
    return lost


def _truncate(path: Path, size: int, head: bytes) -> None:
    fd = files.layer.open(path, os.O_RDWR | os.O_CREAT)
    try:
        have = files.layer.seek(fd, 0, os.SEEK_END)
        if have < len(head):
            files.pwrite_all(fd, head, 0)
        if have > size:
            files.layer.ftruncate(fd, size)
        files.layer.fsync(fd)
    finally:
        files.layer.close(fd)


def _copy_tail(path: Path, offset: int, target: Path) -> None:
    made = files.layer.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with path.open("rb") as source, open(made, "wb") as kept:
        source.seek(offset)
        while piece := source.read(_PIECE):
            kept.write(piece)
        kept.flush()
        os.fsync(kept.fileno())
