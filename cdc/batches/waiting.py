"""Whether a subscriber has something to get, and whether a get would have to wait. Changes nothing.

Triggers ask these questions while no task runs. The answers are hints: only a get decides.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cdc.base.units import time_us
from cdc.batches.preconditions import held_error, incomplete_error
from cdc.batches.subscribers import make_filter
from cdc.meta import State, open_meta
from cdc.store.reader.batch_builder import Limits
from cdc.store.reader.reader import StoreReader

if TYPE_CHECKING:
    from cdc.base.errors import LeaseHeldError, StoreIncompleteError
    from cdc.config import DestinationConfig


def waiting_seq(config: DestinationConfig, after_seq: int = 0) -> int | None:
    """Returns the seq up to which the store has been filled, if it has a transaction for apply after ``after_seq`` that
    no batch has yet; else None. Raises what reading store and meta raises."""
    with open_meta(config) as meta:
        return find_waiting(meta.read(), StoreReader(config.store.path), "apply", after_seq)


def find_waiting(state: State, reader: StoreReader, subscriber: str, after_seq: int) -> int | None:
    """:func:`waiting_seq` of a meta and a store that are open."""
    if not reader.exists():
        return None
    last_seq = reader.last_seq()
    if last_seq is None or last_seq < after_seq:  # another store than the one of which that seq was told
        after_seq = 0
    subscription = state.subscriptions.get(subscriber)
    after = max(after_seq, reader.removed_seq() if subscription is None else subscription.start_seq())
    table_filter = None if subscription is None else make_filter(subscription.filter)
    if reader.select(after, Limits(max_transactions=1), table_filter) is None:
        return None
    return last_seq


def obstacle(
    config: DestinationConfig, owner: str, until: datetime | None = None, subscriber: str = "apply"
) -> LeaseHeldError | StoreIncompleteError | None:
    """Returns the error with which a get of this owner would end if it did not wait: another owner holds the batch that
    is due, or the store is not known to be complete up to ``until`` (aware). None: nothing is in the way.

    Raises what reading store and meta raises.
    """
    with open_meta(config) as meta:
        return find_obstacle(config.name, meta.read(), StoreReader(config.store.path), owner, until, subscriber)


def find_obstacle(
    destination: str, state: State, reader: StoreReader, owner: str, until: datetime | None, subscriber: str
) -> LeaseHeldError | StoreIncompleteError | None:
    """:func:`obstacle` of a meta and a store that are open."""
    subscription = state.subscriptions.get(subscriber)
    for entry in [] if subscription is None else subscription.outstanding[:1]:
        if entry.owner != owner and entry.expires > datetime.now(UTC):
            return held_error(destination, subscriber, entry)
    if until is None:
        return None
    complete_us = reader.complete_until_us() if reader.exists() else 0
    if complete_us >= time_us(until):
        return None
    return incomplete_error(destination, until, complete_us, reader.capture_state())
