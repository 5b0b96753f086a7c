"""The pages of ``cdc server``: instances with their state, their clients, their logs, and forms for operators."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from cdc.base.errors import CdcError
from cdc.base.units import human_seconds
from cdc.lake.writers import run_address
from cdc.watch.page.board import AckedBatch, BoardRow
from cdc.watch.page.charts import time_text
from cdc.watch.page.render import (
    RUNNING,
    ExternalLink,
    behind_text,
    card,
    details,
    now_text,
    seq_text,
    template,
)
from cdc.watch.status import alarms

if TYPE_CHECKING:
    from cdc.base.run_identity import RunIdentity
    from cdc.config import DestinationConfig

_LEVELS = {
    "running": "", "waiting": "off", "stopped": "off", "standby": "off", "starting": "warn", "failed": "bad",
    "unserved": "off",
}  # fmt: skip
"""The level of a card by the state of its instance; empty: that of the status."""

_OWN_TIME = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z ")
"""The time that a line of a log begins with; the page shows one for every line."""


@dataclass(frozen=True)
class Viewer:
    """The person who looks at a page."""

    is_operator: bool
    has_session: bool
    form_token: str


class Line(Protocol):
    """A line of a log."""

    @property
    def time(self) -> datetime: ...

    @property
    def text(self) -> str: ...


class _NoLinks:
    """A server knows no pages about its tables and batches, and those of runs only by the configuration."""

    def related(self, row: BoardRow) -> Sequence[ExternalLink]:
        return ()

    def table(self, config: DestinationConfig, table: str, path: str) -> str:
        return ""

    def manifest(self, config: DestinationConfig, batch: AckedBatch) -> str:
        return ""

    def run(self, config: DestinationConfig, run: RunIdentity) -> str:
        return run_address(config, run) or ""

    def remedy(self, row: BoardRow, due: str) -> ExternalLink | None:
        return None


def overview_page(documents: Sequence[dict[str, Any]], rows: Sequence[BoardRow], viewer: Viewer, nonce: str) -> str:
    """Returns the page of all instances. ``documents``: as ``GET /v1/instances`` answers them, each with its row."""
    cards = [_card(document, row) for document, row in zip(documents, rows, strict=True)]
    return template("admin_overview.html").render(
        title="Towpath", cards=cards, viewer=viewer, nonce=nonce, folder="", now=now_text()
    )


def instance_page(document: dict[str, Any], row: BoardRow, lines: Sequence[Line], viewer: Viewer, nonce: str) -> str:
    """Returns the page of one instance. ``lines``: the last ones of its captures' log, oldest first."""
    return template("admin_instance.html").render(
        title=f"{row.name} – Towpath",
        card=_card(document, row),
        clients=_clients(row.status),
        lines=[(time_text(line.time.timestamp()), _OWN_TIME.sub("", line.text)) for line in lines],
        viewer=viewer,
        nonce=nonce,
        now=now_text(),
        home="/",
        **details(row, _NoLinks()),
    )


def login_page(nonce: str, error: str = "") -> str:
    """Returns the form for a token."""
    return template("admin_login.html").render(title="Log in – Towpath", error=error, nonce=nonce, now=now_text())


def message_page(title: str, text: str, nonce: str) -> str:
    """Returns a page that says one thing."""
    return template("admin_message.html").render(title=title, text=text, nonce=nonce, now=now_text(), home="/")


def _card(document: dict[str, Any], row: BoardRow) -> dict[str, Any]:
    """Returns the card of an instance: that of its status, with what the server knows."""
    status_card = card(row, _NoLinks())
    state, capture = document["state"], document["capture"]
    errors = [document["error"], document["config"]["problem"]]
    problems = list(dict.fromkeys(_sentences(error) for error in errors if error is not None))
    level = _LEVELS.get(state, "warn") or status_card["level"]
    if state == "running" and not status_card["is_captured"] and capture["state"] in ("starting", "running"):
        status_card["state"], level = "starting", "warn"
    if problems and level == "good":
        level = "warn"
    if state == "unserved":
        status_card["steps"], problems = [ExternalLink(text, "") for text in problems], []
    facts = [("Since", time_text(datetime.fromisoformat(document["since"]).timestamp()), "")]
    if document["retry_at"] is not None:
        facts.append(("Next try", time_text(datetime.fromisoformat(document["retry_at"]).timestamp()), "warn"))
    facts += [("Capture", _process(capture), "")] if capture is not None else []
    if (push := document["push"]) is not None and push["mode"] != "none":
        facts.append(("Push", _process(push), ""))
    if problems and row.config is None:
        status_card["error"] = ""  # the instance says already what is wrong with its file
    subscriptions = [] if row.status is None else row.status["subscriptions"]
    facts += status_card["facts"]
    facts += [("Clients", str(len(subscriptions)), "")] if subscriptions else []
    shown = state
    if state == "running" and status_card["state"] != RUNNING:
        shown = f"running, capture {status_card['state']}"
    return status_card | {
        "address": f"/instances/{quote(row.name, safe='')}",
        "level": level,
        "state": shown,
        "alarms": [*problems, *status_card["alarms"]],
        "facts": facts,
        "can_start": state in ("stopped", "failed") and capture is not None,
        "can_restart": state not in ("stopped", "failed") and capture is not None,
        "can_stop": state != "stopped" and capture is not None,
    }


def _process(process: dict[str, Any]) -> str:
    """Describes a process that the server runs."""
    pid = f", process {process['pid']}" if process["pid"] else ""
    restarts = f", started again {process['restarts']} times" if process["restarts"] else ""
    return f"{process['state']} ({process['mode']}){pid}{restarts}"


def _sentences(error: dict[str, Any]) -> str:
    """Returns the text of an error's document."""
    return str(CdcError(error["message"], place=error["place"], remedy=error["remedy"]))


def _clients(status: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Returns the subscribers of a destination, with their positions and outstanding batches."""
    clients = []
    for subscription in [] if status is None else status["subscriptions"]:
        behind = subscription["behind"]
        clients.append(
            {
                "name": subscription["name"],
                "acked": seq_text(subscription["acked_seq"]) if subscription["acked_seq"] else "nothing",
                "lag": human_seconds(subscription["lag_s"]) if behind["transactions"] else "none",
                "behind": behind_text(behind),
                "outstanding": [
                    f"{batch['batch']} ({batch['owner']}, until {batch['expires'][:19].replace('T', ' ')})"
                    for batch in subscription["outstanding"]
                ],
                "filter": subscription["filter"] or "",
                "problems": [text.removeprefix("Alarm: ") for text in alarms([subscription])],
            }
        )
    return clients
