"""Copies a range of the archive to a folder, as a store that can be decoded and inspected, and is not written to."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.base.errors import UsageError
from cdc.binlog.positions import format_seq
from cdc.copies.archive.restore import (
    Progress,
    drop_sound_losses,
    read_small,
    require_room,
    restore_segments,
    restore_small_files,
)
from cdc.copies.archive.states import Archive
from cdc.disk.durable import remove_file, replace_file, storage_errors
from cdc.disk.permissions import READ, secure_folder
from cdc.store.formats import layout
from cdc.store.formats.missing import REMOVED_FILE

if TYPE_CHECKING:
    from cdc.config import DestinationConfig


@dataclass(frozen=True)
class Fetched:
    """The segments that were copied; the keys of ``cdc archive fetch --json``."""

    path: str
    segments: int
    bytes: int
    first_seq: int
    """Exclusive: where the first segment begins."""
    last_seq: int


def fetch(
    config: DestinationConfig,
    folder: Path,
    from_seq: int = 0,
    to_seq: int | None = None,
    *,
    progress: Progress = lambda done, total: None,
) -> Fetched:
    """Copies the segments that have transactions from one seq to another to a folder, which is new or was begun by a
    call that was killed. Raises ConfigError, UsageError, DamagedError, RetryableError, StorageError."""
    archive = Archive(config)
    newest = archive.existing()
    chosen = [
        segment
        for segment in newest.segments
        if segment.last_seq >= from_seq and (to_seq is None or segment.start_seq < to_seq)
    ]
    if not chosen:
        totals = newest.state.totals
        raise UsageError(
            f"the archive has no segment in this range: it goes from {totals.first_seq} "
            f"({format_seq(totals.first_seq)}) to {totals.last_seq} ({format_seq(totals.last_seq)})",
            place=archive.uri,
        )
    gap = next((segment for segment in chosen[1:] if segment.gap), None)
    if gap is not None:
        raise UsageError(
            f"the archive lacks transactions before the segment {gap.name}",
            place=archive.uri,
            remedy=f"Fetch two ranges: up to {gap.start_seq}, and from {gap.start_seq + 1} on.",
        )
    secure_folder(folder, config.store.permissions, READ)
    with storage_errors(folder):
        if os.listdir(folder) and not (folder / layout.RESTORING_FILE).exists():
            raise UsageError("this folder is not empty", place=str(folder), remedy="Name a new one.")
    replace_file(folder / layout.RESTORING_FILE, b"{}\n")
    require_room(folder, chosen)
    restore_small_files(archive, newest, folder, chosen[-1].last_seq)
    restore_segments(archive, folder, chosen, progress)
    drop_sound_losses(folder)
    remove_file(folder / REMOVED_FILE)  # of the store that the range was copied from
    replace_file(folder / layout.STORE_FILE, read_small(archive, newest.state.files[f"store/{layout.STORE_FILE}"]))
    remove_file(folder / layout.RESTORING_FILE)
    size = sum(segment.size_bytes for segment in chosen)
    return Fetched(str(folder), len(chosen), size, chosen[0].start_seq, chosen[-1].last_seq)
