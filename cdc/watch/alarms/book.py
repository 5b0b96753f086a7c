"""The book of alarms: what was raised, and which handler was told what. It is a file, so that a restart tells nothing
twice. ``docs/formats/alarms.md`` describes it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from cdc.base.errors import DamagedError, VersionError
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
    """How many messages it has taken."""
    last: AwareDatetime | None = None
    failures: int = 0
    """Tries in a row that failed."""
    next_try: AwareDatetime | None = None
    """Not before this time, after a failure."""
    knows_end: bool = False


class Record(BaseModel):
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
    alarms: list[Record]


class AlarmBook:
    """The alarms of one destination. One thread uses it at a time."""

    def __init__(self, config: DestinationConfig) -> None:
        self._name, self._settings, self._path = config.name, config.alarms, config.alarms_path
        self.records: list[Record] = []
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
        for condition in findings.found:
            known = open_ones.pop(condition.key, None)
            if known is None:
                known = _record(condition, now)
                self.records.append(known)
            elif known.raised is None or known.severity != condition.severity:
                known.severity, known.summary, known.detail = condition.severity, condition.summary, condition.detail
            known.absent = None
            if known.raised is None and (condition.at_once or now - known.since >= wait):
                known.raised = now
                known.summary, known.detail = condition.summary, condition.detail
                _log.warning("alarm raised", alarm=known.alarm, summary=known.summary, destination=self._name)
            elif known.raised is not None:
                self._refresh(known, condition, now)
        for known in open_ones.values():
            if known.alarm not in findings.unknown:
                self._leave(known, now, wait)
        self.records = [record for record in self.records if not self._is_over(record, now)]

    def _refresh(self, known: Record, condition: Condition, now: datetime) -> None:
        """Takes over the text of a condition when a message is due, and not at each look: the file would change."""
        if any(True for _ in self.due(now, self._settings.handlers, only=known)):
            known.summary, known.detail = condition.summary, condition.detail

    def _leave(self, known: Record, now: datetime, wait: timedelta) -> None:
        if known.raised is None:
            self.records.remove(known)
            return
        known.absent = known.absent or now
        if now - known.absent >= wait:
            known.resolved = now
            _log.info("alarm resolved", alarm=known.alarm, summary=known.summary, destination=self._name)

    def _is_over(self, one: Record, now: datetime) -> bool:
        """Whether an alarm has ended and every handler that knows of it was told so."""
        if one.resolved is None:
            return False
        if (now - one.resolved).total_seconds() > _GIVE_UP_S:
            return True
        if any(id_ == one.id for _, id_ in self._under_way):
            return False
        told = [one.handlers[name] for name in self._settings.handlers if name in one.handlers]
        return all(known.knows_end or not known.messages for known in told)

    # --- messages

    def due(
        self, now: datetime, handlers: Sequence[str], *, only: Record | None = None
    ) -> Iterator[tuple[str, Notice]]:
        """Yields the messages that handlers should get now, oldest alarm first."""
        for one in self.records if only is None else [only]:
            if one.raised is None:
                continue
            for handler in handlers:
                told = one.handlers.get(handler, Told())
                event = self._event(one, told, now)
                if event is not None and (handler, one.id) not in self._under_way:
                    yield handler, _notice(self._name, one, told, event, now)

    def _event(self, one: Record, told: Told, now: datetime) -> Event | None:
        if told.next_try is not None and now < told.next_try:
            return None
        if one.resolved is not None:
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


def read_records(path: Path) -> list[Record]:
    """Returns the alarms in a file; none if there is no file. Raises DamagedError, VersionError, StorageError."""
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise explain(error, path) from error
    except ValueError:
        raise DamagedError("is not valid JSON", place=str(path), remedy=_REMEDY) from None
    version = found.get("version") if isinstance(found, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise VersionError(
            f"has format version {version}, and this version of Towpath knows {VERSION}",
            place=str(path),
            remedy="Install the newer Towpath, or remove the file: alarms that last are then sent once more.",
        )
    try:
        return _Document.model_validate(found).alarms
    except ValidationError as error:
        what = ".".join(str(step) for step in error.errors()[0]["loc"])
        raise DamagedError(f"is not a file of alarms: {what}", place=str(path), remedy=_REMEDY) from None


_REMEDY = "Remove it: alarms that last are then sent once more."


def _record(condition: Condition, now: datetime) -> Record:
    return Record(
        id=secrets.token_hex(8),
        alarm=condition.kind,
        severity=condition.severity,
        summary=condition.summary,
        detail=condition.detail,
        subscriber=condition.subscriber,
        table=condition.table,
        since=now,
    )


def _notice(destination: str, one: Record, told: Told, event: Event, now: datetime) -> Notice:
    return Notice(
        event=event,
        id=one.id,
        number=told.messages + 1,
        destination=destination,
        alarm=one.alarm,
        severity=one.severity,
        summary=one.summary,
        detail=one.detail,
        subscriber=one.subscriber,
        table=one.table,
        since=one.since,
        time=now,
        resolved=one.resolved,
    )
