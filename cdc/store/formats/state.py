"""The small files of the store's writer: ``store.json``'s beginning, ``tables.json``, ``capture.json`` and ``lock``.

A store that was begun again after a reader's cursor looks like any other one. Its recorded beginning tells the reader
that earlier transactions are missing, so it is refused instead of passing over the gap (``docs/formats/store.md``).
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from cdc.base.errors import DamagedError, LeaseHeldError, StorageError
from cdc.base.patterns import lower_name
from cdc.binlog.positions import make_file_name, split_seq
from cdc.disk import files
from cdc.disk.durable import find_holder, replace_file
from cdc.store.formats import layout

# --- where the store begins

Reason: TypeAlias = Literal["first start", "started again", "not recorded"]
"""``first start``: the destination had no store before. ``started again``: its earlier store is gone. ``not
recorded``: the store has format version 1, or was filled without capture; its first segment tells where it begins."""


@dataclass(frozen=True)
class Beginning:
    """The store holds every transaction after ``seq``, except those that retention removed or that were lost."""

    seq: int
    """Exclusive."""
    file: str
    pos: int
    """The position in the source's binlog from which capture began to read."""
    gtid: str | None
    """The source's GTID set at that position, if the source could tell."""
    time_us: int
    """When capture began, µs since 1970, by this machine's clock; 0: not known."""
    reason: Reason


def read_beginning(store: Path, base_name: str = "binlog") -> Beginning | None:
    """Returns the recorded beginning, else the one that the first segment's name tells; None if the store has no
    segment yet. Raises DamagedError, VersionError, StorageError."""
    path = store / "store.json"
    document = layout.read_json(path)
    layout.check(store, document)
    begins: Any = None if document is None else document.get("begins")
    if begins is not None:
        return _parse_beginning(begins, path)
    segments = layout.list_segments(store)
    if not segments:
        return None
    seq = layout.segment_start(segments[0])
    assert seq is not None, "only names that say where they begin are listed"
    parts = split_seq(seq)
    return Beginning(seq, make_file_name(base_name, parts.file_number), parts.offset, None, 0, "not recorded")


def record_beginning(store: Path, beginning: Beginning) -> None:
    """Records the beginning durably, before anything becomes visible. The caller is the store's writer, and the store
    holds no transaction. A reason that is recorded already stays, because it survives a start that stored nothing."""
    path = store / "store.json"
    document: dict[str, Any] = layout.read_json(path)
    before = document.get("begins")
    reason = before["reason"] if before is not None else beginning.reason
    document["version"] = layout.STORE_VERSION
    document["begins"] = {**asdict(beginning), "reason": reason}
    replace_file(path, layout.render(document))


def _parse_beginning(begins: Any, path: Path) -> Beginning:
    remedy = "Restore the file from a copy."
    fields: dict[str, Any] = begins if isinstance(begins, dict) else {}
    numbers = all(isinstance(fields.get(key), int) for key in ("seq", "pos", "time_us"))
    if not numbers or not isinstance(fields.get("file"), str) or fields.get("reason") not in get_args(Reason):
        raise DamagedError(f"begins: is not a store's beginning: {begins!r}", place=str(path), remedy=remedy)
    reason: Reason = fields["reason"]
    return Beginning(fields["seq"], fields["file"], fields["pos"], fields.get("gtid"), fields["time_us"], reason)


# --- the numbers of tables

_REMAKE_TABLES = (
    "Restore it from a copy; or stop capture, remove it and all .index files of the store, and start capture again, "
    "which makes them anew from the segments."
)


class TableNumbers:
    """``db.table`` ↔ number, in the order in which capture first met the tables. Kept in ``tables.json``; a new name
    is durable before a transaction of its table becomes visible. In a store that ignores the case of names they are in
    lower case."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self._path = store / "tables.json"
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self.reload()

    @cached_property
    def _ignores_case(self) -> bool:
        return layout.ignores_case(self._store)

    def reload(self) -> None:
        """Reads the file again. Raises DamagedError, VersionError, StorageError."""
        document = layout.read_document(self._path, _REMAKE_TABLES)
        names = [] if document is None else document.get("tables") if isinstance(document, dict) else None
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise DamagedError("is not a list of tables", place=str(self._path), remedy=_REMAKE_TABLES)
        self.names = names
        self._numbers = {name: number for number, name in enumerate(names)}

    def number(self, name: str) -> int:
        """Returns the number of a table; a table that is not known yet gets a new one."""
        name = lower_name(name) if self._ignores_case else name
        number = self._numbers.get(name)
        if number is None:
            number = len(self.names)
            replace_file(self._path, json.dumps({"version": 1, "tables": [*self.names, name]}).encode())
            self.names.append(name)
            self._numbers[name] = number
        return number

    def bit(self, name: str) -> int:
        """Returns the bit of a known table in the index's table mask."""
        return self._numbers[name] & 63

    def lacks(self, mask: int) -> DamagedError:
        """Returns the error for an index with tables that the file does not name."""
        return DamagedError(
            f"names {len(self.names)} tables, and the index has changes of table number {mask.bit_length()}",
            place=str(self._path),
            remedy=_REMAKE_TABLES,
        )

    def in_mask(self, mask: int) -> tuple[str, ...]:
        """Returns the tables whose bit is set. With more than 64 tables a bit stands for several, so some of the
        returned ones may have no rows."""
        if mask and mask.bit_length() > len(self.names):
            self.reload()
            if mask.bit_length() > len(self.names):
                raise self.lacks(mask)
        return tuple(name for number, name in enumerate(self.names) if mask >> (number & 63) & 1)


