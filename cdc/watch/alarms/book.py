"""The book of alarms: what was raised, and which handler was told what. It is a file, so that a restart tells nothing
twice. ``docs/formats/alarms.md`` describes it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from cdc.base.documents import json_object, require_version
from cdc.base.errors import DamagedError
from cdc.base.log import get_logger
from cdc.disk.durable import explain, make_folder, replace_file, storage_errors
from cdc.watch.alarms.conditions import Condition, Findings, Severity
from cdc.watch.alarms.notice import Event, Notice

if TYPE_CHECKING:
    from cdc.config import DestinationConfig

VERSION = 1
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 5.0, 600.0
_GIVE_UP_S = 86400.0
"""An alarm that has ended is forgotten after this time, even if a handler could not be told so."""
_log = get_logger(__name__)


class Told(BaseModel):
    """The state of one alarm for one handler."""

    model_config = ConfigDict(extra="ignore")

    messages: int = 0
    """The number of messages that it has taken."""
    last: AwareDatetime | None = None
    failures: int = 0
    """Tries in a row that failed."""
    next_try: AwareDatetime | None = None
    """Not before this time, after a failure."""
    knows_end: bool = False


class AlarmRecord(BaseModel):
    """An alarm."""

    model_config = ConfigDict(extra="ignore")

    id: str
    alarm: str
    severity: Severity
    summary: str
    detail: str = ""
    subscriber: str = ""
    table: str = ""
    since: AwareDatetime
    raised: AwareDatetime | None = None
    """None while nobody knows whether the condition lasts."""
    absent: AwareDatetime | None = None
    """Since when the condition has not been seen."""
    resolved: AwareDatetime | None = None
    handlers: dict[str, Told] = {}

    @property
    def key(self) -> tuple[str, str, str]:
        return self.alarm, self.subscriber, self.table


class _Document(BaseModel):
    model_config = ConfigDict(extra="ignore")

    version: int
    destination: str
    alarms: list[AlarmRecord]


class AlarmBook:
    """The alarms of one destination. One thread uses it at a time."""

    def __init__(self, config: DestinationConfig) -> None:
        self._name, self._settings, self._path = config.name, config.alarms, config.alarms_path
        self.records: list[AlarmRecord] = []
        self._under_way: set[tuple[str, str]] = set()
        """Handlers that are about to get a message, and the ids of its alarms."""
        self._saved = b""

    def load(self) -> None:
        """Reads the file, if there is one. Raises DamagedError, VersionError, StorageError."""
        self.records = read_records(self._path)
        self._saved = self._render()

    def save(self) -> None:
        """Writes the file if something has changed. Raises StorageError, ConfigError."""
        data = self._render()
        if data == self._saved:
            return
        make_folder(self._path.parent)
        replace_file(self._path, data)
        self._saved = data

    def set_aside(self) -> Path:
        """Renames a damaged file, and begins a new one. Raises StorageError."""
        other = self._path.with_name(f"{self._path.name}.damaged")
        with storage_errors(self._path):
            self._path.replace(other)
        return other

    def _render(self) -> bytes:
        document = _Document(version=VERSION, destination=self._name, alarms=self.records)
        return (document.model_dump_json(indent=1) + "\n").encode()

    # --- conditions

    def update(self, findings: Findings, now: datetime) -> None:
        """Takes note of what is wrong now."""
        wait = timedelta(seconds=self._settings.for_s)
        open_ones = {record.key: record for record in self.records if record.resolved is None}
        for condition in findings.conditions:
            alarm = open_ones.pop(condition.key, None)
            if alarm is None:
                alarm = _record(condition, now)
                self.records.append(alarm)
            elif alarm.raised is None or alarm.severity != condition.severity:
                alarm.severity, alarm.summary, alarm.detail = condition.severity, condition.summary, condition.detail
            alarm.absent = None
            if alarm.raised is None and (condition.at_once or now - alarm.since >= wait):
                alarm.raised = now
                alarm.summary, alarm.detail = condition.summary, condition.detail
                _log.warning("alarm raised", alarm=alarm.alarm, summary=alarm.summary, destination=self._name)
            elif alarm.raised is not None:
                self._refresh(alarm, condition, now)
        for alarm in open_ones.values():
            if alarm.alarm not in findings.unknown:
                self._leave(alarm, now, wait)
        self.records = [record for record in self.records if not self._is_over(record, now)]

    def _refresh(self, record: AlarmRecord, condition: Condition, now: datetime) -> None:
        """Takes over the text of a condition when a message is due, and not at each look: the file would change."""
        if any(True for _ in self.due(now, self._settings.handlers, only=record)):
            record.summary, record.detail = condition.summary, condition.detail

    def _leave(self, record: AlarmRecord, now: datetime, wait: timedelta) -> None:
        if record.raised is None:
            self.records.remove(record)
            return
        record.absent = record.absent or now
        if now - record.absent >= wait:
            record.resolved = now
            _log.info("alarm resolved", alarm=record.alarm, summary=record.summary, destination=self._name)

    def _is_over(self, record: AlarmRecord, now: datetime) -> bool:
        """Whether an alarm has ended and every handler that knows of it was told so."""
        if record.resolved is None:
            return False
        if (now - record.resolved).total_seconds() > _GIVE_UP_S:
            return True
        if any(id_ == record.id for _, id_ in self._under_way):
            return False
        told = [record.handlers[name] for name in self._settings.handlers if name in record.handlers]
        return all(handler_state.knows_end or not handler_state.messages for handler_state in told)

    # --- messages

    def due(
        self, now: datetime, handlers: Sequence[str], *, only: AlarmRecord | None = None
    ) -> Iterator[tuple[str, Notice]]:
        """Yields the messages that handlers should get now, oldest alarm first."""
        for record in self.records if only is None else [only]:
            if record.raised is None:
                continue
            for handler in handlers:
                told = record.handlers.get(handler, Told())
                event = self._event(record, told, now)
                if event is not None and (handler, record.id) not in self._under_way:
                    yield handler, _notice(self._name, record, told, event, now)

    def _event(self, record: AlarmRecord, told: Told, now: datetime) -> Event | None:
        if told.next_try is not None and now < told.next_try:
            return None
        if record.resolved is not None:
            return "resolved" if told.messages and not told.knows_end else None
        if not told.messages:
            return "raised"
        repeat_s = self._settings.repeat_s
        assert told.last is not None
        if repeat_s is not None and (now - told.last).total_seconds() >= repeat_s:
            return "repeated"
        return None

    def sending(self, handler: str, notice: Notice) -> None:
        """Takes note that a message is under way; :meth:`sent` or :meth:`failed` follows."""
        self._under_way.add((handler, notice.id))

    def sent(self, handler: str, notice: Notice, now: datetime) -> None:
        """Takes note that a handler has taken a message."""
        self._under_way.discard((handler, notice.id))
        for record in self.records:
            if record.id == notice.id:
                messages = record.handlers.get(handler, Told()).messages + 1
                record.handlers[handler] = Told(messages=messages, last=now, knows_end=notice.event == "resolved")
        self.records = [record for record in self.records if not self._is_over(record, now)]

    def failed(self, handler: str, notice: Notice, now: datetime) -> float:
        """Takes note that a handler has not taken a message; returns the pause until the next try, in seconds."""
        self._under_way.discard((handler, notice.id))
        pause_s = _FIRST_PAUSE_S
        for record in self.records:
            if record.id == notice.id:
                told = record.handlers.setdefault(handler, Told())
                pause_s = min(_FIRST_PAUSE_S * 2**told.failures, _LONGEST_PAUSE_S)
                told.failures = min(told.failures + 1, 30)
                told.next_try = now + timedelta(seconds=pause_s)
        return pause_s


def read_records(path: Path) -> list[AlarmRecord]:
    """Returns the alarms in a file; none if there is no file. Raises DamagedError, VersionError, StorageError."""
    try:
        document = json_object(path.read_bytes(), str(path), _REMEDY)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise explain(error, path) from error
    require_version(document.get("version"), VERSION, str(path), remedy=f"Install the newer Towpath. {_REMEDY}")
    try:
        return _Document.model_validate(document).alarms
    except ValidationError as error:
        what = ".".join(str(step) for step in error.errors()[0]["loc"])
        raise DamagedError(f"is not a file of alarms: {what}", place=str(path), remedy=_REMEDY) from None


_REMEDY = "Remove it: alarms that last are then sent once more."


def _record(condition: Condition, now: datetime) -> AlarmRecord:
    return AlarmRecord(
        id=secrets.token_hex(8),
        alarm=condition.kind,
        severity=condition.severity,
        summary=condition.summary,
        detail=condition.detail,
        subscriber=condition.subscriber,
        table=condition.table,
        since=now,
    )


def _notice(destination: str, record: AlarmRecord, told: Told, event: Event, now: datetime) -> Notice:
    return Notice(
        event=event,
        id=record.id,
        number=told.messages + 1,
        destination=destination,
        alarm=record.alarm,
        severity=record.severity,
        summary=record.summary,
        detail=record.detail,
        subscriber=record.subscriber,
        table=record.table,
        since=record.since,
        time=now,
        resolved=record.resolved,
    )
