"""The copy of a meta in the archive: the state, and the manifest of the last acked batch of each subscriber.

Outstanding batches are left out. Their owners are gone when the copy is used, so the batches count as rolled back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.base.errors import DamagedError
from cdc.batches.manifest_files import ManifestFiles, load_manifest
from cdc.meta.file import parse, render

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.meta import Meta, State

META = "meta/meta.json"
MANIFESTS = "meta/manifests/"
_IDS_APART = 1000
"""So many ids of batches are passed over when a copy is used: the batches after the copy was made had them."""


def meta_files(config: DestinationConfig, meta: Meta) -> dict[str, bytes]:
    """Returns the files of the copy, by their paths in the archive. Raises what reading the meta raises."""
    state = meta.read()
    files: dict[str, bytes] = {}
    manifests = ManifestFiles(config.meta.path, permissions=config.meta.permissions)
    for name, subscription in sorted(state.subscriptions.items()):
        subscription.outstanding = []
        for batch in reversed(manifests.ids(name)):
            path = manifests.path(name, batch)
            try:
                manifest = load_manifest(path)
            except DamagedError:
                continue  # it was removed meanwhile, or is damaged: the one before it serves as well
            if manifest.acked is not None and manifest.last_seq <= subscription.acked_seq:
                files[f"{MANIFESTS}{name}/{batch:012d}.json"] = (manifest.model_dump_json(indent=1) + "\n").encode()
                break
    files[META] = render(state)
    return files


def restored_state(data: bytes, place: str) -> State:
    """Returns the state of a copy, with ids for new batches that were never used. Raises DamagedError, VersionError."""
    state = parse(data, place)
    for subscription in state.subscriptions.values():
        subscription.outstanding = []
        subscription.next_batch += _IDS_APART
    return state
