"""Retention between store and meta: who holds the store back, and what goes. Run by capture and ``cdc maintain``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from cdc.errors import CdcError, StorageError
from cdc.log import get_logger
from cdc.store.reader.reader import StoreReader
from cdc.store.retention.disk import DiskWatch, Level, Ratios, disk_usage
from cdc.store.retention.retain import HeldBack, Holder, Outcome, Rules, held_back, retain

if TYPE_CHECKING:
    from cdc.config import DestinationConfig, RetainConfig, StoreConfig
    from cdc.meta import Meta
    from cdc.meta.state import Subscription

log = get_logger(__name__)

_EVERY_S = 60.0
_EVERY_UNDER_PRESSURE_S = 5.0
_SAY_AGAIN_S = 3600.0


def holders(subscriptions: Mapping[str, Subscription], rules: RetainConfig, now: datetime) -> list[Holder]:
    """Everybody who holds the store back: the subscribers, and those that have to come yet (``wait_for``). A batch
    whose lease has expired is in nobody's use: its token is worth nothing any more."""
    found = [
        Holder(
            name,
            known.acked_seq,
            tuple((batch.first_seq, batch.last_seq) for batch in known.outstanding if batch.expires > now),
        )
        for name, known in sorted(subscriptions.items())
    ]
    return found + [Holder(name, 0) for name in rules.wait_for if name not in subscriptions]


def rules_of(config: RetainConfig) -> Rules:
    return Rules(config.acked_for, config.unacked_for, config.max_bytes)


def make_watch(config: StoreConfig) -> DiskWatch:
    """The watch over the disk of a store."""
    disk = config.disk
    return DiskWatch(config.path, Ratios(disk.warn_ratio, disk.clean_ratio, disk.stop_ratio), usage=disk_usage)


@dataclass(frozen=True)
class Kept:
    """One run of retention."""

    outcome: Outcome
    held: list[HeldBack]
    """All subscribers; those that are lost, or cut off by this run, are named in the log as well."""
    level: Level


class Keeper:
    """Runs retention for a destination."""

    def __init__(
        self,
        config: DestinationConfig,
        meta: Meta,
        *,
        watch: DiskWatch | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._config = config
        self._meta = meta
        self.watch = make_watch(config.store) if watch is None else watch
        self._clock = clock
        self._ran_at = float("-inf")
        self._newest: str | None = None
        self._said: dict[str, float] = {}

    def tick(self, segment: str | None = None) -> None:
        """To be called about once a second: runs once a minute, whenever ``segment`` (the one that is written) is a new
        one, and every 5 s while the disk is too full. What goes wrong is logged: capture goes on without."""
        pressed = self.level() >= Level.CLEAN
        since_s = time.monotonic() - self._ran_at
        rolled = bool(segment) and segment != self._newest
        if since_s < (_EVERY_UNDER_PRESSURE_S if pressed else _EVERY_S) and not rolled:
            return
        self._ran_at, self._newest = time.monotonic(), segment or self._newest
        try:
            self.run()
        except CdcError as error:
            log.warning("retention failed", error=str(error))

    def wait_for_room(self, stop: threading.Event, pause_s: float = 1.0) -> bool:
        """Is there room to write? If not, wait a little: who reads the source then reads nothing, and it keeps what is
        not stored."""
        if self.level() < Level.STOP:
            return True
        self._say("disk", "the disk is nearly full: nothing is read from the source", error=str(self.watch.error()))
        self.tick()
        if self.level() < Level.STOP:
            return True
        stop.wait(pause_s)
        return False

    def level(self, size_bytes: int = 0) -> Level:
        """How full the disk is. One that does not tell is taken for one with room: the write itself will say it."""
        try:
            return self.watch.look(size_bytes)
        except StorageError as error:
            self._say("watch", "the disk cannot be watched", error=str(error))
            return Level.OK

    def run(self, *, by_hand: bool = False, dry_run: bool = False) -> Kept:
        """One run. ``by_hand``: at any hour of the day. Raises what store and meta raise, and LeaseHeldError where
        another run does not end."""
        store, now = self._config.store, self._clock()
        rules = store.retain
        known = holders(self._meta.read().subscriptions, rules, now)
        hours = rules.delete_at
        now_us = int(now.timestamp() * 1_000_000)
        level = self.level()
        outcome = retain(
            store.path,
            known,
            rules_of(rules),
            now_us=now_us,
            by_age=by_hand or hours is None or now.astimezone().hour in hours,
            wanted_bytes=self.watch.to_free(),
            dry_run=dry_run,
        )
        held = held_back(StoreReader(store.path), known, lost_after_s=rules.lost_after, now_us=now_us)
        if not dry_run:
            self._report(outcome, held)
        return Kept(outcome, held, level)

    def _report(self, outcome: Outcome, held: list[HeldBack]) -> None:
        for one in outcome.removed:
            log.info("segment removed", segment=one.name, bytes=one.bytes, last_seq=one.last_seq, why=one.why)
        for name in outcome.cut_off:
            log.error(
                "a subscriber was cut off: retention removed what it had not acked",
                subscriber=name,
                acked_seq=next(one.acked_seq for one in held if one.name == name),
                removed_until=outcome.removed[-1].last_seq,
            )
        for held_one in held:
            if held_one.lost:
                self._say(
                    f"lost {held_one.name}",
                    "a subscriber seems lost and holds the store back",
                    subscriber=held_one.name,
                    acked_seq=held_one.acked_seq,
                    bytes=held_one.bytes,
                    since=iso_us(held_one.since_us),
                    remedy=f"Start it, or `cdc batch unsubscribe {self._config.name} --subscriber {held_one.name}`.",
                )
        if outcome.over_bytes:
            self._say(
                "over",
                "the store is larger than retain.max_bytes, and what is left is not acked",
                over_bytes=outcome.over_bytes,
                held_by=[one.name for one in held if one.bytes],
            )

    def _say(self, key: str, text: str, **what: Any) -> None:
        """A warning, at most once an hour."""
        now = time.monotonic()
        if now - self._said.get(key, float("-inf")) >= _SAY_AGAIN_S:
            self._said[key] = now
            log.warning(text, **what)


def iso_us(time_us: int | None) -> str | None:
    """Microseconds since 1970 as ISO 8601, UTC."""
    from cdc.units import iso_time_us

    return None if time_us is None else iso_time_us(time_us)
