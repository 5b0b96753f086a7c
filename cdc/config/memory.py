"""A store in the memory of ``cdc server`` (``store.kind: memory``): its rules, and what the server makes of it.

The server gives it a folder in the machine's shared memory, in which its capture, a process of its own, writes segments
and the server reads them. So :func:`in_memory` returns the configuration of a store of files there. Decision 0118 says
why. Processes other than the server and its capture have no use for such a store: they keep the configuration as it was
written, whose ``store.path`` is an error.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.config.values import Contradiction

if TYPE_CHECKING:
    from cdc.config.destination import DestinationConfig

SHARED_MEMORY = Path("/dev/shm")
NO_LAKE = "none://"
"""The target of a destination that fills no tables."""
_SEGMENTS = 8
"""The buffer is this many segments or more: each is removed as a whole."""
_LEAST_SEGMENT, _MOST_SEGMENT = 64 << 10, 16 << 20
_ITEM_BYTES = 256
"""Bytes for which an event counts when segments are sized: small ones, so that segments are."""
_OF_TABLES = ("apply", "airflow", "batch", "mq", "s3", "snapshot", "spark")
"""Sections of destinations that fill tables or send messages, in batches that must outlast the server."""


def memory_contradictions(config: DestinationConfig) -> Iterator[Contradiction]:
    """Yields what a store in memory does not allow. A meta in memory needs such a store."""
    if config.store.kind != "memory":
        if config.meta.kind in ("memory", "mixed"):
            yield Contradiction(
                f"meta.kind: {config.meta.kind} needs store.kind: memory: other stores are used by several processes, "
                "and outlast each of them",
                "Set meta.kind: file or zookeeper.",
            )
        return
    for name in _OF_TABLES:
        if name in config.model_fields_set:
            yield Contradiction(
                f"{name} has no effect with store.kind: memory, which keeps no batches for tables or for Kafka",
                f"Remove {name}, or set store.kind: file.",
            )
    if not config.server.canal.enabled:
        yield Contradiction(
            "store.kind: memory needs server.canal.enabled: true: clients of Canal are its only readers",
            "Add server: {canal: {enabled: true}, capture: always}, or set store.kind: file.",
        )
    if config.server.capture == "none":
        yield Contradiction(
            "store.kind: memory needs server.capture: always or subscribed: no other capture has its memory",
            "Set server.capture.",
        )
    if config.server.tokens:
        yield Contradiction(
            "server.tokens and store.kind: memory contradict each other: batches over HTTP need a store on a disk",
            "Remove server.tokens, or set store.kind: file.",
        )
    if config.source.standbys:
        yield Contradiction(
            "source.standbys and store.kind: memory contradict each other: a failover goes on from what the store has",
            "Remove source.standbys, or set store.kind: file.",
        )
    if config.source.start == "snapshot":
        yield Contradiction(
            "source.start: snapshot and store.kind: memory contradict each other: a snapshot fills tables",
            "Set source.start: now, earliest, or a position.",
        )
    if config.tables.route:
        yield Contradiction(
            "tables.route has no effect with store.kind: memory",
            "Remove it: no tables are filled.",
        )
    overridden = {key for override in config.tables.overrides.values() for key in override.model_fields_set}
    if overridden - {"members"}:
        yield Contradiction(
            f"tables.overrides: {', '.join(sorted(overridden - {'members'}))} has no effect with store.kind: memory",
            "Remove it: no tables are filled. The key members is possible.",
        )


def in_memory(config: DestinationConfig) -> DestinationConfig:
    """Returns the configuration with which the server and its capture run a destination: the same, unless its store is
    in memory. Then store, and meta if that is in memory, are files in :func:`run_folder`."""
    if config.store.kind != "memory":
        return config
    run, settings = run_folder(config), config.store
    item_bytes = settings.buffer_unit_bytes if settings.batch_mode == "memsize" else _ITEM_BYTES
    segment_bytes = settings.buffer_size * item_bytes // _SEGMENTS
    store = settings.model_copy(
        update={
            "kind": "file",
            "path": run / "store",
            "segment_bytes": min(max(segment_bytes, _LEAST_SEGMENT), _MOST_SEGMENT),
            "retain": settings.retain.model_copy(update={"wait_for": ()}),
        }
    )
    store._run_folder = run
    meta, alarms = config.meta, config.alarms
    beside = run / "meta"
    if meta.kind == "memory":
        meta = meta.model_copy(update={"kind": "file", "path": beside})
    else:
        beside = meta.path
    if alarms.path is None:
        alarms = alarms.model_copy(update={"path": beside.with_name(f"{beside.name}.alarms.json")})
    apply = config.apply.model_copy(update={"target": str(run / "lake")})
    return config.model_copy(update={"store": store, "meta": meta, "alarms": alarms, "apply": apply})


def run_folder(config: DestinationConfig) -> Path:
    """Returns the folder in shared memory of a destination: the same for the server and its capture, and another one
    for each user and configuration file."""
    digest = hashlib.sha256(os.fsencode(config.file)).hexdigest()[:12]
    return SHARED_MEMORY / f"towpath-{os.geteuid()}" / f"{config.name}-{digest}"


def full_mark(run: Path) -> Path:
    """Returns the file in a run folder that is there while capture waits because the buffer is full."""
    return run / "full"


def owner_lock(run: Path) -> Path:
    """Returns the file in a run folder whose lock the server has that owns it."""
    return run / "owner.lock"


def readers_lock(run: Path) -> Path:
    """Returns the file in a run folder whose lock is held while a reader comes, or segments go that all have acked: a
    new reader begins at a segment that stays."""
    return run / "readers.lock"
