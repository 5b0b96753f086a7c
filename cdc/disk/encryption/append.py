"""Writes files of row data by the offsets of their content: as they are, or encrypted.

An encrypted file only grows. Content that was flushed is never written a second time: content that is cut off inside a
frame leaves the frame as it is, and a mark behind it. Only :meth:`AppendFile.overwrite` replaces a frame in its place,
with a new nonce, and its caller sees to it that nothing in the frame counts yet.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from cdc.base.errors import DamagedError
from cdc.disk import files
from cdc.disk.encryption import keys
from cdc.disk.encryption.container import (
    BLOCK_BYTES,
    FULL_BLOCKS,
    HEADER_SIZE,
    LEAST_ROOM,
    MAGIC,
    MOST_FRAMES,
    OVERHEAD,
    Cipher,
    EncryptedFrame,
    cipher_of,
    is_encrypted,
    make_header,
)
from cdc.disk.encryption.read import EncryptedContent, fill

_CHUNK_BYTES = 1 << 20


class AppendFile(Protocol):
    """A file that is being written; ``size`` and all offsets are those of its content. Methods raise OSError."""

    size: int
    key_id: str
    """The id of the key that wraps the file's own; empty: the file is not encrypted."""

    def append(self, data: memoryview, boundary: int = 0) -> None:
        """Appends content. A frame that ends at or before ``boundary`` holds nothing that comes after it. After an
        error, call :meth:`restore`."""

    def restore(self) -> None:
        """Removes what a failed :meth:`append` has written."""

    def truncate(self, size: int) -> None:
        """Cuts the content off at ``size``."""

    def pread(self, size: int, offset: int) -> bytes:
        """Returns up to ``size`` bytes of the content."""

    def overwrite(self, data: bytes, offset: int) -> None:
        """Replaces content that no reader may use yet."""

    def sync(self) -> None:
        """Flushes all that was written (fdatasync)."""

    def close(self) -> None:
        """Closes the descriptor."""


class PlainFile:
    """A file that is not encrypted."""

    key_id = ""

    def __init__(self, fd: int, size: int) -> None:
        self._fd = fd
        self.size = size

    def append(self, data: memoryview, boundary: int = 0) -> None:
        files.write_all(self._fd, data)
        self.size += len(data)

    def restore(self) -> None:
        self.truncate(self.size)

    def truncate(self, size: int) -> None:
        files.layer.ftruncate(self._fd, size)
        files.layer.seek(self._fd, size)
        self.size = size

    def pread(self, size: int, offset: int) -> bytes:
        return files.layer.pread(self._fd, size, offset)

    def overwrite(self, data: bytes, offset: int) -> None:
        files.pwrite_all(self._fd, data, offset)

    def sync(self) -> None:
        files.layer.fdatasync(self._fd)

    def close(self) -> None:
        files.layer.close(self._fd)


class EncryptedFile:
    """An encrypted file."""

    def __init__(self, fd: int, path: Path, cipher: Cipher, key_id: str, size: int, end: int) -> None:
        self._fd = fd
        self._path = path
        self._cipher = cipher
        self.key_id = key_id
        self.size = size
        self._end = end
        """The offset in the file at which the next frame begins."""
        self._frames = Frames(cipher)

    def append(self, data: memoryview, boundary: int = 0) -> None:
        cut = boundary - self.size
        parts = (data[:cut], data[cut:]) if 0 < cut < len(data) else (data,)
        pieces: list[bytes] = []
        at, start = self._end, self.size
        for part in parts:
            at = self._frames.add(pieces, part, at, start)
            start += len(part)
        files.pwrite_all(self._fd, b"".join(pieces), self._end)
        self._end, self.size = at, start

    def restore(self) -> None:
        files.layer.ftruncate(self._fd, self._end)

    def truncate(self, size: int) -> None:
        frame = self._last_before(size)
        end = HEADER_SIZE if frame is None else frame.end
        files.layer.ftruncate(self._fd, end)
        self._end, self.size = end, size
        if frame is not None and frame.start + frame.length > size:
            pieces: list[bytes] = []
            self._end = self._frames.mark(pieces, end, size)
            files.pwrite_all(self._fd, b"".join(pieces), end)

    def pread(self, size: int, offset: int) -> bytes:
        stop = min(offset + size, self.size)
        data = bytearray(max(0, stop - offset))
        fill(memoryview(data), offset, self._content().pieces(offset, stop))
        return bytes(data)

    def overwrite(self, data: bytes, offset: int) -> None:
        stop = offset + len(data)
        frames = self._frames_between(offset, stop)
        for frame, following in zip(frames, [*(later_frame.start for later_frame in frames[1:]), stop], strict=True):
            # What a later frame replaces stays as it is.
            first, last = max(offset, frame.start), min(stop, frame.start + frame.length, following)
            if first >= last:
                continue
            content = self._cipher.open(frame)
            if content is None:
                raise DamagedError(f"the frame at byte {frame.at} is not what was written there", place=str(self._path))
            changed = bytearray(content)
            changed[first - frame.start : last - frame.start] = data[first - offset : last - offset]
            head, body = self._cipher.seal(bytes(changed), frame.at, *self._frames.nonce(), frame.start)
            files.pwrite_all(self._fd, head + body, frame.at)

    def sync(self) -> None:
        files.layer.fdatasync(self._fd)

    def close(self) -> None:
        files.layer.close(self._fd)

    def _content(self) -> EncryptedContent:
        return EncryptedContent(
            lambda size, offset: files.layer.pread(self._fd, size, offset), self._end, str(self._path)
        )

    def _frames_between(self, start: int, stop: int) -> list[EncryptedFrame]:
        """Returns the frames that hold the content from ``start`` to ``stop``, and some before them."""
        content, frames = self._content(), []
        for frame in content.frames(content.block_of(start)):
            if frame is None or not frame.is_whole:
                raise DamagedError("the encrypted file is not what was written", place=str(self._path))
            if frame.start >= stop:
                break
            frames.append(frame)
        return frames

    def _last_before(self, size: int) -> EncryptedFrame | None:
        """Returns the last frame that begins before this offset of the content."""
        last = None
        if size > 0:
            content = self._content()
            for frame in content.frames(content.block_of(size - 1)):
                if frame is None or not frame.is_whole or frame.start >= size:
                    break
                last = frame
        return last


