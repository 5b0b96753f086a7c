"""The tables that are parked, each with its way back; :mod:`cdc.lake.jobs.retry` brings them back."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cdc.base.errors import TablesLeftOutError
from cdc.base.log import get_logger
from cdc.base.targets import split_table
from cdc.client import open_meta
from cdc.lake.jobs.job import SUBSCRIBER
from cdc.meta import Subscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdc.config import DestinationConfig

_log = get_logger(__name__)


def waiting_tables(config: DestinationConfig) -> list[str]:
    """Returns the included tables that are parked because of an error, and may come back when they are tried again."""
    subscription = open_meta(config).read().subscriptions.get(SUBSCRIBER)
    waiting = (
        []
        if subscription is None
        else sorted(table for table, parked in subscription.parked.items() if parked.due == "retry")
    )
    return [table for table in waiting if config.tables.includes(*split_table(table))]


class TableLeftOut(NamedTuple):
    """A table that apply leaves out."""

    table: str
    sentence: str
    """The table, the reason and the way back."""
    fails: bool
    """Whether a run ends as failed because of it, if ``apply.on_parked`` is ``fail``."""


def left_out(config: DestinationConfig) -> list[TableLeftOut]:
    """Returns the included tables that are parked, by name. One that waits for its first snapshot, or was taken back by
    an operator, fails no run."""
    subscription = open_meta(config).read().subscriptions.get(SUBSCRIBER) or Subscription()
    return [
        TableLeftOut(
            table,
            f"{table} is left out: {parked.reason} {way_back(parked.due, config.name, table)}",
            parked.due == "retry" or (parked.due == "snapshot" and subscription.table(table) is not None),
        )
        for table, parked in sorted(subscription.parked.items())
        if config.tables.includes(*split_table(table))
    ]


def way_back(due: str, destination: str, table: str) -> str:
    """Returns what brings a parked table back, as a sentence."""
    if due == "snapshot":
        return f"`cdc snapshot {destination} {table}` brings it back."
    return "Each run tries it again." if due == "retry" else f"`cdc replay {destination} {table}` brings it back."


def require_none_left_out(config: DestinationConfig, say: Callable[[str], object]) -> None:
    """Tells which tables are left out, by ``say``. Raises TablesLeftOutError if that fails the run."""
    tables = left_out(config)
    for table in tables:
        say(table.sentence)
    failing = [table.table for table in tables if table.fails]
    if failing and config.apply.on_parked == "fail":
        raise TablesLeftOutError(
            f"{len(failing)} {'table is' if len(failing) == 1 else 'tables are'} left out: {', '.join(failing)}",
            place=f"destination {config.name}",
            remedy="Everything else is applied and acked. The reasons and the ways back are above; with "
            "apply.on_parked: warn such a run succeeds.",
        )
