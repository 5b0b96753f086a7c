"""The document of an alarm, as webhooks and commands get it, and the text of its mail."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Self

from cdc.base.log import hide_password
from cdc.base.units import iso_time

VERSION = 1
Event = Literal["raised", "repeated", "resolved", "reported", "test"]


@dataclass(frozen=True)
class Notice:
    """One message about an alarm to one handler."""

    event: Event
    id: str
    """The alarm's id: the same when it is raised, repeated and resolved."""
    number: int
    """The number of messages about the alarm that the handler has got, this one included."""
    destination: str
    alarm: str
    severity: str
    summary: str
    detail: str
    subscriber: str
    table: str
    since: datetime
    """When the condition was first seen."""
    time: datetime
    """When this message was made."""
    resolved: datetime | None = None

    @property
    def delivery(self) -> str:
        """The id of the message: the same when it is sent again because nobody knows whether it arrived."""
        return f"{self.id}-{self.number}-{self.event}"

    @classmethod
    def once(cls, event: Event, destination: str, alarm: str, severity: str, *, summary: str, detail: str) -> Self:
        """Returns the only message about something that happens now."""
        now = datetime.now(UTC)
        return cls(
            event=event,
            id=secrets.token_hex(8),
            number=1,
            destination=destination,
            alarm=alarm,
            severity=severity,
            summary=summary,
            detail=detail,
            subscriber="",
            table="",
            since=now,
            time=now,
        )

    def document(self) -> dict[str, Any]:
        """Returns the JSON document. ``docs/formats/alarms.md`` describes it."""
        return {
            "version": VERSION,
            "event": self.event,
            "id": self.id,
            "delivery": self.delivery,
            "number": self.number,
            "destination": self.destination,
            "alarm": self.alarm,
            "severity": self.severity,
            "summary": hide_password(self.summary),
            "detail": hide_password(self.detail),
            "subscriber": self.subscriber or None,
            "table": self.table or None,
            "since": iso_time(self.since),
            "resolved": None if self.resolved is None else iso_time(self.resolved),
            "time": iso_time(self.time),
            "host": socket.gethostname(),
        }

    def subject(self) -> str:
        """Returns the subject of the mail, on one line."""
        word = {"repeated": f"still {self.severity}", "resolved": "resolved", "test": "test"}
        text = " ".join(hide_password(self.summary).split())
        shown = "".join(sign for sign in text if sign.isprintable())
        return f"[Towpath] {word.get(self.event, self.severity)}: {shown}"[:200]

    def text(self) -> str:
        """Returns the body of the mail."""
        lines = [hide_password(self.summary), hide_password(self.detail), ""]
        for name, value in self.document().items():
            if name not in ("version", "summary", "detail") and value is not None:
                lines.append(f"{name}: {value}")
        return "\n".join(lines) + "\n"