class Frames:
    """Makes frames, each with a nonce of its own: a number that is drawn once, and a counter."""

    def __init__(self, cipher: Cipher) -> None:
        self._cipher = cipher
        self._opening, self._counter = _new_opening(), 0

    def nonce(self) -> tuple[int, int]:
        """Returns the counter and the opening for a new frame."""
        if self._counter == MOST_FRAMES:
            self._opening, self._counter = _new_opening(), 0
        self._counter += 1
        return self._counter - 1, self._opening

    def add(self, pieces: list[bytes], data: memoryview, at: int, start: int) -> int:
        """Adds the frames of some content, which has the offset ``start``, to ``pieces``; the first one comes at byte
        ``at`` of the file. Returns the end in the file."""
        done = 0
        while done < len(data):
            at = self._next(pieces, at)
            part = data[done : done + BLOCK_BYTES - at % BLOCK_BYTES - OVERHEAD]
            pieces += self._cipher.seal(part, at, *self.nonce(), start + done)
            at += OVERHEAD + len(part)
            done += len(part)
        return at

    def mark(self, pieces: list[bytes], at: int, start: int) -> int:
        """Adds a mark that the content ends at ``start``. Returns the end in the file."""
        at = self._next(pieces, at)
        pieces += self._cipher.seal(b"", at, *self.nonce(), start)
        return at + OVERHEAD

    def _next(self, pieces: list[bytes], at: int) -> int:
        """Fills the end of a block that has too little room. Returns where the next frame begins."""
        room = -at % BLOCK_BYTES
        if 0 < room < LEAST_ROOM:
            pieces.append(bytes(room))
            return at + room
        return at


def _new_opening() -> int:
    return secrets.randbits(64) or 1


def create(path: Path, fd: int, data: bytes | memoryview = b"") -> AppendFile:
    """Makes an empty, open file one to append to, and writes its first content; with the key that is registered for
    its folder, if there is one. Raises OSError, ConfigError, RetryableError."""
    key = keys.writing_key(path)
    file: AppendFile
    if key is None:
        file = PlainFile(fd, 0)
    else:
        header, cipher = make_header(key, path.name)
        files.pwrite_all(fd, header.data, 0)
        file = EncryptedFile(fd, path, cipher, key.id, 0, HEADER_SIZE)
    if data:
        file.append(memoryview(data))
    return file


def reopen(path: Path, fd: int) -> AppendFile:
    """Makes an open file with whole frames one to append to, behind its content. Raises OSError, ConfigError,
    DamagedError."""
    size = files.layer.seek(fd, 0, os.SEEK_END)
    if not is_encrypted(files.layer.pread(fd, len(MAGIC), 0)):
        return PlainFile(fd, size)
    content = EncryptedContent(lambda count, offset: files.layer.pread(fd, count, offset), size, str(path))
    cipher, (content_bytes, end) = cipher_of(content.header, str(path)), content.end
    return EncryptedFile(fd, path, cipher, content.header.key_id, content_bytes, end)


def truncate_content(path: Path, fd: int, size: int) -> None:
    """Cuts the content of an open file off at ``size``. Raises OSError, ConfigError, DamagedError."""
    reopen(path, fd).truncate(size)


class WholeFile:
    """The bytes of an encrypted file that is written at once, from its beginning to its end. The same content gives the
    same bytes each time."""

    def __init__(self, key: keys.WrappingKey) -> None:
        self._header, self._cipher = make_header(key, "", flags=FULL_BLOCKS)
        self._opening = _new_opening()

    def bytes_of(self, content: Iterable[bytes | memoryview]) -> Iterator[bytes]:
        """Yields the file's bytes."""
        frames = Frames(self._cipher)
        frames._opening = self._opening
        yield self._header.data
        held, at, start = bytearray(), HEADER_SIZE, 0
        for chunk in content:
            held += chunk
            if len(held) >= _CHUNK_BYTES:
                room = BLOCK_BYTES - at % BLOCK_BYTES - OVERHEAD
                full = room + (len(held) - room) // (BLOCK_BYTES - OVERHEAD) * (BLOCK_BYTES - OVERHEAD)
                pieces: list[bytes] = []
                with memoryview(held) as view:
                    at = frames.add(pieces, view[:full], at, start)
                del held[:full]
                start += full
                yield b"".join(pieces)
        pieces = []
        frames.add(pieces, memoryview(held), at, start)
        yield b"".join(pieces)
