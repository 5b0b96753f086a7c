"""The layout of an encrypted file: a header, then frames in blocks of 64 KiB (``docs/formats/encrypted.md``).

Each file has a key of its own, which the key of the configuration wraps. A frame is a run of the content, encrypted by
AES-256-GCM; no frame crosses the end of a block, so a reader finds an offset of the content by a search among blocks.
The nonce is a number drawn at each opening for writing, and a counter. A frame's own header and its place in the file
are authenticated with it.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from cdc.base.errors import DamagedError, VersionError
from cdc.disk.encryption.keys import KEY_BYTES, WrappingKey, find

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

MAGIC = b"TPEN"
VERSION = 1
HEADER_SIZE = 256
BLOCK_BYTES = 65536
FULL_BLOCKS = 1
"""Flag of a file that was written at once: each block but the last is one frame that fills it."""
FRAME = struct.Struct("<IIQQ")
"""Header of a frame: bytes of content, counter, opening, offset in the content."""
TAG_BYTES = 16
OVERHEAD = FRAME.size + TAG_BYTES
LEAST_ROOM = 64
"""With less room than this at the end of a block, zeros fill it."""
FIRST_FULL = BLOCK_BYTES - HEADER_SIZE - OVERHEAD
"""Bytes of content in a full first block."""
FULL = BLOCK_BYTES - OVERHEAD
"""Bytes of content in any other full block."""
MOST_FRAMES = 1 << 32
"""Values of the counter."""

_HEAD = struct.Struct("<4sHHII8s12s48s128s")
_NAME_BYTES = 128
_WRAPPED = slice(36, 84)
_PLACE = struct.Struct("<Q")

Read = Callable[[int, int], bytes]
"""Returns up to ``size`` bytes of the file from an offset on: ``read(size, offset)``."""


@dataclass(frozen=True)
class EncryptionHeader:
    """The header of an encrypted file."""

    key_id: str
    flags: int
    name: str
    """The name that the file was given; empty: it is not bound to one."""
    data: bytes
    """The whole header."""

    @property
    def has_full_blocks(self) -> bool:
        return bool(self.flags & FULL_BLOCKS)


class EncryptedFrame(NamedTuple):
    """A frame as its header describes it."""

    at: int
    """The offset in the file at which it begins."""
    length: int
    """Bytes of content; 0: a mark that the content ends at ``start``, whatever the frame before it holds."""
    counter: int
    opening: int
    start: int
    """Offset of its first byte in the content."""
    body: memoryview
    """The encrypted bytes and the tag; shorter than that if the file ends before."""

    @property
    def end(self) -> int:
        """The offset in the file at which it ends."""
        return self.at + OVERHEAD + self.length

    @property
    def is_whole(self) -> bool:
        return len(self.body) == self.length + TAG_BYTES


class Cipher:
    """Encrypts and decrypts the frames of one file."""

    def __init__(self, file_key: bytes) -> None:
        self._gcm = _gcm(file_key)

    def seal(self, data: bytes | memoryview, at: int, counter: int, opening: int, start: int) -> tuple[bytes, bytes]:
        """Returns header and body of a frame that begins at ``at`` in the file."""
        head = FRAME.pack(len(data), counter, opening, start)
        return head, self._gcm.encrypt(head[4:16], data, _PLACE.pack(at) + head)

    def open(self, frame: EncryptedFrame) -> bytes | None:
        """Returns the content of a frame; None if it is not what was written there."""
        from cryptography.exceptions import InvalidTag

        head = FRAME.pack(frame.length, frame.counter, frame.opening, frame.start)
        try:
            return self._gcm.decrypt(head[4:16], frame.body, _PLACE.pack(frame.at) + head)
        except InvalidTag:
            return None


def _gcm(secret: bytes) -> AESGCM:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # slow to import, and most stores are not encrypted

    return AESGCM(secret)


def is_encrypted(head: bytes) -> bool:
    """Returns whether a file begins like an encrypted one."""
    return head[: len(MAGIC)] == MAGIC


def make_header(key: WrappingKey, name: str, *, flags: int = 0) -> tuple[EncryptionHeader, Cipher]:
    """Returns the header of a new file, and the cipher of its new key."""
    file_key, nonce = os.urandom(KEY_BYTES), os.urandom(12)
    label = name.encode()
    if len(label) > _NAME_BYTES:
        raise ValueError(f"the name {name!r} is longer than {_NAME_BYTES} bytes")
    fields = [MAGIC, VERSION, HEADER_SIZE, BLOCK_BYTES, flags, bytes.fromhex(key.id), nonce, bytes(48), label]
    empty = _HEAD.pack(*fields).ljust(HEADER_SIZE - 4, b"\0")
    fields[7] = _gcm(key.secret).encrypt(nonce, file_key, _unwrapped(empty))
    data = _HEAD.pack(*fields).ljust(HEADER_SIZE - 4, b"\0")
    data += zlib.crc32(data).to_bytes(4, "little")
    return EncryptionHeader(key.id, flags, name, data), Cipher(file_key)


def parse_header(data: bytes, place: str) -> EncryptionHeader:
    """Parses the header of an encrypted file. Raises DamagedError, VersionError."""
    remedy = "Restore the file from a copy."
    if len(data) < HEADER_SIZE:
        raise DamagedError(f"is encrypted, and ends inside its header of {HEADER_SIZE} bytes", place=place)
    _, version, size, block, flags, key_id, _, _, name = _HEAD.unpack_from(data)
    if zlib.crc32(data[: HEADER_SIZE - 4]).to_bytes(4, "little") != data[HEADER_SIZE - 4 : HEADER_SIZE]:
        raise DamagedError("the header of this encrypted file fails its checksum", place=place, remedy=remedy)
    if version > VERSION:
        raise VersionError(
            f"is an encrypted file of format version {version}; this Towpath knows version {VERSION}",
            place=place,
            remedy="Use the Towpath that wrote it, or a newer one.",
        )
    if (size, block) != (HEADER_SIZE, BLOCK_BYTES):
        raise DamagedError("the header of this encrypted file contradicts its version", place=place, remedy=remedy)
    text = name.rstrip(b"\0").decode("utf-8", "replace")
    return EncryptionHeader(key_id.hex(), flags, text, data[:HEADER_SIZE])


def cipher_of(header: EncryptionHeader, place: str) -> Cipher:
    """Returns the cipher of a file. Raises ConfigError if this process lacks its key, DamagedError if the key does not
    open the header."""
    cipher = _unwrap(header.data, find(header.key_id, place))
    if cipher is None:
        raise DamagedError(
            f"the header of this encrypted file is not the one that was written with the key {header.key_id}",
            place=place,
            remedy="Restore the file from a copy.",
        )
    return cipher


@lru_cache(maxsize=256)
def _unwrap(data: bytes, key: WrappingKey) -> Cipher | None:
    from cryptography.exceptions import InvalidTag

    nonce, wrapped = data[24:36], data[_WRAPPED]
    try:
        return Cipher(_gcm(key.secret).decrypt(nonce, wrapped, _unwrapped(data)))
    except InvalidTag:
        return None


def _unwrapped(data: bytes) -> bytes:
    """The bytes of a header that are authenticated with the wrapped key: all others, without the checksum."""
    return data[: _WRAPPED.start] + data[_WRAPPED.stop : HEADER_SIZE - 4]


# --- frames


def frames_of(block: memoryview, block_at: int) -> Iterator[EncryptedFrame | None]:
    """Yields the frames of a block, which begins at ``block_at`` in the file. Yields None, and ends, at bytes that
    cannot be a frame; at the end of the file there are none."""
    pos = HEADER_SIZE if block_at == 0 else 0
    while pos < len(block):
        room = BLOCK_BYTES - pos
        if room < LEAST_ROOM:
            if any(block[pos:]):
                yield None
            return
        frame = frame_at(block[pos:], block_at + pos, room)
        yield frame
        if frame is None:
            return
        pos += OVERHEAD + frame.length


def frame_at(data: memoryview, at: int, room: int) -> EncryptedFrame | None:
    """Returns the frame at the front of ``data``, for which the block has ``room``; None if there is none."""
    if len(data) < FRAME.size:
        return None
    length, counter, opening, start = FRAME.unpack_from(data)
    if opening == 0 or length + OVERHEAD > room:
        return None
    return EncryptedFrame(at, length, counter, opening, start, data[FRAME.size : OVERHEAD + length])


def full_block_of(offset: int) -> int:
    """Returns the number of the block with this offset of the content, in a file of full blocks."""
    return 0 if offset < FIRST_FULL else 1 + (offset - FIRST_FULL) // FULL


def full_size(content_bytes: int) -> int:
    """Returns the size of a file of full blocks."""
    if content_bytes == 0:
        return HEADER_SIZE
    last = full_block_of(content_bytes - 1)
    before = FIRST_FULL + (last - 1) * FULL if last else 0
    return last * BLOCK_BYTES + (0 if last else HEADER_SIZE) + OVERHEAD + content_bytes - before


def full_content(file_bytes: int) -> int:
    """Returns the bytes of content in a file of full blocks."""
    if file_bytes <= HEADER_SIZE:
        return 0
    last = (file_bytes - 1) // BLOCK_BYTES
    if last == 0:
        return max(0, file_bytes - HEADER_SIZE - OVERHEAD)
    return FIRST_FULL + (last - 1) * FULL + max(0, file_bytes - last * BLOCK_BYTES - OVERHEAD)


def ranges_of(runs: list[tuple[int, int]], content_bytes: int) -> list[tuple[int, int]]:
    """Returns the ranges of a file of full blocks, its header among them, that hold ranges of its content, which has
    ``content_bytes``; neighbours are joined."""
    ranges, size = [(0, HEADER_SIZE)], full_size(content_bytes)
    for start, stop in runs:
        if start >= stop:
            continue
        first, last = full_block_of(start) * BLOCK_BYTES, min(size, (full_block_of(stop - 1) + 1) * BLOCK_BYTES)
        if first <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], last))
        else:
            ranges.append((first, last))
    return ranges
