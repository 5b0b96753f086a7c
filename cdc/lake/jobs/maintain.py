"""The work of ``cdc maintain`` and of the DAG's maintain task: retention of the store."""

from __future__ import annotations

from typing import Any

from cdc.base.errors import ConfigError
from cdc.base.log import get_logger
from cdc.base.units import iso_time_us
from cdc.batches.retention import make_cleaner
from cdc.client import open_store
from cdc.client.reader import RemoteReader
from cdc.config import DestinationConfig
from cdc.meta import open_meta
from cdc.source.snapshot.files import remove_useless
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.cleaner import CleanerRun, LogCleaner, SubscriberBacklog

_log = get_logger(__name__)


def maintain(config: DestinationConfig, *, dry_run: bool = False) -> dict[str, Any]:
    """Removes segments of the store that no subscriber needs any more, and snapshots without changes behind them.
    Returns what was removed, what is left and who holds it back, as a JSON object.

    ``dry_run``: nothing is removed, and the document says what would be. Nothing is removed either if a server has the
    store, because it is maintained there. Raises UsageError on a standby, ConfigError
    if there is no store yet.
    """
    if config.store.kind == "server":
        return _nothing_removed(config, dry_run)
    from cdc.capture.replication import require_no_standby  # imports the driver, which cdc status does without

    require_no_standby(config)  # the master's retention decides there
    if not config.store.path.is_dir():
        raise ConfigError(
            "there is no store yet",
            place=str(config.store.path),
            remedy=f"Start `cdc capture {config.name}`, which creates it; or correct store.path.",
        )
    cleaner = make_cleaner(config, open_meta(config))
    document = _document(config, cleaner.run(by_hand=True, dry_run=dry_run), cleaner, dry_run)
    document["snapshots_removed"] = [] if dry_run else remove_useless(config, open_store(config).removed_seq())
    return document


def _nothing_removed(config: DestinationConfig, dry_run: bool) -> dict[str, Any]:
    """Returns the document for a store that another machine maintains."""
    reader = open_store(config)
    assert isinstance(reader, RemoteReader)
    _log.info("the store is maintained where the server runs", destination=config.name, server=reader.place)
    return {
        "destination": config.name,
        "dry_run": dry_run,
        "removed": [],
        "removed_bytes": 0,
        "removed_until": reader.removed_seq() or None,
        "bytes_left": reader.totals().bytes,
        "over_bytes": 0,
        "unarchived": 0,
        "cut_off": [],
        "subscriptions": [],
        "disk": reader.disk(),
        "snapshots_removed": [],
    }


def held_document(held: SubscriberBacklog) -> dict[str, Any]:
    """Returns what a subscriber holds back, for JSON."""
    since = None if held.since_us is None else iso_time_us(held.since_us)
    return {"bytes": held.bytes, "transactions": held.transactions, "since": since, "lost": held.lost}


def _document(config: DestinationConfig, run: CleanerRun, cleaner: LogCleaner, dry_run: bool) -> dict[str, Any]:
    removal = run.removal
    reader = StoreReader(config.store.path)
    return {
        "destination": config.name,
        "dry_run": dry_run,
        "removed": [
            {"segment": segment.name, "bytes": segment.bytes, "last_seq": segment.last_seq, "why": segment.why}
            for segment in removal.removed
        ],
        "removed_bytes": removal.bytes,
        "removed_until": reader.removed_seq() or None,
        "bytes_left": removal.bytes_left,
        "over_bytes": removal.over_bytes,
        "unarchived": removal.unarchived,
        "cut_off": list(removal.cut_off),
        "subscriptions": [
            {"name": backlog.name, "acked_seq": backlog.acked_seq, "held_back": held_document(backlog)}
            for backlog in run.backlogs
        ],
        "disk": cleaner.watch.document(),
    }