# --- the state of capture

_REMAKE_STATE = "Remove it: capture writes it anew, and nothing else depends on it."


@dataclass(frozen=True)
class CaptureState:
    """The state that capture writes about once a second. Times are µs since 1970, UTC, by the source's clock."""

    pid: int
    connected: bool
    file: str
    pos: int
    gtid: str | None
    time_us: int
    """Commit time of the last transaction that was read, of any table."""
    complete_until_us: int
    """Everything that was committed before this moment is in the store; 0 while that is not known."""
    running: bool = False
    """Whether a writer holds the lock; filled in when the state is read."""
    error: str | None = None
    """Why it has no connection, or has ended; None if it reads, or was stopped."""
    ended: bool = True
    """Whether capture wrote this at its end. A capture that was killed has not."""
    purge_left: float | None = None
    """The share of the source's retention that is left before it purges what was not read; None: not asked yet."""
    purge: str | None = None
    """The share of :attr:`purge_left` as a sentence."""


def capture_state_path(store: Path) -> Path:
    """Returns the file that capture writes about once a second."""
    return store / "capture.json"


def write_capture_state(store: Path, state: CaptureState) -> None:
    """Writes ``capture.json``; a power cut may lose it."""
    document = {"version": 1, **asdict(state)}
    document.pop("running")
    replace_file(capture_state_path(store), json.dumps(document).encode(), durable=False)


def read_capture_state(store: Path) -> CaptureState | None:
    """Returns the state that capture wrote last; None if it never ran. Raises DamagedError, VersionError,
    StorageError."""
    path = capture_state_path(store)
    document = layout.read_document(path, _REMAKE_STATE)
    if document is None:
        return None
    running = is_locked(store)
    if not isinstance(document, dict):
        raise DamagedError("is not a capture's state", place=str(path), remedy=_REMAKE_STATE)
    try:
        return CaptureState(
            pid=document["pid"],
            connected=document["connected"] and running,
            file=document["file"],
            pos=document["pos"],
            gtid=document["gtid"],
            time_us=document["time_us"],
            complete_until_us=document["complete_until_us"],
            running=running,
            error=document.get("error"),
            ended=document.get("ended", True),
            purge_left=document.get("purge_left"),
            purge=document.get("purge"),
        )
    except KeyError as error:
        raise DamagedError(f"lacks the key {error}", place=str(path), remedy=_REMAKE_STATE) from None


# --- the writer's lock


_LOOK_S = 0.5
"""The time that a writer waits for the lock: :func:`is_locked` takes it for a moment."""


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class StoreLock:
    """The writer's lock, which the operating system releases when the process dies."""

    def __init__(self, store: Path) -> None:
        """Takes the lock. Raises LeaseHeldError if another process holds it, StorageError."""
        path = store / "lock"
        try:
            self._fd = files.plain.open(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StorageError(f"cannot be opened: {error.strerror}", place=str(path)) from None
        deadline = time.monotonic() + _LOOK_S
        while not (locked := _try_lock(self._fd)) and time.monotonic() < deadline:
            time.sleep(_LOOK_S / 20)
        if not locked:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise LeaseHeldError(
                f"another capture (process {holder}) writes this store",
                place=str(store),
                remedy="Stop it first; only one may run for a destination.",
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._fd)


def is_locked(store: Path) -> bool:
    """Returns whether a writer holds the store. Raises StorageError."""
    return find_holder(store / "lock") is not None


def lock_holder(store: Path) -> int | None:
    """Returns the id of the process that holds the store's lock, or held it last; None if it is not known."""
    try:
        text = (store / "lock").read_text()
    except OSError:
        return None
    return int(text) if text.strip().isdecimal() else None
