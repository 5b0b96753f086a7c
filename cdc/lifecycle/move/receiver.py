"""The side of a move where the store will be: takes files, verifies them, and puts the store into use."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from cdc.base.errors import DamagedError, StorageError, UsageError
from cdc.base.units import human_bytes
from cdc.binlog.positions import make_file_name, split_seq
from cdc.disk import files
from cdc.disk.durable import make_folder, remove_file, replace_file, storage_errors, sync_folder
from cdc.disk.permissions import CHANGE, READ, secure_folder
from cdc.store.formats import layout
from cdc.store.formats.index import IndexFile
from cdc.store.formats.missing import skipped_ranges
from cdc.store.formats.state import StoreLock
from cdc.store.recovery.recover import verify

if TYPE_CHECKING:
    from cdc.config import DestinationConfig

_EMPTY = {"lost+found", "lock", f".{layout.MOVING_FILE}.new"}
"""Names that may be in a folder that becomes a store: of others, or of a move that was killed when it began."""
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class FileSum:
    """A file of a move: ``store/…`` or ``meta/…``."""

    path: str
    bytes: int
    sha256: str = ""
    """Empty where it is not known yet."""


@dataclass(frozen=True)
class Offer:
    """A store that is to be received."""

    destination: str
    move: str
    """The id of the move."""
    is_fenced: bool
    """Whether the store is out of use already: only the copy of this very move may take its place."""
    meta_kind: str
    """``meta.kind`` of the configuration here."""
    last_seq: int
    last_checksum: int
    """Seq and checksum of the store's newest transaction; zeros if there is none."""
    files: tuple[FileSum, ...]


@dataclass(frozen=True)
class Begun:
    """The answer to the beginning of a move."""

    move: str
    """The id of the move, which the copy's ``moving.json`` has."""
    to: str
    """Where the store will be, in words."""
    present: tuple[FileSum, ...] = ()
    """The files that are there, of a move that was cut off."""
    done: bool = False
    """Whether the store is in use already: the answer of an earlier move was lost."""


@dataclass(frozen=True)
class Proof:
    """What the receiver has read and verified."""

    files: tuple[FileSum, ...]
    segments: int
    transactions: int
    first_seq: int | None
    last_seq: int | None
    continues_at: str
    """The position in the source's binlog at which capture goes on: ``binlog.000012:1583``; empty: the store is
    empty."""


class Receives(Protocol):
    """The calls that a sender makes."""

    def begin(self, offer: Offer) -> Begun: ...

    def put(self, path: str, size: int, chunks: Iterable[bytes]) -> None: ...

    def prove(self, base_name: str) -> Proof: ...

    def activate(self) -> None: ...

    def close(self) -> None: ...


