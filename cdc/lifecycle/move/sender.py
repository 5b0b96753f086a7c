"""The side of a move where the store is: who may move it, the files, the proof, and the end of the old store."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.base.errors import DamagedError, UsageError
from cdc.base.log import get_logger
from cdc.base.units import iso_time
from cdc.config.secrets import encryption_keys
from cdc.copies.archive.reader import FOLDER as ARCHIVED_FOLDER
from cdc.copies.standby import role
from cdc.disk.durable import replace_file, storage_errors
from cdc.disk.encryption import keys
from cdc.lifecycle import obstacles
from cdc.lifecycle.folders import OwnFolder
from cdc.lifecycle.move.receiver import FileSum, Offer, Proof, Receives, chunks_of
from cdc.meta import open_meta
from cdc.meta.file import FILE_NAME as META_FILE
from cdc.store.formats import archive_record, layout, missing
from cdc.store.formats.index import IndexFile

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.meta import SourceIdentity

Progress = Callable[[int, int], None]
"""Is called with the bytes that are copied, and all bytes."""
_STAYS = {
    "lock", archive_record.LOCK_NAME, missing.LOCK_NAME, ARCHIVED_FOLDER, role.STATUS_FILE,
    layout.MOVED_FILE, layout.MOVING_FILE, layout.REMOVING_FILE, layout.RESTORING_FILE,
}  # fmt: skip
"""Names in a store that belong to the machine, or to a process."""
_log = get_logger(__name__)


@dataclass(frozen=True)
class Moved:
    """The result of a move."""

    to: str
    proof: Proof | None
    """None if an earlier move had put the store into use already."""


class Sender:
    """Moves the store of one destination to a receiver."""

    def __init__(self, config: DestinationConfig, *, meta: bool) -> None:
        """``meta``: whether the meta's files are copied, too. Raises UsageError if the store cannot be moved."""
        for obstacle in obstacles.of_configuration(config):
            raise UsageError(
                f"there is no store here that could be moved (store.kind: {config.store.kind})",
                place=str(config.file),
                remedy="Run `cdc move` where the store is.",
            ) from obstacle
        if config.store.standby.role == "standby":
            raise UsageError(
                "this store follows another one (store.standby.role: standby)",
                place=str(config.file),
                remedy="Remove it, and let `cdc standby` copy the master's store to the new place.",
            )
        if config.server.ha.enabled:
            raise UsageError(
                "a server of several (server.ha) has a store of its own, which its machine reads from the source",
                place=str(config.file),
                remedy="Start a server on the other machine, and end this one.",
            )
        self._config, self._store, self._has_meta = config, config.store.path, meta

    def run(self, receiver: Receives, progress: Progress = lambda done, total: None) -> Moved:
        """Copies the store, proves the copy, takes the old store out of use, and puts the new one into use.

        Raises LeaseHeldError while somebody works on the destination, UsageError, DamagedError, StorageError,
        PeerUnavailableError. Until the proof the old store stays in use; after an error call it again.
        """
        moved_before = self._moved_before()
        with ExitStack() as stack:
            identity = self._require_free(stack, moved=moved_before is not None)
            listed = tuple(self._files())
            begun = receiver.begin(self._offer(moved_before, listed))
            if begun.done:
                if moved_before is None:
                    raise UsageError(
                        "there is a store in use already, which has this one's newest transaction: a copy that was "
                        "made by hand, or this store itself",
                        place=begun.to,
                        remedy="Name an empty folder.",
                    )
                return Moved(begun.to, None)
            sums = self._copy(receiver, listed, {file.path: file for file in begun.present}, progress)
            proof = receiver.prove("binlog" if identity is None else identity.base_name)
            self._compare(sums, proof)
            self._take_out_of_use(begun.move, begun.to)
            receiver.activate()
        _log.info("store moved", destination=self._config.name, store=str(self._store), to=begun.to)
        return Moved(begun.to, proof)

    def _offer(self, moved_before: str | None, listed: tuple[FileSum, ...]) -> Offer:
        last_seq, checksum = self._last()
        return Offer(
            destination=self._config.name,
            move=secrets.token_hex(8) if moved_before is None else moved_before,
            is_fenced=moved_before is not None,
            meta_kind=self._config.meta.kind,
            last_seq=last_seq,
            last_checksum=checksum,
            files=listed,
        )

    def _moved_before(self) -> str | None:
        """Returns the id of a move that has taken this store out of use; None if it is in use. Raises UsageError if
        there is no store, DamagedError if it is out of use for another reason."""
        document = layout.read_document(self._store / layout.MOVED_FILE) if self._store.is_dir() else None
        if document is not None:
            return str(document["move"])
        layout.check(self._store)
        if not layout.exists(self._store):
            raise UsageError(
                "there is no store: is its disk mounted?",
                place=str(self._store),
                remedy="Mount it, or correct store.path.",
            )
        return None

    def _require_free(self, stack: ExitStack, *, moved: bool) -> SourceIdentity | None:
        config = self._config
        document = layout.read_json(self._store / layout.STORE_FILE)
        if not isinstance(document, dict) or document.get("destination") != config.name:
            raise UsageError("is not the store of this destination", place=str(self._store))
        obstacles.hold(config, stack, folders=(self._store, config.meta.path))
        with open_meta(config) as meta:
            state = meta.read()
            for obstacle in (*obstacles.of_state(state), *obstacles.of_meta(meta), *obstacles.of_standby(config)):
                raise obstacle
        error, _ = (None, None) if moved else obstacles.of_source(config)
        if error is not None:
            raise error
        return state.source

    def _files(self) -> Iterator[FileSum]:
        """Yields the files of the store, and of the meta."""
        store = OwnFolder.of_store(self._store)
        yield from _sizes("store", store.path, (path for path in store.own() if path.name not in _STAYS))
        if self._has_meta:
            meta, names = OwnFolder.of_meta(self._config.meta.path), ["manifests"]
            if self._config.meta.kind == "file":
                names.append(META_FILE)
            yield from _sizes("meta", meta.path, (path for path in meta.own() if path.name in names))

    def _path(self, name: str) -> Path:
        kind, _, relative = name.partition("/")
        return (self._store if kind == "store" else self._config.meta.path) / relative

    def _last(self) -> tuple[int, int]:
        """Returns seq and checksum of the newest transaction; zeros if there is none."""
        for segment in reversed(layout.list_segments(self._store)):
            entries = IndexFile(segment).entries
            if len(entries):
                return int(entries["seq"][-1]), int(entries["checksum"][-1])
        return 0, 0

    def _copy(
        self, receiver: Receives, listed: tuple[FileSum, ...], present: dict[str, FileSum], progress: Progress
    ) -> dict[str, FileSum]:
        """Copies what is missing or differs. Returns the sums of all files here."""
        sums: dict[str, FileSum] = {}
        done, total = 0, sum(file.bytes for file in listed)
        for file in listed:
            path, digest = self._path(file.path), hashlib.sha256()
            copied = present.get(file.path)
            if copied is not None:
                for chunk in chunks_of(path, file.bytes):
                    digest.update(chunk)
                if (copied.bytes, copied.sha256) == (file.bytes, digest.hexdigest()):
                    sums[file.path] = copied
                    done += file.bytes
                    progress(done, total)
                    continue
                digest = hashlib.sha256()
            receiver.put(file.path, file.bytes, _summed(chunks_of(path, file.bytes), digest))
            sums[file.path] = FileSum(file.path, file.bytes, digest.hexdigest())
            done += file.bytes
            progress(done, total)
        return sums

    def _compare(self, sums: dict[str, FileSum], proof: Proof) -> None:
        """Raises DamagedError unless the copy is this store."""
        proved = {file.path: file for file in proof.files}
        for path in sorted(sums.keys() | proved.keys()):
            if sums.get(path) != proved.get(path):
                raise DamagedError(
                    "the copy differs from this file, or lacks it",
                    place=str(self._path(path)),
                    remedy="The store here stays in use. Run `cdc move` again; if it happens again, look at the disk "
                    "there.",
                )
        if (proof.last_seq or 0) != self._last()[0]:
            raise DamagedError(f"the copy ends at {proof.last_seq}, and this store at {self._last()[0]}")

    def _take_out_of_use(self, move: str, to: str) -> None:
        document = {"version": 1, "move": move, "to": to, "time": iso_time(datetime.now(UTC))}
        replace_file(self._store / layout.MOVED_FILE, json.dumps(document, indent=1).encode() + b"\n")


