"""The meta in one JSON file of a local disk: ``{path}/meta.json``, guarded by the flock of ``{path}/lock``.

Format: ``docs/formats/meta.md``. The file is replaced whole and fsynced with each change; readers need no lock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cdc.durable import explain, locked, make_folder, replace_file
from cdc.errors import DamagedError, IdentityError, VersionError
from cdc.meta.base import Meta
from cdc.meta.state import State

FORMAT = "towpath-meta"
VERSION = 1
FILE_NAME = "meta.json"
LOCK_NAME = "lock"

_REMEDY = (
    "Nothing was changed. Restore the file from a copy; or move it away and run `cdc capture`: readers then begin at "
    "the store's first transaction, and what the tables hold already is skipped."
)


class FileMeta(Meta):
    """Meta of one destination in a folder. ``destination`` is written into a new file and checked in an old one."""

    def __init__(self, path: Path | str, destination: str | None = None, *, lock_wait_s: float = 30.0) -> None:
        self.path = Path(path)
        self.file = self.path / FILE_NAME
        self._destination = destination
        self._lock_wait_s = lock_wait_s

    @property
    def place(self) -> str:
        return str(self.file)

    def read(self) -> State:
        try:
            data = self.file.read_bytes()
        except FileNotFoundError:
            return State(destination=self._destination)
        except OSError as error:
            raise explain(error, self.file) from error
        return self._own(parse(data, self.place))

    @contextmanager
    def change(self) -> Iterator[State]:
        make_folder(self.path)
        with locked(self.path / LOCK_NAME, "another process", wait_s=self._lock_wait_s):
            state = self.read()
            before = render(state)
            yield state
            after = render(state)
            if after != before or not self.file.exists():
                replace_file(self.file, after)

    def _own(self, state: State) -> State:
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


def render(state: State) -> bytes:
    """The file's content."""
    body = state.model_dump(mode="json")
    document = {"format": FORMAT, "version": VERSION, "checksum": checksum(body), "body": body}
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def parse(data: bytes, place: str) -> State:
    """The state in a file's content. Raises DamagedError, saying what is wrong, and VersionError."""
    try:
        document = json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DamagedError(f"is not whole: {error}", place=place, remedy=_REMEDY) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DamagedError(f"is not a meta file: it does not say format {FORMAT}", place=place, remedy=_REMEDY)
    version = document.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise DamagedError(f"has the impossible format version {version!r}", place=place, remedy=_REMEDY)
    if version > VERSION:
        raise VersionError(
            f"has format version {version}; this Towpath knows {VERSION}",
            place=place,
            remedy="Update Towpath on this machine.",
        )
    body, said = document.get("body"), document.get("checksum")
    found = checksum(body)
    if said != found:
        raise DamagedError(
            f"its checksum is wrong: it says {said!r}, its body has {found!r}", place=place, remedy=_REMEDY
        )
    try:
        return State.model_validate_json(json.dumps(body))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(["body", *(str(step) for step in first["loc"])])
        raise DamagedError(f"{where}: {first['msg']}", place=place, remedy=_REMEDY) from None


def checksum(body: Any) -> str:
    """SHA-256 over the body as canonical JSON: sorted keys, no blanks, UTF-8."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