class Receiver:
    """Receives one store. Holds its lock until :meth:`close`."""

    def __init__(self, config: DestinationConfig, *, meta: bool) -> None:
        """``config``: that of the destination where the store will be. ``meta``: whether files of the meta come."""
        self._config, self._store, self._meta_path = config, config.store.path, config.meta.path
        self._has_meta = meta
        self._lock: StoreLock | None = None
        self._paths: set[str] = set()

    def begin(self, offer: Offer) -> Begun:
        """Prepares the folders for the files of a store. A copy that an earlier move has begun is continued under the
        id of that one.

        Raises UsageError if something else is in the folders, LeaseHeldError, StorageError, ConfigError.
        """
        config, destination = self._config, offer.destination
        if destination != config.name:
            raise UsageError(
                f"the store of {destination!r} cannot become that of {config.name!r}", place=str(config.file)
            )
        if self._has_meta and offer.meta_kind != config.meta.kind:
            raise UsageError(
                f"meta.kind is {config.meta.kind} in the configuration there, and {offer.meta_kind} here",
                place=str(config.file),
                remedy="Let both be the same for the move.",
            )
        place = f"{self._store} on {socket.gethostname()}"
        if self._is_done((offer.last_seq, offer.last_checksum)):
            return Begun(offer.move, place, done=True)
        document = layout.read_json(self._store / layout.MOVING_FILE) if self._store.is_dir() else None
        if offer.is_fenced and (document is None or document.get("move") != offer.move):
            raise UsageError(
                "the store was moved to another place before, and there can be one only",
                place=place,
                remedy="Call `cdc move` with the place that moved.json of the old store names.",
            )
        if document is None:
            self._require_empty()
        elif document.get("destination") != destination:
            raise UsageError(f"a copy of {document.get('destination')!r} has been begun there", place=str(self._store))
        secure_folder(self._store, self._config.store.permissions, READ)
        self._lock = StoreLock(self._store)
        if document is None:
            document = {"version": 1, "destination": destination, "move": offer.move}
            replace_file(self._store / layout.MOVING_FILE, json.dumps(document, indent=1).encode() + b"\n")
        if self._has_meta:
            secure_folder(self._meta_path, self._config.meta.permissions, CHANGE)
        self._paths = {file.path for file in offer.files}
        present = tuple(self._sum(path) for path in sorted(self._present()))
        self._remove_others()
        self._require_room(sum(file.bytes for file in offer.files) - sum(file.bytes for file in present))
        return Begun(str(document["move"]), place, present)

    def _is_done(self, last: tuple[int, int]) -> bool:
        """Whether this is the store that an earlier move has put into use: it has the newest transaction."""
        if not layout.exists(self._store) or (self._store / layout.MOVING_FILE).exists():
            return False
        layout.check(self._store)
        for segment in reversed(layout.list_segments(self._store)):
            entries = IndexFile(segment).entries
            at = int(entries["seq"].searchsorted(last[0]))
            if at < len(entries) and (int(entries["seq"][at]), int(entries["checksum"][at])) == last:
                return True
        return False

    def _require_empty(self) -> None:
        folders = [(self._store, "store.path", _EMPTY)]
        if self._has_meta:
            folders.append((self._meta_path, "meta.path", {"lost+found"}))
        for folder, key, allowed in folders:
            with storage_errors(folder):
                left = sorted(set(os.listdir(folder)) - allowed) if folder.is_dir() else []
            if left:
                raise UsageError(
                    f"this folder is not empty ({', '.join(left[:5])}{' …' if len(left) > 5 else ''})",
                    place=str(folder),
                    remedy=f"Name another folder ({key}), or move what is in it away.",
                )

    def _target(self, path: str) -> Path:
        kind, _, name = path.partition("/")
        parts = Path(name).parts
        if kind not in ("store", "meta") or not parts or ".." in parts or Path(name).is_absolute():
            raise UsageError(f"{path!r} is not a file of a store or a meta")
        return (self._store if kind == "store" else self._meta_path) / name

    def _present(self) -> Iterator[str]:
        return (path for path in self._paths if self._target(path).is_file())

    def _remove_others(self) -> None:
        """Removes what an earlier move has copied and the store does not have any more."""
        for kind, folder in (("store", self._store), *([("meta", self._meta_path)] if self._has_meta else [])):
            for parent, _, names in os.walk(folder):
                for name in names:
                    path = Path(parent, name)
                    relative = str(path.relative_to(folder))
                    if f"{kind}/{relative}" not in self._paths and relative not in (layout.MOVING_FILE, "lock"):
                        remove_file(path)

    def _require_room(self, size: int) -> None:
        with storage_errors(self._store):
            free = shutil.disk_usage(self._store).free
        if size > free:
            raise StorageError(
                f"{human_bytes(size)} are to be copied, and {human_bytes(free)} are free",
                place=str(self._store),
                remedy="Make room, or name a folder of another disk.",
            )

    def put(self, path: str, size: int, chunks: Iterable[bytes]) -> None:
        """Writes a file durably; it is there only when it is whole. Raises StorageError."""
        target = self._target(path)
        if path not in self._paths:
            raise UsageError(f"{path!r} was not listed")
        make_folder(target.parent)
        temporary = target.with_name(f".{target.name}.new")
        written = 0
        with storage_errors(target):
            fd = files.layer.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                for chunk in chunks:
                    files.write_all(fd, chunk)
                    written += len(chunk)
                files.layer.fsync(fd)
            finally:
                files.layer.close(fd)
        if written != size:
            raise StorageError(f"{written} of {size} bytes have come", place=str(target), remedy="Try again.")
        with storage_errors(target):
            files.layer.replace(temporary, target)
            sync_folder(target.parent)

    def prove(self, base_name: str) -> Proof:
        """Reads all files from the disk, and verifies every transaction. ``base_name``: that of the source's binlog
        files. Raises DamagedError."""
        transactions, first_seq, last_seq = 0, None, None
        segments = layout.list_segments(self._store)
        for segment in segments:
            verification = verify(segment, lambda _: 0)
            is_last = segment == segments[-1]
            end = 0 if verification.scan is None else verification.scan.end
            is_cut_off = is_last and verification.scan is not None and end >= verification.visible_end
            if verification.why is not None and not is_cut_off and not skipped_ranges(self._store, segment.name):
                raise verification.why
            entries = IndexFile(segment).entries
            transactions += int((entries["length"] > 0).sum())
            if len(entries):
                first_seq = int(entries["seq"][0]) if first_seq is None else first_seq
                last_seq = int(entries["seq"][-1])
        position = ""
        if last_seq is not None:
            parts = split_seq(last_seq)
            position = f"{make_file_name(base_name, parts.file_number)}:{parts.offset}"
        sums = tuple(self._sum(path) for path in sorted(self._paths))
        return Proof(sums, len(segments), transactions, first_seq, last_seq, position)

    def _sum(self, path: str) -> FileSum:
        target = self._target(path)
        with storage_errors(target):
            try:
                with target.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    return FileSum(path, file.tell(), digest)
            except FileNotFoundError:
                raise DamagedError("has not come", place=str(target), remedy="Run `cdc move` again.") from None

    def activate(self) -> None:
        """Puts the store into use. Called when the old one is out of use."""
        remove_file(self._store / layout.MOVING_FILE)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None


def chunks_of(path: Path, size: int) -> Iterator[bytes]:
    """Yields the content of a file, at most ``size`` bytes. Raises StorageError."""
    with storage_errors(path), path.open("rb") as file:
        yield from read_chunks(file, size)


def read_chunks(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yields the next bytes of an opened file, at most ``size``. Raises OSError."""
    left = size
    while left and (chunk := file.read(min(_CHUNK_BYTES, left))):
        left -= len(chunk)
        yield chunk


def describe(proof: Proof) -> dict[str, Any]:
    """Returns the proof as JSON, without the files."""
    return {
        "files": len(proof.files),
        "bytes": sum(file.bytes for file in proof.files),
        "segments": proof.segments,
        "transactions": proof.transactions,
        "first_seq": proof.first_seq,
        "last_seq": proof.last_seq,
        "continues_at": proof.continues_at or None,
    }
