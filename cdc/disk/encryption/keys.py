"""The keys of this process: those that encrypt new files below a folder, and those that open existing files.

The configuration of a destination registers its keys when it is loaded; a secret is read at its first use. Spark's
executors get the keys that their driver knows (:func:`remember`).
"""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from cdc.base.errors import CdcError, ConfigError

KEY_BYTES = 32
ID_BYTES = 8
_ID_LABEL = b"towpath key id"


@dataclass(frozen=True)
class WrappingKey:
    """A key that wraps the keys of files; ``repr`` shows its id only."""

    id: str
    """16 hexadecimal digits, which the header of each file names."""
    secret: bytes = field(repr=False)

    @classmethod
    def of(cls, secret: bytes) -> WrappingKey:
        """Returns the key of these 32 bytes."""
        return cls(hmac.digest(secret, _ID_LABEL, hashlib.sha256)[:ID_BYTES].hex(), secret)


@dataclass(frozen=True)
class KeySources:
    """The keys that a configuration names. Two of equal ``identity`` are the same."""

    identity: Hashable
    current: Callable[[], bytes] | None = field(compare=False)
    """Returns the 32 bytes of the key for new files; None: they are not encrypted. Raises ConfigError,
    RetryableError."""
    old: tuple[Callable[[], bytes], ...] = field(default=(), compare=False)
    """The same of keys that only open files."""

    @property
    def all(self) -> tuple[Callable[[], bytes], ...]:
        """All of them, the current one first."""
        return self.old if self.current is None else (self.current, *self.old)


_lock = threading.RLock()
_sources: dict[str, KeySources] = {}
"""The sources of keys by the folder, or the URI, below which files are encrypted."""
_current: dict[str, WrappingKey] = {}
_known: dict[str, WrappingKey] = {}


def register(folder: Path | str, sources: KeySources | None) -> None:
    """Registers the keys for files below a folder or URI; None: new files there are not encrypted. Keys that were
    registered before still open files."""
    name = _name(folder)
    with _lock:
        if _sources.get(name) == sources:
            return
        _sources.pop(name, None)
        _current.pop(name, None)
        if sources is not None:
            _sources[name] = sources


@contextmanager
def like(folder: Path, other: Path) -> Iterator[None]:
    """Encrypts new files below ``folder`` as those below ``other`` are, while the context lasts."""
    with _lock:
        other_folder = _registered(other)
    register(folder, None if other_folder is None else _sources[other_folder])
    try:
        yield
    finally:
        register(folder, None)


def has_sources() -> bool:
    """Returns whether any keys are registered."""
    with _lock:
        return bool(_sources)


def writing_key(path: Path | str) -> WrappingKey | None:
    """Returns the key for a new file; None if it is not to be encrypted. Raises ConfigError, RetryableError."""
    with _lock:
        folder = _registered(path)
        source = None if folder is None else _sources[folder].current
        if folder is None or source is None:
            return None
        if folder not in _current:
            _current[folder] = _learn(source)
        return _current[folder]


def find(key_id: str, place: str) -> WrappingKey:
    """Returns the key of this id, which opens the file ``place``. Raises ConfigError if this process has none."""
    with _lock:
        if key_id in _known:
            return _known[key_id]
        failure: ConfigError | None = None
        for sources in _sources.values():
            for source in sources.all:
                try:
                    key = _learn(source)
                except ConfigError as error:  # another source may have the key
                    failure = failure or error
                    continue
                if key.id == key_id:
                    return key
        if failure is not None:
            raise failure
        if not _sources and not _known:
            raise ConfigError(
                f"is encrypted with the key {key_id}, and this process has no key",
                place=place,
                remedy="Name the key in store.encryption of the destination's configuration; `cdc decode` and `cdc "
                "inspect` read it with --decrypt.",
            )
        ids = ", ".join(sorted(_known)) or "none"
        raise ConfigError(
            f"is encrypted with the key {key_id}, which is not among those that are configured ({ids})",
            place=place,
            remedy="Add that key to store.encryption.old_keys.",
        )


def known() -> tuple[WrappingKey, ...]:
    """Returns all keys that this process can read, for other processes that read its files."""
    with _lock:
        for sources in _sources.values():
            for source in sources.all:
                with suppress(CdcError):  # perhaps of another destination; whatever lacks its key says so
                    _learn(source)
        return tuple(_known.values())


def remember(keys: Iterable[WrappingKey]) -> None:
    """Adds keys that open files."""
    with _lock:
        _known.update((key.id, key) for key in keys)


@contextmanager
def isolated() -> Iterator[None]:
    """Begins without any key, and restores those of before at the end of the context."""
    global _sources, _current, _known
    before = _sources, _current, _known
    _sources, _current, _known = {}, {}, {}
    try:
        yield
    finally:
        _sources, _current, _known = before


def _learn(source: Callable[[], bytes]) -> WrappingKey:
    key = WrappingKey.of(source())
    _known[key.id] = key
    return key


def _registered(path: Path | str) -> str | None:
    """Returns the innermost registered folder or URI that holds a path."""
    name = _name(path)
    folders = [folder for folder in _sources if name == folder or name.startswith(f"{folder}/")]
    return max(folders, key=len, default=None)


def _name(path: Path | str) -> str:
    if isinstance(path, str) and "://" in path:
        return path.rstrip("/")
    return str(Path(path).absolute()).rstrip("/")
