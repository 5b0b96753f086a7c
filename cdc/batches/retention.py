"""Wires retention: the subscribers of the meta hold back the store, by the rules of the configuration.

Capture and ``cdc maintain`` run the cleaner that :func:`make_cleaner` returns. The store itself knows neither the meta
nor the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cdc.base.errors import CdcError
from cdc.base.log import get_logger
from cdc.batches.subscribers import skip_unwanted
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.cleaner import Holder, LogCleaner, RetentionRules
from cdc.store.retention.disk import DiskWatch, Ratios

if TYPE_CHECKING:
    from cdc.config import DestinationConfig, RetainConfig, StoreConfig
    from cdc.meta import Meta
    from cdc.meta.state import Subscription

log = get_logger(__name__)


def holders(subscriptions: Mapping[str, Subscription], rules: RetainConfig, now: datetime) -> list[Holder]:
    """Returns every subscriber and every parked table that holds the store back, and the subscribers that ``wait_for``
    names before their first read. A batch whose lease has expired is not in use: its token is not valid any more."""
    parked = [
        Holder(f"{name}: parked table {table}", record.keep_seq)
        for name, subscription in sorted(subscriptions.items())
        for table, record in sorted(subscription.parked.items())
        if record.keep_seq is not None
    ]
    subscribers = [
        Holder(
            name,
            subscription.acked_seq,
            tuple((batch.first_seq, batch.last_seq) for batch in subscription.outstanding if batch.expires > now),
        )
        for name, subscription in sorted(subscriptions.items())
    ]
    return subscribers + parked + [Holder(name, 0) for name in rules.wait_for if name not in subscriptions]


def make_watch(config: StoreConfig) -> DiskWatch:
    """Returns the watch over the disk of a store."""
    disk = config.disk
    return DiskWatch(config.path, Ratios(disk.warn_ratio, disk.clean_ratio, disk.stop_ratio))


def make_cleaner(
    config: DestinationConfig,
    meta: Meta,
    *,
    watch: DiskWatch | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> LogCleaner:
    """Returns the cleaner of a destination's store. It reads the subscribers from the meta at each run. ``watch`` and
    ``clock`` are for tests."""
    store, retain = config.store, config.store.retain

    def look(now: datetime) -> list[Holder]:
        _skip_unwanted(meta, store)
        return holders(meta.read().subscriptions, retain, now)

    return LogCleaner(
        store.path,
        RetentionRules(
            acked_for_s=retain.acked_for,
            unacked_for_s=retain.unacked_for,
            max_bytes=retain.max_bytes,
            delete_at=retain.delete_at,
            lost_after_s=retain.lost_after,
            wait_for_archive=config.archive_uri if retain.wait_for_archive else None,
        ),
        look,
        make_watch(store) if watch is None else watch,
        destination=config.name,
        clock=clock,
    )


def _skip_unwanted(meta: Meta, store: StoreConfig) -> None:
    """Moves the cursors of filtered subscribers over what they do not get, also of those that do not read now."""
    filtered = [name for name, subscription in meta.read().subscriptions.items() if subscription.filter is not None]
    if not filtered:
        return

    for name in filtered:
        try:
            skip_unwanted(meta, StoreReader(store.path), name)
        except CdcError as error:  # the cursor stays, and holds the store back
            log.warning("the cursor of a filtered subscriber stays", subscriber=name, reason=str(error))
