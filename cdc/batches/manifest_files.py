"""The manifests on disk: ``{meta.path}/manifests/{subscriber}/{batch:012d}.json``.

Written and fsynced before the batch is recorded as outstanding. The ack adds ``acked``; the manifests of the last 1,000
acked batches of each subscriber are kept, older ones are removed. A rolled-back batch leaves none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from pydantic import ValidationError

from cdc.batches.manifest import FORMAT, VERSION, Acked, Manifest, TableResult
from cdc.durable import explain, make_folder, replace_file, storage_errors, sync_folder
from cdc.errors import DamagedError, VersionError
from cdc.permissions import CHANGE, Permissions, secure_folder

KEPT = 1000


class ManifestFiles:
    """The manifests of one destination. Writers hold the meta's lock."""

    def __init__(self, meta_path: Path, *, kept: int = KEPT, permissions: Permissions = "private") -> None:
        self._permissions: Permissions = permissions
        self.folder = meta_path / "manifests"
        self._kept = kept

    def path(self, subscriber: str, batch: int) -> Path:
        """Where a batch's manifest lies."""
        return self.folder / subscriber / f"{batch:012d}.json"

    def save(self, manifest: Manifest) -> Path:
        """Write durably, replacing what a killed get left there."""
        path = self.path(manifest.subscriber, manifest.batch)
        secure_folder(self.folder.parent, self._permissions, CHANGE)
        make_folder(path.parent)
        replace_file(path, (manifest.model_dump_json(indent=1) + "\n").encode())
        return path

    def ids(self, subscriber: str) -> list[int]:
        """The batches that have a manifest, in their order."""
        with storage_errors(self.folder / subscriber):
            names = (p.stem for p in (self.folder / subscriber).glob("*.json"))
            return sorted(int(name) for name in names if name.isdecimal())

    def mark_acked(self, path: Path, time: datetime, results: tuple[TableResult, ...]) -> Manifest:
        """Add what became of the batch. Raises DamagedError where there is no sound manifest to add it to."""
        manifest = load_manifest(path)
        versions = dict(self._versions_before(manifest.subscriber, manifest.batch))
        versions.update({r.table: r.delta_version for r in results if r.delta_version is not None})
        self.save(manifest.model_copy(update={"acked": Acked(time=time, tables=results, versions=versions)}))
        return manifest

    def remove(self, subscriber: str, batches: Iterable[int]) -> None:
        """Remove manifests; those that are gone already are passed over."""
        paths = [self.path(subscriber, batch) for batch in batches]
        with storage_errors(self.folder):
            for path in paths:
                path.unlink(missing_ok=True)
            if paths and paths[0].parent.is_dir():
                sync_folder(paths[0].parent)

    def prune(self, subscriber: str, below: int) -> None:
        """Keep the last manifests among those of batches up to ``below`` (the one acked last)."""
        done = [batch for batch in self.ids(subscriber) if batch <= below]
        if len(done) > self._kept:
            self.remove(subscriber, done[: -self._kept])

    def _versions_before(self, subscriber: str, batch: int) -> dict[str, int]:
        for earlier in reversed([i for i in self.ids(subscriber) if i < batch]):
            acked = load_manifest(self.path(subscriber, earlier)).acked
            if acked is not None:  # None: left by a get that was killed
                return acked.versions
        return {}


def load_manifest(path: Path) -> Manifest:
    """Read and check a manifest. Raises DamagedError (also for a missing file), VersionError, StorageError."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DamagedError("this manifest is missing", place=str(path), remedy=_REMEDY) from None
    except OSError as error:
        raise explain(error, path) from error
    return parse_manifest(data, str(path))


def parse_manifest(data: bytes, place: str) -> Manifest:
    """The manifest in a file's content. Raises DamagedError, VersionError."""
    try:
        document = json.loads(data)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise DamagedError(f"is not whole: {error}", place=place, remedy=_REMEDY) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise DamagedError(f"is not a manifest: it does not say format {FORMAT}", place=place, remedy=_REMEDY)
    version = document.get("version")
    if isinstance(version, int) and version > VERSION:
        raise VersionError(
            f"has format version {version}; this Towpath knows {VERSION}",
            place=place,
            remedy="Update Towpath on this machine.",
        )
    try:
        return Manifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"]) or "the document"
        raise DamagedError(f"{where}: {first['msg'].lower()}", place=place, remedy=_REMEDY) from None


_REMEDY = "Get the batch again: it is then rolled back, and its transactions come in a new one."