def _summed(chunks: Iterator[bytes], digest: Any) -> Iterator[bytes]:
    """Passes chunks on, and adds them to a digest of hashlib."""
    for chunk in chunks:
        digest.update(chunk)
        yield chunk


def _sizes(kind: str, folder: Path, paths: Iterable[Path]) -> Iterator[FileSum]:
    for path in paths:
        for file in sorted(_below(path)):
            with storage_errors(file):
                yield FileSum(f"{kind}/{file.relative_to(folder)}", file.stat().st_size)


def _below(path: Path) -> Iterator[Path]:
    if path.name.startswith("."):  # a file that was being written
        return
    if path.is_file():
        yield path
        return
    for folder, _, names in os.walk(path):
        for name in names:
            if not name.startswith("."):
                yield Path(folder, name)


def at(config: DestinationConfig, store: Path, meta: Path | None) -> DestinationConfig:
    """Returns the configuration with other folders. Raises ConfigError if they contradict the others."""
    from cdc.config.destination import check_sections

    sections = {"store": config.store.model_copy(update={"path": store})}
    moved = config.model_copy(update=sections)
    if meta is not None:
        moved = moved.model_copy(update={"meta": config.meta.model_copy(update={"path": meta})})
    check_sections(moved, config.file)
    for other in (config.store.path, config.meta.path):
        if store == other or store in other.parents or other in store.parents:
            raise UsageError(f"lies in {other}, or holds it", place=str(store), remedy="Name a folder beside it.")
    keys.register(store, encryption_keys(config.store.encryption))
    return moved
