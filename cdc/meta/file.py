"""The meta in one JSON file on a local disk: ``{path}/meta.json``, locked by flock on ``{path}/lock``.

Each change replaces the whole file and fsyncs it; readers need no lock. Format: ``docs/formats/meta.md``.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pydantic import ValidationError

from cdc.base.errors import IdentityError
from cdc.disk import files
from cdc.disk.durable import explain, locked, remove_file, replace_file, storage_errors
from cdc.disk.permissions import CHANGE, Permissions, secure_folder
from cdc.meta.base import DurableMeta
from cdc.meta.envelope import FORMAT, VERSION, checksum, invalid, unwrap, wrap
from cdc.meta.state import State

__all__ = [
    "FILE_NAME",
    "FORMAT",
    "HOLDER_NAME",
    "LOCKS_FOLDER",
    "LOCK_NAME",
    "SERVER_LOCK_NAME",
    "VERSION",
    "FileMeta",
    "checksum",
    "parse",
    "render",
]

FILE_NAME = "meta.json"
LOCK_NAME = "lock"
HOLDER_NAME = "holder.lock"
LOCKS_FOLDER = "locks"
SERVER_LOCK_NAME = "server.lock"
"""The file in the folder of the meta whose lock the ``cdc server`` holds that has the destination."""

_REMEDY = (
    "Nothing was changed. Restore the file from a copy. Or move it away and run `cdc capture`: readers then begin at "
    "the store's first transaction, and changes that the tables already have are skipped."
)


class FileMeta(DurableMeta):
    """The meta of one destination in a folder.

    ``destination`` is written into a new file, and compared with an existing one.
    """

    def __init__(
        self,
        path: Path | str,
        destination: str | None = None,
        *,
        lock_wait_s: float = 30.0,
        permissions: Permissions = "private",
    ) -> None:
        self.path = Path(path)
        self.file = self.path / FILE_NAME
        self._destination = destination
        self._lock_wait_s = lock_wait_s
        self._permissions: Permissions = permissions
        self._held = ExitStack()
        self._is_held = False
        self._parsed: tuple[bytes, State] | None = None
        """The content that was read last, and its state. A batch of thousands of tables reads the meta for each."""

    @property
    def place(self) -> str:
        return str(self.file)

    def read(self) -> State:
        try:
            data = files.layer.read_file(self.file)
        except FileNotFoundError:
            return State(destination=self._destination)
        except OSError as error:
            raise explain(error, self.file) from error
        parsed = self._parsed
        if parsed is None or parsed[0] != data:
            parsed = self._parsed = (data, parse(data, self.place))
        return self._check_destination(parsed[1].copied())

    @contextmanager
    def change(self) -> Iterator[State]:
        secure_folder(self.path, self._permissions, CHANGE)
        with locked(self.path / LOCK_NAME, "another process", wait_s=self._lock_wait_s):
            state = self.read()
            before = state.copied()
            yield state
            if state != before or not self.file.exists():
                replace_file(self.file, render(state))

    @contextmanager
    def lock(self, name: str, what: str, *, wait_s: float = 0.0, shared: bool = False) -> Iterator[None]:
        secure_folder(self.path, self._permissions, CHANGE)
        secure_folder(self.path / LOCKS_FOLDER, self._permissions, CHANGE)
        with locked(self.path / LOCKS_FOLDER / name, what, wait_s=wait_s, shared=shared):
            yield

    def hold(self, wait_s: float) -> None:
        if self._is_held:
            return
        secure_folder(self.path, self._permissions, CHANGE)
        what = "another process that keeps this meta in memory"
        self._held.enter_context(locked(self.path / HOLDER_NAME, what, wait_s=wait_s))
        self._is_held = True

    def held_locks(self) -> list[str]:
        folder = self.path / LOCKS_FOLDER
        if not folder.is_dir():
            return []
        with storage_errors(folder):
            return sorted(path.name for path in folder.iterdir() if _is_held(path))

    def remove(self) -> list[str]:
        if not self.path.is_dir():
            return []
        with locked(self.path / LOCK_NAME, "another process", wait_s=self._lock_wait_s):
            self.read()  # refuses that of another destination
            remove_file(self.file)
            remove_file(self.path / f".{FILE_NAME}.new")
            if (self.path / LOCKS_FOLDER).is_dir():
                with storage_errors(self.path):
                    shutil.rmtree(self.path / LOCKS_FOLDER)
            remove_file(self.path / HOLDER_NAME)
        remove_file(self.path / LOCK_NAME)
        return []

    def close(self) -> None:
        self._is_held = False
        self._held.close()

    def _check_destination(self, state: State) -> State:
        if self._destination is None:
            return state
        if state.destination is None:
            state.destination = self._destination
        elif state.destination != self._destination:
            raise IdentityError(
                f"belongs to destination {state.destination!r}, not to {self._destination!r}",
                place=self.place,
                remedy="Give each destination a folder of its own (meta.path in the configuration).",
            )
        return state


def _is_held(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def render(state: State) -> bytes:
    """Returns the content of the file for a state."""
    document = wrap(state.model_dump(mode="json"))
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def parse(data: bytes, place: str) -> State:
    """Parses the content of a file. Raises DamagedError, VersionError."""
    body = unwrap(data, place, _REMEDY)["body"]
    try:
        return State.model_validate_json(json.dumps(body))
    except ValidationError as error:
        raise invalid(error, "body", place, _REMEDY) from None
