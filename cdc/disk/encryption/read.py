"""Opens files of row data, encrypted or not, by the offsets of their content.

The content of an encrypted file is decrypted into memory, in chunks of 64 KiB or less, and never written to a disk. A
function that opens a file raises OSError as ``open`` does, ConfigError if the process lacks the file's key, and
DamagedError, which names the place, for bytes that are not what was written.
"""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt

from cdc.base.errors import DamagedError
from cdc.disk import files
from cdc.disk.encryption.container import (
    BLOCK_BYTES,
    FRAME,
    HEADER_SIZE,
    LEAST_ROOM,
    MAGIC,
    Cipher,
    EncryptedFrame,
    EncryptionHeader,
    Read,
    cipher_of,
    frame_at,
    frames_of,
    full_block_of,
    full_content,
    is_encrypted,
    parse_header,
)

Bytes = npt.NDArray[np.uint8]

_BLOCKS_AT_ONCE = 16
_BUFFER_BYTES = 65536
_REMEDY = "Restore the file from a copy."


class EncryptedContent:
    """The content of an encrypted file of ``size`` bytes, which ``read`` reads. Knows the content by its offsets."""

    def __init__(self, read: Read, size: int, place: str) -> None:
        self.place = place
        self.header: EncryptionHeader = parse_header(read(HEADER_SIZE, 0), place)
        _require_name(self.header, place)
        self.file_size = size
        self._read = read
        self._cipher: Cipher | None = None
        self._end: tuple[int, int] | None = None
        self.covered = 0
        """The end of the content that :meth:`pieces` has yielded. A damaged frame may have replaced the rest."""
        self.fault: DamagedError | None = None
        """The first damage that a lenient reading met."""

    @property
    def cipher(self) -> Cipher:
        """The file's cipher. Raises ConfigError, DamagedError."""
        if self._cipher is None:
            self._cipher = cipher_of(self.header, self.place)
        return self._cipher

    @property
    def end(self) -> tuple[int, int]:
        """The end of the last whole frame: its offset in the content, and in the file. Looks at headers of frames
        only."""
        if self._end is None:
            self._end = self._find_end()
        return self._end

    @property
    def size(self) -> int:
        """Bytes of content. Bytes at the end of the file that are no whole frame count, so that such a file never
        looks complete."""
        content, in_file = self.end
        rest = self.file_size - in_file
        room = -in_file % BLOCK_BYTES
        return content if rest <= room < LEAST_ROOM else content + max(0, rest)

    def pieces(self, start: int, stop: int, *, lenient: bool = False) -> Iterator[tuple[int, bytes]]:
        """Yields decrypted frames that hold the content from ``start`` to ``stop``, each with its offset; where two
        overlap, the later one counts. Raises DamagedError at a frame that is not what was written, and at the end of
        the content; a ``lenient`` reading leaves such bytes out and notes the first :attr:`fault`."""
        if start >= stop:
            return
        self.covered = start
        covered: int | None = None
        for frame in self.frames(self.block_of(start)):
            if frame is None or not frame.is_whole:
                continue
            if frame.start >= stop or (covered is not None and covered >= stop):
                # Only a frame that is what was written tells that nothing after it belongs here. One that is not, and
                # says that it begins before the end, may have replaced what was read.
                data = self.cipher.open(frame)
                if data is None:
                    if frame.start < stop:
                        self.covered = max(start, min(self.covered, frame.start))
                        self._note(frame, lenient=lenient)
                    continue
                if frame.start >= stop:
                    break
            elif frame.length and frame.start + frame.length <= start:
                covered = frame.start + frame.length
                continue
            else:
                begun = start if covered is None else max(start, covered)
                if frame.start > begun:
                    self._missing(begun, frame, lenient=lenient)
                data = self.cipher.open(frame)
                if data is None:
                    self._note(frame, lenient=lenient)
            covered = frame.start + frame.length
            if data:
                yield frame.start, data
            self.covered = covered
        if covered is None or covered < stop:
            self._missing(max(start, covered or 0), None, lenient=lenient)

    def frames(self, block: int) -> Iterator[EncryptedFrame | None]:
        """Yields the frames from a block on; None in the place of bytes that are none, up to the end of their
        block."""
        at = block * BLOCK_BYTES
        while at < self.file_size:
            data = memoryview(self._read(min(_BLOCKS_AT_ONCE * BLOCK_BYTES, self.file_size - at), at))
            for pos in range(0, len(data), BLOCK_BYTES):
                yield from frames_of(data[pos : pos + BLOCK_BYTES], at + pos)
            if not data:
                return
            at += len(data) if len(data) % BLOCK_BYTES == 0 else BLOCK_BYTES * (len(data) // BLOCK_BYTES + 1)

    def block_of(self, offset: int) -> int:
        """Returns the last block that begins with a frame at or before an offset of the content."""
        low, high = 0, max(0, (self.file_size - 1) // BLOCK_BYTES)
        if self.header.has_full_blocks:
            return min(full_block_of(offset), high)
        while low < high:
            middle = (low + high + 1) // 2
            data = memoryview(self._read(FRAME.size, middle * BLOCK_BYTES))
            frame = frame_at(data, middle * BLOCK_BYTES, BLOCK_BYTES)
            if frame is not None and frame.start <= offset:
                low = middle
            else:
                high = middle - 1
        return low

    def _find_end(self) -> tuple[int, int]:
        if self.header.has_full_blocks:
            return full_content(self.file_size), self.file_size
        for block in range((self.file_size - 1) // BLOCK_BYTES, -1, -1):
            data = memoryview(self._read(BLOCK_BYTES, block * BLOCK_BYTES))
            last = None
            for frame in frames_of(data, block * BLOCK_BYTES):
                if frame is None or not frame.is_whole:
                    break
                last = frame
            if last is not None:
                return last.start + last.length, last.end
        return 0, HEADER_SIZE

    def _note(self, frame: EncryptedFrame, *, lenient: bool) -> None:
        self._fail(
            f"the encrypted bytes {frame.at} to {frame.end} of the file, which hold the bytes {frame.start} to "
            f"{frame.start + frame.length} of its content, are not what was written there",
            lenient=lenient,
        )

    def _missing(self, start: int, frame: EncryptedFrame | None, *, lenient: bool) -> None:
        if frame is None:
            self._fail(f"the encrypted content ends at byte {start}, or is damaged there", lenient=lenient)
        else:
            self._fail(
                f"the bytes {start} to {frame.start} of the encrypted content are damaged or missing, before byte "
                f"{frame.at} of the file",
                lenient=lenient,
            )

    def _fail(self, text: str, *, lenient: bool) -> None:
        error = DamagedError(text, place=self.place, remedy=_REMEDY)
        if not lenient:
            raise error
        self.fault = self.fault or error


def _require_name(header: EncryptionHeader, place: str) -> None:
    """Raises DamagedError for a file in the place of another one. A copy of its tail may have more in its name."""
    name = place.rpartition("/")[2]
    if header.name and name != header.name and not name.startswith(f"{header.name}."):
        raise DamagedError(
            f"is the encrypted file {header.name} under another name",
            place=place,
            remedy=f"Name it {header.name}; if a file was replaced by this one, restore that from a copy.",
        )


# --- files


@contextmanager
def _content(path: Path) -> Iterator[EncryptedContent]:
    fd = files.layer.open(path, os.O_RDONLY)
    try:
        yield _content_of(fd, path)
    finally:
        files.layer.close(fd)


def _content_of(fd: int, path: Path) -> EncryptedContent:
    def read(size: int, offset: int) -> bytes:
        return files.layer.pread(fd, size, offset)

    return EncryptedContent(read, os.fstat(fd).st_size, str(path))


def file_is_encrypted(path: Path) -> bool:
    """Returns whether a file is encrypted. Raises OSError."""
    with path.open("rb") as file:
        return is_encrypted(file.read(len(MAGIC)))


def header_of(path: Path) -> EncryptionHeader | None:
    """Returns the header of an encrypted file; None for another file. Raises OSError, DamagedError, VersionError."""
    with path.open("rb") as file:
        head = file.read(HEADER_SIZE)
    return parse_header(head, str(path)) if is_encrypted(head) else None


def content_size(path: Path) -> int:
    """Returns the bytes of content of a file, encrypted or not; needs no key. Raises OSError, DamagedError."""
    with path.open("rb") as file:
        head, size = file.read(HEADER_SIZE), os.fstat(file.fileno()).st_size
    if not is_encrypted(head):
        return size
    if len(head) < HEADER_SIZE:
        return 0
    with _content(path) as content:
        return content.size


def file_range(path: Path, start: int, stop: int) -> tuple[int, int]:
    """Returns the part of a file that holds the content from ``start`` to ``stop``. Raises OSError, DamagedError."""
    if not file_is_encrypted(path):
        return start, stop
    with _content(path) as content:
        first = last = None
        for frame in content.frames(content.block_of(start)):
            if frame is None or not frame.is_whole or frame.start >= stop:
                break
            if frame.start + frame.length > start and first is None:
                first = frame.at
            last = frame.end
        end = content.end[1] if last is None else last
        return (end if first is None else first), end


def open_content(path: Path) -> IO[bytes]:
    """Opens a file, encrypted or not, to read its content from the beginning or, after ``seek``, elsewhere."""
    file = path.open("rb")
    try:
        head = file.read(len(MAGIC))
        if not is_encrypted(head):
            file.seek(0)
            return file
    except BaseException:
        file.close()
        raise
    file.close()
    return cast(IO[bytes], io.BufferedReader(_RawContent(path), _BUFFER_BYTES))


class _RawContent(io.RawIOBase):
    """The content of an encrypted file as a file."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._fd = -1
        self._fd = files.layer.open(path, os.O_RDONLY)
        try:
            is_begun = os.fstat(self._fd).st_size >= HEADER_SIZE
            self._content = _content_of(self._fd, path) if is_begun else None
            self._size = 0 if self._content is None else self._content.end[0]
        except BaseException:
            self.close()
            raise
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = (0, self._at, self._size)[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        start, stop = self._at, min(self._at + len(buffer), self._size)
        if self._content is None or stop <= start:
            return 0
        try:
            fill(memoryview(buffer).cast("B")[: stop - start], start, self._content.pieces(start, stop))
        except DamagedError:
            # A buffer reads ahead: damage is an error where it is read, and not before.
            stop = min(stop, self._content.covered)
            if stop <= start:
                raise
        self._at = stop
        return stop - start

    def close(self) -> None:
        if not self.closed and self._fd >= 0:
            files.layer.close(self._fd)
            self._fd = -1
        super().close()


def fill(target: memoryview, start: int, pieces: Iterator[tuple[int, bytes]]) -> None:
    """Copies decrypted frames to ``target``, whose first byte has the offset ``start`` in the content."""
    stop = start + len(target)
    for offset, data in pieces:
        first, last = max(offset, start), min(offset + len(data), stop)
        if first < last:
            target[first - start : last - start] = memoryview(data)[first - offset : last - offset]


class OpenContent:
    """The content of a file by an open descriptor, which the caller closes; the file may grow meanwhile."""

    def __init__(self, fd: int, path: Path) -> None:
        self._fd, self._path = fd, path
        self._is_encrypted = is_encrypted(files.layer.pread(fd, len(MAGIC), 0))

    @property
    def size(self) -> int:
        """Bytes of content at this moment."""
        return _content_of(self._fd, self._path).size if self._is_encrypted else os.fstat(self._fd).st_size

    def pread(self, size: int, offset: int) -> bytes:
        """Returns up to ``size`` bytes of the content from ``offset`` on."""
        if not self._is_encrypted:
            return files.layer.pread(self._fd, size, offset)
        content = _content_of(self._fd, self._path)
        data = bytearray(max(0, min(size, content.end[0] - offset)))
        fill(memoryview(data), offset, content.pieces(offset, offset + len(data)))
        return bytes(data)


def read_content(path: Path, size: int, offset: int) -> bytes:
    """Returns up to ``size`` bytes of the content from ``offset`` on."""
    with open_content(path) as file:
        file.seek(offset)
        return file.read(size)


# --- content in memory


class MappedContent:
    """The content of a file as an array: a mapping of the file, or memory into which :meth:`load` decrypts.

    Memory that nothing was decrypted into is zeros, and takes none.
    """

    def __init__(self, buf: Bytes, content: EncryptedContent | None = None, memory: mmap.mmap | None = None) -> None:
        self.buf = buf
        """The content; what :meth:`load` has not decrypted yet is zeros."""
        self._content = content
        self._memory = memory
        self._target = memoryview(b"" if memory is None else memory)

    @property
    def fault(self) -> DamagedError | None:
        """The first damage that a lenient loading met."""
        return None if self._content is None else self._content.fault

    @property
    def is_encrypted(self) -> bool:
        return self._content is not None

    def load(self, start: int, stop: int, *, lenient: bool = False) -> None:
        """Makes the content from ``start`` to ``stop`` readable in :attr:`buf`; nothing to do for a file that is not
        encrypted. Raises ConfigError, and DamagedError unless ``lenient``: damaged bytes are zeros then."""
        stop = min(stop, len(self.buf))
        if self._content is None or start >= stop:
            return
        fill(self._target[start:stop], start, self._content.pieces(start, stop, lenient=lenient))

    def load_all(self, *, lenient: bool = False) -> Bytes:
        """Makes all of the content readable, and returns it."""
        self.load(0, len(self.buf), lenient=lenient)
        return self.buf

    def release(self, start: int, stop: int) -> None:
        """Gives back the memory of content that is not needed any more; it is zeros then."""
        if self._memory is None:
            return
        first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
        last = stop // mmap.PAGESIZE * mmap.PAGESIZE
        if first < last:
            self._memory.madvise(mmap.MADV_DONTNEED, first, last - first)


def map_content(path: Path) -> MappedContent:
    """Maps a file, encrypted or not; an empty one, too."""
    if path.stat().st_size == 0:
        return MappedContent(np.zeros(0, dtype=np.uint8))
    if not file_is_encrypted(path):
        return MappedContent(np.memmap(path, dtype=np.uint8, mode="r"))
    fd = files.layer.open(path, os.O_RDONLY)
    held = _OpenFile(fd)
    try:
        content = EncryptedContent(held.read, os.fstat(fd).st_size, str(path))
        size = content.size
    except BaseException:
        held.close()
        raise
    if size == 0:
        held.close()
        return MappedContent(np.zeros(0, dtype=np.uint8), content)
    content.cipher  # noqa: B018  # a missing key is told before anything is read
    buf, memory = empty_memory(size)
    return MappedContent(buf, content, memory)


class _OpenFile:
    """A descriptor that is closed with the last reference to it."""

    def __init__(self, fd: int) -> None:
        self._fd, self._close = fd, files.layer.close
        self._pread = files.layer.pread

    def read(self, size: int, offset: int) -> bytes:
        return self._pread(self._fd, size, offset)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._close(fd)

    def __del__(self) -> None:
        self.close()


def empty_memory(size: int) -> tuple[Bytes, mmap.mmap]:
    """Returns zeros that take memory only where something is written, and a view of them that cannot be written to."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
    memory = mmap.mmap(-1, size, flags=flags)
    buf: Bytes = np.frombuffer(memory, dtype=np.uint8)
    buf.flags.writeable = False
    return buf, memory
