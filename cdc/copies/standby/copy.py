"""The standby's copy of the master's store, written as frames arrive.

Bytes get the same offsets in the segments as at the master. Entries wait until :meth:`Copy.commit` has made the bytes
durable, as in the master's own writer. One flush serves all frames that have arrived.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cdc.base.errors import CorruptStreamError
from cdc.binlog.entry import ENTRY, ENTRY_SIZE, HEADER_SIZE
from cdc.copies.standby.reconcile import remove_segment, segment_path
from cdc.copies.standby.role import read_epoch, write_epoch
from cdc.copies.standby.snapshot import is_small_file
from cdc.disk import files
from cdc.disk.durable import make_folder, replace_file, storage_errors, sync_folder
from cdc.store.formats import layout
from cdc.store.formats.checkpoint import CheckpointWriter
from cdc.store.formats.index import first_bad
from cdc.store.formats.missing import REMOVED_FILE as REMOVED
from cdc.store.formats.missing import read_removed
from cdc.store.writer.segment import SegmentWriter

SYNC_BYTES = 16 << 20
"""The follower commits when this many bytes are not yet durable."""
MAX_FILE = 256 << 20
"""The largest small file that is accepted, in bytes."""


class Copy:
    """Writes a standby's store. The caller holds the store's lock. Not thread-safe.

    Each method raises StorageError, and CorruptStreamError for frames that do not fit together.
    """

    def __init__(self, store: Path, checkpoints: CheckpointWriter, peer: str, last_seq: int) -> None:
        self._store = store
        self._checkpoints = checkpoints
        self._peer = peer
        self.last_seq = last_seq
        """Seq of the newest visible entry."""
        self._writer: SegmentWriter | None = None
        self._pending: list[bytes] = []
        self._parts = bytearray()
        self._parts_of = ""
        self._pending_seq = last_seq
        self._end = 0
        """Offset in the current segment where the visible transactions end."""
        self._pending_end = 0

    @property
    def position(self) -> tuple[str, int]:
        """The current segment, and how many of its bytes are durable."""
        return ("", 0) if self._writer is None else (self._writer.path.name, self._writer.synced)

    @property
    def unsynced_bytes(self) -> int:
        """The number of received bytes that are not durable yet."""
        pending = sum(map(len, self._pending))
        return pending if self._writer is None else pending + self._writer.size - self._writer.synced

    # --- frames

    def segment(self, name: str) -> None:
        """Begins or continues a segment; the segment before it is complete."""
        if layout.segment_start(Path(name)) is None:
            raise self._wrong(f"{name!r} is not the name of a segment")
        if self._writer is not None and self._writer.path.name == name:
            return
        self._finish()
        path = segment_path(self._store, name)
        if path.exists():
            self._writer = SegmentWriter.reopen(path, "", 0)
        else:
            self._writer = SegmentWriter.create(path, b"", "")
        self._pending_seq = self._writer.last_seq
        self._end = self._pending_end = self._writer.size
        self._note_compared(name)

    def data(self, offset: int, data: memoryview) -> None:
        """Appends bytes to the current segment."""
        writer = self._current()
        if offset != writer.size:
            raise self._wrong(f"bytes for offset {offset} of {writer.path.name}, which ends at {writer.size}")
        writer.append(data)

    def entries(self, first: int, data: bytes) -> None:
        """Takes index entries; all their bytes have arrived."""
        writer = self._current()
        expected = (writer.index_size - HEADER_SIZE + sum(map(len, self._pending))) // ENTRY_SIZE
        if first != expected or not data or len(data) % ENTRY_SIZE:
            raise self._wrong(f"entries from number {first} on for {writer.path.name}, which has {expected}")
        entries = np.frombuffer(data, dtype=ENTRY)
        if first_bad(entries) >= 0:
            raise self._wrong(f"an entry for {writer.path.name} with a wrong checksum")
        seqs = entries["seq"]
        if int(seqs[0]) <= self._pending_seq or not bool(np.all(seqs[1:] > seqs[:-1])):
            raise self._wrong(f"entries for {writer.path.name} whose seqs do not increase")
        with_bytes = np.flatnonzero(entries["length"])
        if len(with_bytes):
            end = int(entries["offset"][with_bytes[-1]]) + int(entries["length"][with_bytes[-1]])
            if end > writer.size:
                raise self._wrong(f"an entry for {writer.path.name} before its bytes")
            self._pending_end = max(self._pending_end, end)
        elif not self._pending_end:
            self._pending_end = writer.size  # the segment has its head alone
        self._pending.append(data)
        self._pending_seq = int(seqs[-1])

    def file(self, name: str, content: bytes, *, whole: bool = True) -> None:
        """Takes a small file, or with ``whole=False`` a part of it that the next frame continues.

        A whole file is durable at once, because entries that need it follow. Raises VersionError for a file of a newer
        Towpath.
        """
        if not is_small_file(name):
            raise self._wrong(f"a file with the unexpected name {name!r}")
        if self._parts and self._parts_of != name:
            raise self._wrong(f"a file {name!r} in the middle of {self._parts_of!r}")
        if len(self._parts) + len(content) > MAX_FILE:
            raise self._wrong(f"a file {name!r} of more than {MAX_FILE} bytes")
        if not whole:
            self._parts_of = name
            self._parts += content
            return
        content = bytes(self._parts) + content
        self._parts.clear()
        path = self._store / name
        try:
            document = json.loads(content)
        except ValueError:
            raise self._wrong(f"a file {name!r} that is not JSON") from None
        layout.require_version(document, path)
        if name == REMOVED and self._removed_more(document):
            return
        make_folder(path.parent)
        if name == "tables.json":
            # A former master may know more tables than its master. The checkpoint must not demand them.
            self._checkpoints.fewer_tables(len(document.get("tables", ())) if isinstance(document, dict) else 0)
        replace_file(path, content)

    def forget(self, name: str) -> None:
        """Removes a segment or a small file that the master has removed."""
        folder, _, own = name.rpartition("/")
        if folder == "segments" and layout.segment_start(Path(own)) is not None:
            if self._writer is not None and self._writer.path.name == own:
                self.commit()
                self._writer.close()
                self._writer = None
            if len(layout.list_segments(self._store)) == 1:
                self._checkpoints.emptied(self.last_seq)
            remove_segment(self._store, own)
            return
        if not is_small_file(name):
            raise self._wrong(f"a file with the unexpected name {name!r}")
        if name == REMOVED and self._removed_more({"seq": 0}):
            return
        path = self._store / name
        with storage_errors(path), suppress(FileNotFoundError):
            files.layer.unlink(path)
            sync_folder(path.parent)

    def commit(self) -> None:
        """Makes all received bytes durable, then the whole transactions among them visible."""
        writer = self._writer
        if writer is None:
            return
        if writer.size > writer.synced:
            writer.sync()
        if self._pending:
            writer.publish_sealed(b"".join(self._pending))
            self._pending.clear()
            self.last_seq = max(self.last_seq, self._pending_seq)
            self._end = self._pending_end

    def close(self, *, in_order: bool) -> None:
        """Closes the current segment. ``in_order``: the standby ends regularly, and records that in the store."""
        writer, self._writer = self._writer, None
        if in_order:
            if writer is not None and writer.size > self._end:
                writer.truncate(self._end)  # drops the beginning of a transaction
            self._checkpoints.closed(writer)
        if writer is not None:
            writer.close()

    # --- inside

    def _removed_more(self, theirs: Any) -> bool:
        """Whether this store's own retention, while it was the master, has removed more than the new master's.

        If so, this store keeps its low-water mark until the master's has come as far: subscribers who miss the
        difference must be told.
        """
        seq = theirs.get("seq") if isinstance(theirs, dict) else None
        return isinstance(seq, int) and read_removed(self._store).seq > seq

    def _finish(self) -> None:
        self.commit()
        writer, self._writer = self._writer, None
        if writer is not None:
            self._checkpoints.finished(writer)
            writer.close()

    def _note_compared(self, name: str) -> None:
        """Records that all segments before this one are the master's: they need not be compared again."""
        epoch = read_epoch(self._store)
        if epoch is not None and name > epoch.compared:
            write_epoch(self._store, replace(epoch, compared=name))

    def _current(self) -> SegmentWriter:
        if self._writer is None:
            raise self._wrong("bytes before the name of their segment")
        return self._writer

    def _wrong(self, what: str) -> CorruptStreamError:
        return CorruptStreamError(f"the master sent {what}", place=self._peer)
