"""What a master sends: everything visible in its store, in order, from where the standby is.

Only whole transactions travel, and only once they are visible here: durable, so that no crash of the master leaves a
standby with something that the master never had. A segment is left for the next one once that has a visible entry,
since then nothing is added to it any more.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cdc import files
from cdc.binlog.entry import ENTRY, ENTRY_SIZE, HEADER_SIZE, Entries
from cdc.durable import storage_errors
from cdc.errors import DamagedError, PeerUnavailableError
from cdc.replication.frames import MAX_PAYLOAD, PIECE_BYTES, Kind
from cdc.replication.messages import DATA, ENTRIES, FILE, Have
from cdc.replication.snapshot import LASTING, read_small, require_there, small_files
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile, first_bad
from cdc.store.formats.missing import kept_names, read_removed
from cdc.store.formats.segment_header import segment_header_size

ENTRIES_AT_ONCE = 4096

Send = Callable[..., None]


class Stream:
    """One standby's place in the store. Not thread-safe."""

    def __init__(
        self, store: Path, send: Send, have: list[Have], known: list[str], their_files: dict[str, int]
    ) -> None:
        """``have`` as in FOLLOW; ``known``: names of segments that the standby may have; ``their_files``: CRC32 of its
        small files."""
        self._store = store
        self._send = send
        self._have = {one.segment: one for one in have}
        self._from = have[0].segment if have else ""
        self._known = set(known)
        self._files: dict[str, tuple[int, int, int]] = {}
        self._their_files = dict(their_files)
        self._name = ""
        self._fd = self._index_fd = -1
        self._offset = self._entries = 0
        self.last_seq = self._last_of(have)
        """Of the newest entry that the standby has or was sent."""

    def advance(self) -> bool:
        """Send what is visible and not sent yet, some of it; False where there is nothing. Raises DamagedError,
        StorageError, and what sending raises."""
        return (bool(self._name) and self._send_new()) or self._next()

    def tidy(self) -> None:
        """Tell what has changed of the small files, then what was removed here: the low-water mark is there before the
        first segment goes."""
        names = kept_names(self._store)
        self._send_files()
        # Only what retention has removed: a store whose disk is unmounted, or whose folder is being deleted, must not
        # take its copy with it. Segments without transactions at the mark stay until it has moved on.
        mark = read_removed(self._store).seq
        gone = {
            name
            for name in self._known.difference(names)
            if names and name < names[0] and (layout.segment_start(Path(name)) or 0) < mark
        }
        for name in sorted(gone):
            self._send(Kind.FORGET, f"segments/{name}".encode())
            if name == self._name:  # nothing more of it, although its files may be there for a moment
                self.close()
        self._known = self._known.difference(gone).union(names)

    def close(self) -> None:
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
        if self._name and self._send_new():  # what came before the later one's first
            return True
        self._require_all_sent()
        if self._known.difference(names):  # else the standby had two segments for a while, and nothing told of a gap
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
            except FileNotFoundError:  # retention was faster
                self.close()
                return False
        self._name = name
        have = self._have.pop(name, None)
        self._offset, self._entries = (have.size_bytes, have.entries) if have is not None else (0, 0)
        self._known.add(name)
        self._send(Kind.SEGMENT, name.encode())
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
        """Seq of the newest entry that the standby has; 0 where it has none. What comes before ``have`` is whole."""
        counts = {one.segment: one.entries for one in have}
        for name in reversed(kept_names(self._store) if have else []):
            if name <= have[-1].segment:
                entries = IndexFile(layout.segments_folder(self._store) / name).entries
                count = counts.get(name, len(entries))
                if 0 < count <= len(entries):
                    return int(entries["seq"][count - 1])
        return 0

    def _require_all_sent(self) -> None:
        """A segment is left. An entry at its end that is not whole now is damage: nobody writes it any more."""
        if not self._name:
            return
        with storage_errors(layout.segments_folder(self._store) / self._name):
            stat = os.fstat(self._index_fd)
        if stat.st_nlink and (stat.st_size - HEADER_SIZE) // ENTRY_SIZE > self._entries:
            raise DamagedError(f"entry {self._entries} fails its checksum", place=f"{self._name}.index")

    # --- inside a segment

    def _send_new(self) -> bool:
        with storage_errors(layout.segments_folder(self._store) / self._name):
            stat = os.fstat(self._index_fd)
        count = max(0, stat.st_size - HEADER_SIZE) // ENTRY_SIZE
        if count < self._entries and stat.st_nlink:
            raise PeerUnavailableError(f"{self._name} has become shorter than what the standby has")
        if count <= self._entries or not stat.st_nlink:  # without a link: removed
            return False
        raw = self._pread(self._index_fd, min(count - self._entries, ENTRIES_AT_ONCE) * ENTRY_SIZE, self._entries)
        entries = np.frombuffer(raw, dtype=ENTRY)
        bad = first_bad(entries)
        if bad >= 0:
            if self._entries + bad == count - 1:
                entries = entries[:bad]  # being written at this moment
            else:
                raise DamagedError(f"entry {self._entries + bad} fails its checksum", place=f"{self._name}.index")
        if not len(entries):
            return False
        self._send_files()  # after the entries were seen: they may need what was written before them
        self._send_entries(entries)
        return True

    def _pread(self, fd: int, size: int, first_entry: int) -> bytes:
        with storage_errors(layout.segments_folder(self._store) / self._name):
            return files.layer.pread(fd, size, HEADER_SIZE + first_entry * ENTRY_SIZE)

    def _send_entries(self, entries: Entries) -> None:
        """Pieces of about a mebibyte, each with the bytes first."""
        ends = np.maximum.accumulate(entries["offset"] * (entries["length"] > 0) + entries["length"])
        start = 0
        while start < len(entries):
            limit = max(self._offset, int(ends[start])) + PIECE_BYTES
            stop = max(start + 1, int(np.searchsorted(ends, np.uint64(limit), side="right")))
            self._send_bytes(int(ends[stop - 1]))
            self.last_seq = max(self.last_seq, int(entries["seq"][stop - 1]))  # before its report can come
            self._send(Kind.ENTRIES, ENTRIES.pack(self._entries), entries[start:stop].tobytes())
            self._entries += stop - start
            start = stop

    def _send_bytes(self, end: int) -> None:
        """The segment's bytes up to ``end``, as far as they were not sent."""
        while self._offset < end:
            size = min(PIECE_BYTES, end - self._offset)
            with storage_errors(layout.segments_folder(self._store) / self._name):
                data = files.layer.pread(self._fd, size, self._offset)
            if len(data) < size:
                raise DamagedError(
                    f"ends at byte {self._offset + len(data)}, and its index says {end}", place=self._name
                )
            self._send(Kind.DATA, DATA.pack(self._offset), data)
            self._offset += size

    # --- small files

    def _send_files(self) -> None:
        found = small_files(self._store)
        require_there(self._store, found)
        if found == self._files:
            return
        for name, mark in found.items():
            if self._files.get(name) == mark:
                continue
            content = read_small(self._store, name)
            if content is None:
                continue
            if self._their_files.get(name) != zlib.crc32(content):
                self._send_file(name.encode(), content)
            self._their_files[name] = zlib.crc32(content)
        removed_seq = read_removed(self._store).seq
        for name in set(self._their_files).difference(found, LASTING):
            # What was here a moment ago goes by retention only; what never was is another store's.
            seq = Path(name).stem
            if name not in self._files or (seq.isdigit() and int(seq) <= removed_seq):
                self._send(Kind.FORGET, name.encode())
                del self._their_files[name]
        self._files = found

    def _send_file(self, name: bytes, content: bytes) -> None:
        """In as many frames as it takes: the definitions of thousands of tables are larger than one."""
        head, room = FILE.pack(len(name)) + name, MAX_PAYLOAD // 2
        while len(content) > room:
            self._send(Kind.FILE_PART, head, content[:room])
            content = content[room:]
        self._send(Kind.FILE, head, content)
