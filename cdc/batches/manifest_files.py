"""The files of manifests: ``{meta.path}/manifests/{subscriber}/{batch:012d}.json``.

A manifest is written and fsynced before its batch is recorded as outstanding. The ack adds ``acked``. The manifests of
the last 1,000 acked batches of each subscriber are kept; those of rolled-back batches are removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from cdc.base.documents import json_object, require_version
from cdc.base.errors import DamagedError
from cdc.base.run_identity import current_run
from cdc.base.validation import first_fault
from cdc.batches.manifest import FORMAT, VERSION, Acked, Manifest, TableResult
from cdc.disk.durable import explain, make_folder, replace_file, storage_errors, sync_folder
from cdc.disk.permissions import CHANGE, Permissions, secure_folder

KEPT = 1000
"""The number of acked manifests that are kept for each subscriber."""
_REMEDY = "Get the batch again: it is rolled back then, and its transactions come in a new batch."


class ManifestFiles:
    """The folder of a destination's manifests. Writers hold the meta's lock."""

    def __init__(self, meta_path: Path, *, kept: int = KEPT, permissions: Permissions = "private") -> None:
        self._permissions: Permissions = permissions
        self.folder = meta_path / "manifests"
        self._kept = kept

    def path(self, subscriber: str, batch: int) -> Path:
        """Returns the path of a batch's manifest."""
        return self.folder / subscriber / f"{batch:012d}.json"

    def save(self, manifest: Manifest) -> Path:
        """Writes a manifest durably, and replaces one that a killed get left behind. Returns its path."""
        path = self.path(manifest.subscriber, manifest.batch)
        secure_folder(self.folder.parent, self._permissions, CHANGE)
        make_folder(path.parent)
        replace_file(path, (manifest.model_dump_json(indent=1) + "\n").encode())
        return path

    def ids(self, subscriber: str) -> list[int]:
        """Returns the ids of the batches that have a manifest, in order."""
        with storage_errors(self.folder / subscriber):
            names = (p.stem for p in (self.folder / subscriber).glob("*.json"))
            return sorted(int(name) for name in names if name.isdecimal())

    def acked(self, subscriber: str, after_batch: int = 0, most: int | None = None) -> list[Manifest]:
        """Returns the manifests of the acked batches that are kept, oldest first: those after a batch, at most
        ``most``. Raises DamagedError, StorageError."""
        manifests: list[Manifest] = []
        for batch in self.ids(subscriber):
            if batch <= after_batch:
                continue
            if most is not None and len(manifests) >= most:
                break
            path = self.path(subscriber, batch)
            try:
                manifest = load_manifest(path)
            except DamagedError:
                if path.exists():
                    raise
                continue  # an ack has removed it meanwhile: only the newest are kept
            if manifest.acked is not None:
                manifests.append(manifest)
        return manifests

    def before(self, subscriber: str, batch: int) -> Manifest | None:
        """Returns the manifest of the last batch before a batch, as far as it is kept. Raises DamagedError,
        StorageError."""
        earlier = [number for number in self.ids(subscriber) if number < batch]
        return load_manifest(self.path(subscriber, earlier[-1])) if earlier else None

    def mark_acked(self, path: Path, time: datetime, results: tuple[TableResult, ...]) -> Manifest:
        """Adds the results to a manifest; returns the manifest without them. Raises DamagedError if it is missing or
        damaged."""
        manifest = load_manifest(path)
        versions = dict(self._versions_before(manifest.subscriber, manifest.batch))
        versions.update({r.table: r.delta_version for r in results if r.delta_version is not None})
        acked = Acked(time=time, run=current_run(), tables=results, versions=versions)
        self.save(manifest.model_copy(update={"acked": acked}))
        return manifest

    def remove(self, subscriber: str, batches: Iterable[int]) -> None:
        """Removes manifests; missing ones are ignored."""
        paths = [self.path(subscriber, batch) for batch in batches]
        with storage_errors(self.folder):
            for path in paths:
                path.unlink(missing_ok=True)
            if paths and paths[0].parent.is_dir():
                sync_folder(paths[0].parent)

    def prune(self, subscriber: str, upto: int) -> None:
        """Removes old manifests: of those up to batch ``upto``, acked last, only the newest are kept."""
        done = [batch for batch in self.ids(subscriber) if batch <= upto]
        if len(done) > self._kept:
            self.remove(subscriber, done[: -self._kept])

    def _versions_before(self, subscriber: str, batch: int) -> dict[str, int]:
        for earlier in reversed([i for i in self.ids(subscriber) if i < batch]):
            acked = load_manifest(self.path(subscriber, earlier)).acked
            if acked is not None:  # None: a killed get left it behind
                return acked.versions
        return {}


def load_manifest(path: Path) -> Manifest:
    """Reads and checks a manifest. Raises DamagedError (also if it is missing), VersionError, StorageError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DamagedError("this manifest is missing", place=str(path), remedy=_REMEDY) from None
    except OSError as error:
        raise explain(error, path) from error
    return parse_manifest(data, str(path))


def parse_manifest(data: bytes, place: str) -> Manifest:
    """Parses and checks a manifest's content. Raises DamagedError, VersionError."""
    document = json_object(data, place, _REMEDY)
    if document.get("format") != FORMAT:
        raise DamagedError(f"is not a manifest: its format is not {FORMAT}", place=place, remedy=_REMEDY)
    require_version(document.get("version"), VERSION, place)
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        raise DamagedError(first_fault(error, whole="the document"), place=place, remedy=_REMEDY) from None
