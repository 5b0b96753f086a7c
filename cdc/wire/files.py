"""Files of a store that a server serves, by URIs like ``towpath+https://HOST:PORT/v1/shop/segments/NAME.binlog``.

A URI holds no token: the process must know the connection (:func:`cdc.wire.connection.remember`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

import numpy as np

from cdc.base.errors import DamagedError
from cdc.binlog.entry import ENTRY, ENTRY_SIZE
from cdc.wire.connection import known_at
from cdc.wire.protocol import MOST_BYTES

if TYPE_CHECKING:
    from cdc.wire.connection import Connection

_SCHEME = "towpath+"
_PLACE_PARTS = 5
"""``https:``, an empty one, the host, the version and the destination."""


class ServedFile(NamedTuple):
    """A file in the store of a server."""

    connection: Connection
    path: str
    """Its path below the store's folder."""

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def read(self) -> bytes:
        """Returns the whole file, which is small."""
        return self.connection.read(self.path)

    def ranges(self, runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, bytes]]:
        """Yields the bytes of ranges (start, stop), in pieces of a few megabytes, each with its offset."""
        for first, last in runs:
            for start in range(first, last, MOST_BYTES):
                yield start, self.connection.read(self.path, start, min(start + MOST_BYTES, last))

    def entries(self, offset: int, length: int) -> Iterator[bytes]:
        """Yields the index entries of a byte range of the segment, as they are in its index, many at a time."""
        stop = offset + length
        while offset < stop:
            entries = self.connection.fetch(
                "range_entries", {"path": self.path, "offset": offset, "length": stop - offset}
            )
            if not entries or len(entries) % ENTRY_SIZE:
                return  # the caller misses entries
            yield entries
            last = np.frombuffer(entries[-ENTRY_SIZE:], dtype=ENTRY)[0]
            if int(last["offset"]) < offset:
                return
            offset = int(last["offset"]) + int(last["length"])


def is_served(path: object) -> bool:
    """Whether a path is the URI of a server's file."""
    return isinstance(path, str) and path.startswith((f"{_SCHEME}http://", f"{_SCHEME}https://"))


def servers_of(paths: Iterable[str]) -> tuple[Connection, ...]:
    """Returns the connections to the servers that files are read from, for other processes that read them."""
    return tuple({served_file(path).connection: None for path in paths if is_served(path)})


def uri_of(connection: Connection, path: str) -> str:
    """Returns the URI of a file by its path below the store's folder."""
    return f"{_SCHEME}{connection.place}/{path}"


def served_file(uri: str) -> ServedFile:
    """Returns the file of a URI. Raises ConfigError if this process has no connection to its server."""
    parts = uri.removeprefix(_SCHEME).split("/", _PLACE_PARTS)
    if len(parts) <= _PLACE_PARTS:
        raise DamagedError("is not the URI of a file in a store", place=uri)
    return ServedFile(known_at("/".join(parts[:_PLACE_PARTS])), unquote(parts[_PLACE_PARTS]))
