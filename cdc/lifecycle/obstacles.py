"""Who still works on a destination that is to be removed, and what its folders have to do with others'."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.base.errors import CdcError, LeaseHeldError, UsageError
from cdc.base.targets import local_path
from cdc.base.units import iso_time
from cdc.batches.lease import OWNER_LOCK_NAME
from cdc.canal.cluster.discovery import Discovery
from cdc.config import neighbours
from cdc.copies.standby.role import read_status
from cdc.disk.durable import locked
from cdc.meta.base import DurableMeta
from cdc.meta.file import HOLDER_NAME, SERVER_LOCK_NAME
from cdc.source.connection import connect
from cdc.source.server import replica_label, replicas
from cdc.store.formats import archive_record, layout, missing
from cdc.store.formats.state import StoreLock

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.meta import Meta, State

_LOCK_WAIT_S = 2.0
"""Commands that only look take a lock for a moment."""


def of_configuration(config: DestinationConfig) -> Iterator[CdcError]:
    """Yields what makes a removal impossible here, whatever runs."""
    store = config.store
    if store.kind == "server":
        yield UsageError(
            f"the store and the meta are at {store.url} (store.kind: server)",
            place=str(config.file),
            remedy="Run `cdc remove` there, with the configuration of the server, and then delete this file.",
        )
    elif store.kind == "memory":
        yield UsageError(
            "the store ends with `cdc server` (store.kind: memory), so there is nothing to remove but the readers' "
            "positions in meta.path or ZooKeeper",
            place=str(config.file),
            remedy="Stop the server, delete this file and, with meta.kind: mixed, what meta names.",
        )


def of_neighbours(config: DestinationConfig) -> tuple[list[CdcError], list[str]]:
    """Returns an error for each other destination of the configuration's folder whose files lie in this one's store or
    meta, or are the same; and remarks on configurations that cannot be read."""
    errors: list[CdcError] = []
    remarks: list[str] = []
    own = {"store.path": _real(config.store.path), "meta.path": _real(config.meta.path)}
    for name, other in neighbours(config):
        if isinstance(other, CdcError):
            remarks.append(f"not compared with the folders of {name}, whose configuration cannot be read: {other}")
            continue
        for other_key, other_path in _folders(other):
            for key, path in own.items():
                if other_path == path or path in other_path.parents:
                    where = "is the same folder" if other_path == path else f"lies in it ({other_path})"
                    errors.append(
                        UsageError(
                            f"{other_key} of the destination {name} {where}",
                            place=f"{key} {path}",
                            remedy="Give each destination folders of its own before one of them is removed.",
                        )
                    )
    return errors, remarks


def _folders(config: DestinationConfig) -> list[tuple[str, Path]]:
    folders = []
    if config.store.kind == "file":
        folders.append(("store.path", _real(config.store.path)))
    if config.store.kind != "server" and config.meta.__dict__["path"] is not None:
        folders.append(("meta.path", _real(config.meta.path)))
    target = local_path(config.apply.target) if "apply" in config.model_fields_set else None
    if target is not None:
        folders.append(("apply.target", _real(target)))
    return folders


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def of_state(state: State) -> Iterator[CdcError]:
    """Yields an error for each batch that somebody holds, or has left behind."""
    for name, subscription in sorted(state.subscriptions.items()):
        for batch in subscription.outstanding:
            yield LeaseHeldError(
                f"batch {batch.batch} of {name} is outstanding: {batch.owner} holds it until {iso_time(batch.expires)}",
                place=f"subscription {name}",
                remedy=f"Let its run end. If nobody works on it any more: `cdc batch rollback --subscriber {name} "
                f"--batch {batch.batch} --token …`, with the token that `cdc batch get` prints.",
            )


def of_standby(config: DestinationConfig) -> Iterator[CdcError]:
    """Yields an error if a standby follows the store right now."""
    status = read_status(config.store.path) if config.store.path.is_dir() else None
    if status is None or not status.is_fresh or status.role == "standby":
        return
    for peer in status.peers:
        if peer.connected:
            yield LeaseHeldError(
                f"the standby {peer.address} follows this store",
                place=str(config.store.path),
                remedy="Stop `cdc standby` there; run `cdc remove` there, too.",
            )


def of_source(config: DestinationConfig) -> tuple[CdcError | None, str | None]:
    """Returns an error if the source still sends its binlog to another capture of this destination; a remark if it
    cannot be asked. The connection of a capture that was killed here may last a while, and does not count."""
    source = config.source
    if source.folder is not None:
        return None, None
    try:
        connection = connect(source, connect_timeout=min(5.0, source.connect_timeout_s))
        try:
            others = [
                replica
                for replica in replicas(connection)
                if replica.server_id == source.server_id and replica.host != replica_label(config)
            ]
        finally:
            connection.close()
    except CdcError as error:
        return None, f"the source was not asked whether another machine still captures: {error.message}"
    if not others:
        return None, None
    host = f" at {others[0].host}" if others[0].host else ""
    return (
        LeaseHeldError(
            f"the source sends its binlog to another replica{host} with server_id {source.server_id}: a capture of "
            "this destination runs elsewhere",
            place=f"source {source.host}:{source.port}",
            remedy="Stop that capture, and remove what it stores on its machine, too.",
        ),
        None,
    )


def hold(config: DestinationConfig, stack: ExitStack, *, folders: Container[Path] = ()) -> None:
    """Takes every lock in the folders of store and meta, so that neither capture nor a server, a command, an archive or
    a retention works meanwhile. ``folders``: those in which lock files that are missing are made. Raises LeaseHeldError
    that names the holder, StorageError."""
    store, meta = config.store.path, config.meta.path
    if (store in folders and store.is_dir()) or (store / layout.STORE_FILE).exists():
        lock = StoreLock(store)
        stack.callback(lock.release)
    locks = (
        (store / archive_record.LOCK_NAME, "an upload to the archive"),
        (store / missing.LOCK_NAME, "a retention"),
        (meta / SERVER_LOCK_NAME, "`cdc server`"),
        (meta / OWNER_LOCK_NAME, f"another `cdc` command for {config.name}"),
        (meta / HOLDER_NAME, "a process that keeps the meta in memory"),
    )
    for path, what in locks:
        if path.exists() or (path.parent in folders and path.parent.is_dir()):
            stack.enter_context(locked(path, what, wait_s=_LOCK_WAIT_S))


def of_locks(config: DestinationConfig) -> Iterator[CdcError]:
    """Yields the error of the first lock that somebody holds."""
    with ExitStack() as stack:
        try:
            hold(config, stack)
        except CdcError as error:
            yield error


def of_meta(meta: Meta) -> Iterator[CdcError]:
    """Yields an error for each lock of a table that a snapshot, a replay or a commit holds."""
    assert isinstance(meta, DurableMeta)
    for name in meta.held_locks():
        yield LeaseHeldError(
            f"somebody works on a table ({name})", place=meta.place, remedy="Wait until that ends, or end it."
        )


def of_cluster(config: DestinationConfig) -> Iterator[CdcError]:
    """Yields an error for each server of several (``server.ha``) that has the destination."""
    if config.meta.zookeepers is None:
        return
    discovery = Discovery(config.meta.zookeepers, config.name, root=config.meta.base)
    try:
        members = discovery.members()
    finally:
        discovery.close()
    for member in members:
        yield LeaseHeldError(
            f"the server {member.address} has the destination",
            place=discovery.place,
            remedy="Take the configuration away on that machine, or stop `cdc server` there.",
        )


def of_folders(config: DestinationConfig, state: State, *, incomplete: bool) -> Iterator[CdcError]:
    """Yields errors for a store of another destination, and for a store or a meta that is missing: its disk may not be
    mounted. ``incomplete``: an operator says that they are gone."""
    store = config.store.path
    for name, what in ((layout.MOVED_FILE, "was moved away"), (layout.MOVING_FILE, "is a copy that `cdc move` makes")):
        if (store / name).exists():
            yield UsageError(
                f"this store {what}, so the destination is elsewhere",
                place=str(store),
                remedy="Run `cdc remove` where it is; this folder may be deleted.",
            )
    document = layout.read_json(store / layout.STORE_FILE) if store.is_dir() else None
    owner = document.get("destination") if isinstance(document, dict) else None
    if document is not None and owner != config.name:
        yield UsageError(
            f"the store belongs to the destination {owner!r}, not to {config.name!r}",
            place=str(store),
            remedy="Correct store.path.",
        )
    is_removed = (store / layout.REMOVING_FILE).exists()
    if incomplete or is_removed:
        return
    remedy = "Mount it. If what was there is gone for good, add --incomplete, which removes the rest."
    bound = state.source is not None or bool(state.subscriptions)
    if document is None and bound:
        yield UsageError(
            "there is no store, and the meta knows one: is its disk mounted?", place=str(store), remedy=remedy
        )
    elif document is None:
        yield UsageError(
            f"there is neither a store nor a meta of {config.name}: is their disk mounted?",
            place=str(store),
            remedy=remedy,
        )
    elif not bound and document.get("begins") is not None:
        place = config.meta.hosts or str(config.meta.path)
        yield UsageError(
            "there is no meta, and the store was captured with one: is its disk mounted?", place=place, remedy=remedy
        )
