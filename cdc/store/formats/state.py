"""The small files beside the segments: the captured tables' numbers, and what capture last said of itself."""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from cdc import files
from cdc.durable import replace_file
from cdc.errors import DamagedError, LeaseHeldError, StorageError
from cdc.store.formats.layout import read_json, require_version


@dataclass(frozen=True)
class CaptureState:
    """What capture says of itself, about once a second. Times are µs since 1970, UTC, by the source's clock."""

    pid: int
    connected: bool
    file: str
    pos: int
    gtid: str | None
    time_us: int
    """Commit time of the last transaction, ours or not."""
    complete_until_us: int
    """Everything that was committed before this moment is in the store; 0 while that is not known."""
    running: bool = False
    """Filled in by the reader: the lock is held."""


_REMAKE_TABLES = (
    "Restore it from a copy; or stop capture, remove it and all .index files of the store, and start capture again, "
    "which makes them anew from the segments."
)


class TableNumbers:
    """``db.table`` ↔ number, in the order in which capture first met them. Kept in ``tables.json``; a new name is
    durable before a transaction that needs it becomes visible."""

    def __init__(self, store: Path) -> None:
        self._path = store / "tables.json"
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self.reload()

    def reload(self) -> None:
        """Read the file again. Raises DamagedError, VersionError, StorageError."""
        try:
            found = read_json(self._path)
        except DamagedError as error:
            raise DamagedError(error.message, place=error.place, remedy=_REMAKE_TABLES) from None
        require_version(found, self._path)
        names = [] if found is None else found.get("tables") if isinstance(found, dict) else None
        if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
            raise DamagedError("is not a list of tables", place=str(self._path), remedy=_REMAKE_TABLES)
        self.names = names
        self._numbers = {name: number for number, name in enumerate(names)}

    def number(self, name: str) -> int:
        """The number of a table, a new one if need be."""
        number = self._numbers.get(name)
        if number is None:
            number = len(self.names)
            replace_file(self._path, json.dumps({"version": 1, "tables": [*self.names, name]}).encode())
            self.names.append(name)
            self._numbers[name] = number
        return number

    def bit(self, name: str) -> int:
        """The bit of a known table in the index's table mask."""
        return self._numbers[name] & 63

    def lacks(self, mask: int) -> DamagedError:
        """The error for an index that knows tables which the file does not name."""
        return DamagedError(
            f"names {len(self.names)} tables, and the index has changes of table number {mask.bit_length()}",
            place=str(self._path),
            remedy=_REMAKE_TABLES,
        )

    def in_mask(self, mask: int) -> tuple[str, ...]:
        """The tables whose bit is set. Above 64 tables a bit stands for several, so that some of them may have no
        rows."""
        if mask and mask.bit_length() > len(self.names):
            self.reload()
            if mask.bit_length() > len(self.names):
                raise self.lacks(mask)
        return tuple(name for number, name in enumerate(self.names) if mask >> (number & 63) & 1)


_REMAKE_STATE = "Remove it: capture writes it anew, and nothing else depends on it."


def write_capture_state(store: Path, state: CaptureState) -> None:
    document = {"version": 1, **asdict(state)}
    document.pop("running")
    replace_file(store / "capture.json", json.dumps(document).encode(), durable=False)


def read_capture_state(store: Path) -> CaptureState | None:
    """What capture last said; None where it never ran."""
    path = store / "capture.json"
    try:
        found = read_json(path)
    except DamagedError as error:
        raise DamagedError(error.message, place=error.place, remedy=_REMAKE_STATE) from None
    if found is None:
        return None
    require_version(found, path)
    running = is_locked(store)
    if not isinstance(found, dict):
        raise DamagedError("is not a capture's state", place=str(path), remedy=_REMAKE_STATE)
    try:
        return CaptureState(
            pid=found["pid"],
            connected=found["connected"] and running,
            file=found["file"],
            pos=found["pos"],
            gtid=found["gtid"],
            time_us=found["time_us"],
            complete_until_us=found["complete_until_us"],
            running=running,
        )
    except KeyError as error:
        raise DamagedError(f"lacks the key {error}", place=str(path), remedy=_REMAKE_STATE) from None


class StoreLock:
    """The writer's lock: the operating system releases it when the process dies."""

    def __init__(self, store: Path) -> None:
        path = store / "lock"
        try:
            self._fd = files.plain.open(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise StorageError(f"cannot be opened: {error.strerror}", place=str(path)) from None
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
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
    """Does a writer hold the store?"""
    try:
        fd = os.open(store / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"cannot be opened: {error.strerror}", place=str(store / "lock")) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
