"""The stream that a master sends: everything visible in its store, in order, from where the standby is.

Only whole, visible transactions are sent. They are durable at the master, so a crash of the master never leaves a
standby with something that the master does not have. The stream moves on to the next segment once that one has a
visible entry, because then nothing is added to the former one any more.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cdc.base.errors import DamagedError, PeerUnavailableError
from cdc.binlog.entry import ENTRY, ENTRY_SIZE, HEADER_SIZE, Entries
from cdc.copies.standby.protocol import CHUNK_BYTES, DATA, ENTRIES, FILE, MAX_PAYLOAD, FrameKind, Have
from cdc.copies.standby.snapshot import PERMANENT_FILES, read_small, require_store_present, small_files
from cdc.disk import files
from cdc.disk.durable import storage_errors
from cdc.disk.encryption.read import OpenContent
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile, first_bad
from cdc.store.formats.missing import kept_names, read_removed
from cdc.store.formats.segment_header import segment_header_size

ENTRIES_AT_ONCE = 4096

Send = Callable[..., None]


class Stream:
    """Sends the store to one standby, and remembers how far it has got. Not thread-safe."""

    def __init__(
        self,
        store: Path,
        send: Send,
        have: list[Have],
        segment_names: list[str],
        their_files: dict[str, int],
        *,
        seen: set[str] | None = None,
    ) -> None:
        """Starts behind what the standby has.

        ``have`` is the list of FOLLOW, ``segment_names`` the names of segments that the standby may have, and
        ``their_files`` the CRC32 of its small files. ``seen`` has the small files that this master has ever had; the
        streams of a master share it, and add to it.
        """
        self._store = store
        self._send = send
        self._have = {segment.segment: segment for segment in have}
        self._from = have[0].segment if have else ""
        self._segments = set(segment_names)
        self._files: dict[str, tuple[int, int, int]] = {}
        self._their_files = dict(their_files)
        self._seen = set() if seen is None else seen
        self._name = ""
        self._fd = self._index_fd = -1
        self._offset = self._entries = 0
        self.last_seq = self._last_of(have)
        """Seq of the newest entry that the standby has or was sent."""

    def advance(self) -> bool:
        """Sends some of what is visible and not sent yet; False if there is nothing.

        Raises DamagedError, StorageError, and the errors of ``send``.
        """
        return (bool(self._name) and self._send_new()) or self._next()

    def tidy(self) -> None:
        """Sends changed small files, then the removal of segments, so that the low-water mark arrives first."""
        names = kept_names(self._store)
        self._send_files()
        # Only segments that retention has removed: if the disk is unmounted, or the folder is being deleted, the copy
        # must survive. Segments without transactions at the mark stay until the mark has moved on.
        mark = read_removed(self._store).seq
        removed = {
            name
            for name in self._segments.difference(names)
            if names and name < names[0] and (layout.segment_start(Path(name)) or 0) < mark
        }
        for name in sorted(removed):
            self._send(FrameKind.FORGET, f"segments/{name}".encode())
            if name == self._name:  # nothing more is sent of it, even if its files still exist for a moment
                self.close()
        self._segments = self._segments.difference(removed).union(names)

    def close(self) -> None:
        """Closes the current segment."""
        for fd in (self._fd, self._index_fd):
            if fd >= 0:
                files.layer.close(fd)
        self._fd = self._index_fd = -1
        self._name = ""

    # --- from segment to segment

    def _next(self) -> bool:
        names = kept_names(self._store)
        later = [name for name in names if (name > self._name if self._name else name >= self._from)]
        folder = layout.segments_folder(self._store)
        if not any(len(IndexFile(folder / name).entries) for name in reversed(later)):
            return False
        if self._name and self._send_new():  # entries that were written before the later segment began
            return True
        self._require_all_sent()
        # Without the next lines the standby would hold both sides of a gap for a while, and not know of the gap.
        if self._segments.difference(names):
            self.tidy()
        self._from = later[0]
        self.close()
        return self._open(later[0])

    def _open(self, name: str) -> bool:
        path = layout.segments_folder(self._store) / name
        with storage_errors(path):
            try:
                self._fd = files.layer.open(path, os.O_RDONLY)
                self._index_fd = files.layer.open(layout.index_path(path), os.O_RDONLY)
            except FileNotFoundError:  # retention has just removed it
                self.close()
                return False
        self._name = name
        have = self._have.pop(name, None)
        self._offset, self._entries = (have.size_bytes, have.entries) if have is not None else (0, 0)
        self._segments.add(name)
        self._send(FrameKind.SEGMENT, name.encode())
        if not self._offset:
            with storage_errors(path):
                try:
                    size = segment_header_size(path)
                except FileNotFoundError:
                    self.close()
                    return False
            self._send_bytes(size)
        self._send_new()
        return True

    def _last_of(self, have: list[Have]) -> int:
        """Returns the seq of the newest entry that the standby has; 0: none. Segments before ``have`` are whole."""
        counts = {segment.segment: segment.entries for segment in have}
        for name in reversed(kept_names(self._store) if have else []):
            if name <= have[-1].segment:
                entries = IndexFile(layout.segments_folder(self._store) / name).entries
                count = counts.get(name, len(entries))
                if 0 < count <= len(entries):
                    return int(entries["seq"][count - 1])
        return 0

    def _require_all_sent(self) -> None:
        """Checks that all entries of a finished segment were sent. An incomplete last entry is damage now. Raises
        DamagedError."""
        if not self._name:
            return
        with storage_errors(layout.segments_folder(self._store) / self._name):
            stat = os.fstat(self._index_fd)
        if stat.st_nlink and (stat.st_size - HEADER_SIZE) // ENTRY_SIZE > self._entries:
            raise DamagedError(f"entry {self._entries} has a wrong checksum", place=f"{self._name}.index")

    # --- inside a segment

    def _send_new(self) -> bool:
        with storage_errors(layout.segments_folder(self._store) / self._name):
            stat = os.fstat(self._index_fd)
        count = max(0, stat.st_size - HEADER_SIZE) // ENTRY_SIZE
        if count < self._entries and stat.st_nlink:
            raise PeerUnavailableError(f"{self._name} has become shorter than the standby's copy")
        if count <= self._entries or not stat.st_nlink:  # no link: retention removed it
            return False
        raw = self._pread(self._index_fd, min(count - self._entries, ENTRIES_AT_ONCE) * ENTRY_SIZE, self._entries)
        entries = np.frombuffer(raw, dtype=ENTRY)
        bad = first_bad(entries)
        if bad >= 0:
            if self._entries + bad == count - 1:
                entries = entries[:bad]  # it is being written at this moment
            else:
                raise DamagedError(f"entry {self._entries + bad} has a wrong checksum", place=f"{self._name}.index")
        if not len(entries):
            return False
        self._send_files()  # after reading the entries: they may need files that were written before them
        self._send_entries(entries)
        return True

    def _pread(self, fd: int, size: int, first_entry: int) -> bytes:
        with storage_errors(layout.segments_folder(self._store) / self._name):
            return files.layer.pread(fd, size, HEADER_SIZE + first_entry * ENTRY_SIZE)

    def _send_entries(self, entries: Entries) -> None:
        """Sends entries in chunks of about 1 MiB of their bytes, the bytes first."""
        ends = np.maximum.accumulate(entries["offset"] * (entries["length"] > 0) + entries["length"])
        start = 0
        while start < len(entries):
            limit = max(self._offset, int(ends[start])) + CHUNK_BYTES
            stop = max(start + 1, int(np.searchsorted(ends, np.uint64(limit), side="right")))
            self._send_bytes(int(ends[stop - 1]))
            self.last_seq = max(self.last_seq, int(entries["seq"][stop - 1]))  # before the report of it can arrive
            self._send(FrameKind.ENTRIES, ENTRIES.pack(self._entries), entries[start:stop].tobytes())
            self._entries += stop - start
            start = stop

    def _send_bytes(self, end: int) -> None:
        """Sends the segment's bytes up to ``end`` that were not sent yet."""
        while self._offset < end:
            size = min(CHUNK_BYTES, end - self._offset)
            with storage_errors(layout.segments_folder(self._store) / self._name):
                data = self._content().pread(size, self._offset)
            if len(data) < size:
                raise DamagedError(
                    f"ends at byte {self._offset + len(data)}, but its index says {end}", place=self._name
                )
            self._send(FrameKind.DATA, DATA.pack(self._offset), data)
            self._offset += size

    def _content(self) -> OpenContent:
        """The segment as a binlog file: the other side encrypts it with its own key, or not at all."""
        return OpenContent(self._fd, layout.segments_folder(self._store) / self._name)

    # --- small files

    def _send_files(self) -> None:
        marks = small_files(self._store)
        require_store_present(self._store, marks)
        if marks == self._files:
            return
        self._seen.update(marks)
        for name, mark in marks.items():
            if self._files.get(name) == mark:
                continue
            content = read_small(self._store, name)
            if content is None:
                continue
            if self._their_files.get(name) != zlib.crc32(content):
                self._send_file(name.encode(), content)
            self._their_files[name] = zlib.crc32(content)
        removed_seq = read_removed(self._store).seq
        for name in set(self._their_files).difference(marks, PERMANENT_FILES):
            # Only retention removes a file that was here. A file that never was here belongs to another store.
            seq = Path(name).stem
            if name not in self._seen or (seq.isdigit() and int(seq) <= removed_seq):
                self._send(FrameKind.FORGET, name.encode())
                del self._their_files[name]
        self._files = marks

    def _send_file(self, name: bytes, content: bytes) -> None:
        """Sends a small file in as many frames as needed: definitions of thousands of tables exceed one frame."""
        head, room = FILE.pack(len(name)) + name, MAX_PAYLOAD // 2
        while len(content) > room:
            self._send(FrameKind.FILE_PART, head, content[:room])
            content = content[room:]
        self._send(FrameKind.FILE, head, content)
