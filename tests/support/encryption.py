"""Keys for tests, and stores that are encrypted with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from cdc.disk.encryption import keys
from cdc.disk.encryption.keys import KeySources, WrappingKey

FIRST, SECOND = bytes(range(32)), bytes(range(1, 33))


def use(folder: Path | str, current: bytes | None, *old: bytes) -> None:
    """Registers a key for new files below a folder, and old ones."""
    sources = KeySources(
        (str(folder), current, old),
        None if current is None else partial(bytes, current),
        tuple(partial(bytes, key) for key in old),
    )
    keys.register(folder, sources)


@contextmanager
def encrypted(folder: Path | str, current: bytes | None = FIRST, *old: bytes) -> Iterator[WrappingKey]:
    """In this context only these keys are known, and new files below the folder are encrypted. Yields the current
    key."""
    with keys.isolated():
        use(folder, current, *old)
        yield WrappingKey.of(FIRST if current is None else current)
