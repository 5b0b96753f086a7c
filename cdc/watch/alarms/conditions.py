"""The faults of a destination, derived from its status document: the conditions of ``deploy/alerts.yml``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from cdc.base.units import human_seconds
from cdc.config.alarms import AlarmKind
from cdc.watch.status import alarms, archive_sentences, gap_sentences

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.config.alarms import AlarmKind

Severity = Literal["critical", "warning"]
_MOST_TABLES = 50
"""Parked tables with an alarm of their own; further ones share one."""


@dataclass(frozen=True)
class Condition:
    """Something that is wrong."""

    kind: AlarmKind
    severity: Severity
    summary: str
    """A sentence."""
    detail: str = ""
    """The error, or what to do."""
    subscriber: str = ""
    table: str = ""
    at_once: bool = False
    """Whether an alarm is raised without waiting whether it lasts."""

    @property
    def key(self) -> tuple[str, str, str]:
        """Identifies the condition at the next look."""
        return self.kind, self.subscriber, self.table


@dataclass(frozen=True)
class Facts:
    """Facts that only the process of capture knows."""

    failure: str | None = None
    """The error with which capture has ended."""
    is_wanted: bool = True
    """False: an operator has stopped capture, or it waits until somebody subscribes."""
    is_restarted: bool = False
    """Whether the process starts a capture that has failed again by itself, so that a failure may pass."""


@dataclass(frozen=True)
class Findings:
    """The conditions at one moment."""

    conditions: Sequence[Condition]
    unknown: frozenset[str] = frozenset()
    """Kinds of which nobody can tell now whether they hold: their alarms stay as they are."""
    facts: Facts = field(default_factory=Facts)


def conditions(
    config: DestinationConfig, document: dict[str, Any], now_s: float, facts: Facts | None = None
) -> Findings:
    """Returns the faults of a destination. ``document``: as :func:`cdc.watch.status.collect` returns it. ``now_s``:
    Unix time."""
    facts = facts or Facts()
    raised = [*_capture(config, document, now_s, facts), *_source(config, document), *_disk(document)]
    raised += [*_archive(document), *_subscribers(config, document, now_s)]
    unknown = set()
    capture = document["capture"]
    if capture["running"] and not capture["connected"] and facts.failure is None:
        unknown.add("capture_failed")  # it may fail again
    if facts.is_wanted and document["source"]["purge"] is None:
        unknown.add("source_purge")
    return _without_ignored(config, Findings(raised, frozenset(unknown), facts))


def unreadable(config: DestinationConfig, error: str, facts: Facts | None = None) -> Findings:
    """Returns the findings for a destination whose status cannot be collected: everything else stays as it is."""
    facts = facts or Facts()
    condition = Condition(
        "status_unreadable",
        "warning",
        f"The status of {config.name} cannot be collected.",
        f"{error} Other alarms of this destination are blind meanwhile.",
    )
    raised = [condition] if facts.failure is None else [condition, _failed(config, facts.failure, facts)]
    return _without_ignored(config, Findings(raised, frozenset(_ALL - {condition.kind for condition in raised}), facts))


def all_kinds() -> tuple[str, ...]:
    """Returns the names of all alarms."""
    from typing import get_args

    return get_args(AlarmKind)


_ALL = frozenset(all_kinds())


def _without_ignored(config: DestinationConfig, findings: Findings) -> Findings:
    ignored = config.alarms.ignore
    return Findings(
        [condition for condition in findings.conditions if condition.kind not in ignored],
        findings.unknown - {*ignored},
        findings.facts,
    )


def _failed(config: DestinationConfig, error: str, facts: Facts) -> Condition:
    summary = f"The capture of {config.name} has ended with an error."
    return Condition("capture_failed", "critical", summary, error, at_once=not facts.is_restarted)


def _capture(config: DestinationConfig, document: dict[str, Any], now_s: float, facts: Facts) -> Iterator[Condition]:
    capture, name = document["capture"], config.name
    if not facts.is_wanted:
        return
    if facts.failure is not None:
        yield _failed(config, facts.failure, facts)
    elif capture["running"]:
        if not capture["connected"]:
            yield Condition(
                "capture_disconnected",
                "critical",
                f"The capture of {name} has no connection to its source.",
                f"{capture['error'] or 'It is connecting.'} It connects again by itself.",
            )
    elif capture["error"] is not None:
        yield _failed(config, capture["error"], facts)
    elif not capture["ended"]:
        yield Condition(
            "capture_down",
            "critical",
            f"No capture of {name} runs, and the last one was killed.",
            "Changes are not lost as long as the source keeps its binlog. Start the capture again.",
        )
    until = document["store"]["complete_until"]
    if until is not None and document["source"]["folder"] is None:
        lag_s = now_s - datetime.fromisoformat(until).timestamp()
        if lag_s > config.alarms.lag_s:
            yield Condition(
                "capture_lag",
                "warning",
                f"The store of {name} is {human_seconds(lag_s)} behind its source.",
                "The capture reads slower than the source writes, or does not read at all.",
            )


def _source(config: DestinationConfig, document: dict[str, Any]) -> Iterator[Condition]:
    purge = document["source"]["purge"]
    if purge is not None and purge["left_ratio"] < config.source.purge_alarm_ratio:
        from cdc.source.purge import REMEDY  # loads the source's driver

        yield Condition(
            "source_purge",
            "critical",
            f"The source of {config.name} is about to purge binlog files that were not read.",
            f"{purge['text']}. {REMEDY}",
        )


def _disk(document: dict[str, Any]) -> Iterator[Condition]:
    disk = document["retention"]["disk"]
    if disk is None or disk["level"] == "ok":
        return
    used = f"{disk['used_ratio']:.1%}"
    name = document["destination"]
    yield Condition(
        "disk_fills_up",
        "warning",
        f"The disk of the store of {name} is {used} full.",
        "`cdc status` names who holds the store back, and `cdc maintain` removes what all have acked.",
    )
    if disk["level"] == "stop":
        yield Condition(
            "disk_full",
            "critical",
            f"The disk of the store of {name} is {used} full, and capture does not write any more.",
            "Nothing is lost as long as the source keeps its binlog. Make room on the disk.",
        )


def _archive(document: dict[str, Any]) -> Iterator[Condition]:
    archive = document["archive"]
    if archive is not None and archive["error"] is not None:
        (text,) = archive_sentences(archive)
        yield Condition("archive_fails", "warning", text.removeprefix("Alarm: ")[:1].upper() + text[8:])


def _subscribers(config: DestinationConfig, document: dict[str, Any], now_s: float) -> Iterator[Condition]:
    name = config.name
    for subscription in document["subscriptions"]:
        who = subscription["name"]
        if subscription["behind"]["transactions"] and subscription["lag_s"] > config.alarms.lag_s:
            yield Condition(
                "subscriber_lag",
                "warning",
                f"{who} of {name} is {human_seconds(subscription['lag_s'])} behind.",
                "The oldest transaction that is not acked has this age. Look at the last run.",
                who,
            )
        if subscription["cut_off"]:
            (text,) = alarms([{**subscription, "held_back": {"lost": False}}])
            yield Condition("subscriber_cut_off", "critical", text.removeprefix("Alarm: "), "", who)
        if subscription["held_back"]["lost"]:
            (text,) = alarms([{**subscription, "cut_off": False}])
            yield Condition("subscriber_holds_back", "warning", text.removeprefix("Alarm: "), "", who)
        if subscription["before_beginning"]:
            text = gap_sentences([{**subscription, "gaps": []}], name)[0]
            yield Condition("subscriber_before_store", "critical", text.removeprefix("Alarm: "), "", who)
        expired = [
            batch for batch in subscription["outstanding"] if datetime.fromisoformat(batch["expires"]) < _time(now_s)
        ]
        if expired:
            yield Condition(
                "batch_abandoned",
                "warning",
                f"Batch {expired[0]['batch']} of {name} is outstanding, and nobody renews its lease.",
                f"Its owner {expired[0]['owner']} died. The next run of the same owner takes it over.",
                who,
            )
        if who == "apply" and subscription["rolled_back"]:
            count = subscription["rolled_back"]
            yield Condition(
                "run_failed",
                "critical",
                f"The last run of {name} failed: its batch was rolled back.",
                f"{count} batches in a row were rolled back. The log of the run names the table and the reason. "
                "Nothing is lost.",
                who,
            )
        parked = subscription["parked"]
        for table in parked[:_MOST_TABLES]:
            yield Condition(
                "table_parked",
                "warning",
                f"Apply leaves out {table['table']} of {name}.",
                f"{table['reason']} `cdc status` names the way back.",
                who,
                table["table"],
            )
        if len(parked) > _MOST_TABLES:
            more = f"Apply leaves out {len(parked) - _MOST_TABLES} more tables of {name}."
            yield Condition("table_parked", "warning", more, "`cdc status` names them.", who)


def _time(unix_s: float) -> datetime:
    return datetime.fromtimestamp(unix_s, UTC)
