"""Makes pages of rows of a board. Every text that comes from a configuration, a source or a lake is escaped."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from cdc.base.units import human_bytes, human_seconds
from cdc.batches.results import phases_text
from cdc.binlog.positions import format_seq
from cdc.watch.last_merges import merge_text, run_text
from cdc.watch.page.board import AckedBatch, BoardRow
from cdc.watch.page.charts import lag_chart, throughput_chart, time_text
from cdc.watch.status import (
    alarms,
    archive_sentences,
    gap_sentences,
    lag_text,
    oldest_table,
    parked_remedy,
    parked_sentences,
    small_files_text,
)

if TYPE_CHECKING:
    import jinja2

    from cdc.base.run_identity import RunIdentity
    from cdc.config import DestinationConfig

REFRESH_S = "30"
"""The seconds after which a browser loads a page again."""
HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{nonce}'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "referrer-policy": "same-origin",
    "refresh": REFRESH_S,
    "x-content-type-options": "nosniff",
}
"""The headers of a page. ``{nonce}``: the one that was given when the page was made."""
RUNNING = "running"
"""The state of a capture that is connected to its source."""
_DUE = {"snapshot": "needs a snapshot", "retry": "is tried again by each run", "hold": "waits for a replay"}
_MOST_NAMES = 3
_CODE = re.compile("`([^`]+)`")
_OLD_S = 600.0
"""A lag above this is shown as a warning."""


@dataclass(frozen=True)
class ExternalLink:
    """A link to a page outside these pages."""

    text: str
    address: str
    note: str = ""


class Links(Protocol):
    """The addresses that a page links to."""

    def related(self, row: BoardRow) -> Sequence[ExternalLink]:
        """Pages about a destination: its DAGs and their runs."""

    def table(self, config: DestinationConfig, table: str, path: str) -> str:
        """The page of a Delta table; empty if there is none."""

    def manifest(self, config: DestinationConfig, batch: AckedBatch) -> str:
        """The page of a batch's manifest; empty if there is none."""

    def run(self, config: DestinationConfig, run: RunIdentity) -> str:
        """The page of a task of a DAG run; empty if there is none."""

    def remedy(self, row: BoardRow, due: str) -> ExternalLink | None:
        """The page on which parked tables are brought back that wait for this (:class:`cdc.meta.ParkedTable`); None if
        there is none."""


def overview(rows: Sequence[BoardRow], links: Links, nonce: str, *, folder: str) -> str:
    """Returns the page of all destinations. ``folder``: where their configurations are, for an empty page."""
    cards = [card(row, links) for row in rows]
    return template("overview.html").render(title="Towpath", cards=cards, nonce=nonce, folder=folder, now=now_text())


def destination(row: BoardRow, links: Links, nonce: str) -> str:
    """Returns the page of one destination."""
    return template("destination.html").render(
        title=f"{row.name} – Towpath", card=card(row, links), nonce=nonce, now=now_text(), **details(row, links)
    )


def message(title: str, text: str, nonce: str) -> str:
    """Returns a page that says one thing."""
    return template("message.html").render(title=title, text=text, nonce=nonce, now=now_text())


def card(row: BoardRow, links: Links) -> dict[str, Any]:
    """Returns the content of a destination's card in the overview."""
    head: dict[str, Any] = {
        "name": row.name, "error": row.error, "related": links.related(row), "facts": [], "summary": "", "steps": [],
    }  # fmt: skip
    status = row.status
    if status is None:
        return head | {"level": "bad", "state": "not readable", "is_captured": True, "alarms": []}
    subscription = _apply(status)
    parked = subscription["parked"] if subscription else []
    problems = [*alarms(status["subscriptions"]), *gap_sentences(status["subscriptions"], row.name)]
    problems += [status["manifests_error"]] if status["manifests_error"] else []
    problems += [text for text in archive_sentences(status["archive"]) if text.startswith("Alarm")]
    capture = status["capture"]
    is_connected = capture["running"] and capture["connected"]
    state = RUNNING if is_connected else "waiting for the source" if capture["running"] else "stopped"
    lag_s, lag = _lag(status, subscription)
    level = "bad" if problems or not is_connected else "warn" if parked or (lag_s or 0) > _OLD_S else "good"
    source, run = status["source"], status["last_run"]
    behind = {"transactions": 0} if subscription is None else subscription["behind"]
    facts = [
        ("Position", f"{source['file']}:{source['pos']}" if source["file"] else "", ""),
        ("Captured until", _short(status["store"]["complete_until"]), ""),
        ("Lag", lag if subscription else "", "warn" if (lag_s or 0) > _OLD_S else ""),
        ("Behind", behind_text(behind) if behind["transactions"] else "", ""),
        ("Outstanding batches", str(len(subscription["outstanding"]) or "") if subscription else "", ""),
        ("Last run", "" if run is None else run_text(run), ""),
    ]
    return head | {
        "level": level,
        "state": state,
        "is_captured": capture["running"],
        "summary": summary(status),
        "steps": [_step(row, due, links) for due in dict.fromkeys(record["due"] for record in parked)],
        "alarms": problems,
        "facts": [fact for fact in facts if fact[1]],
    }


def summary(status: dict[str, Any]) -> str:
    """Returns one sentence about the tables: which are parked, how far the others are, or that there is none."""
    subscription, names = _apply(status), [table["table"] for table in status["tables"]]
    parked = subscription["parked"] if subscription else []
    if parked:
        count = len({*names, *(record["table"] for record in parked)})
        shown = ", ".join(f"{record['table']} {_DUE[record['due']]}" for record in parked[:_MOST_NAMES])
        more = f" and {len(parked) - _MOST_NAMES} more" if len(parked) > _MOST_NAMES else ""
        return f"{len(parked)} of {count} {_are(count, parked)} parked: {shown}{more}."
    if not names:
        return "No table has been loaded yet."
    if subscription is not None and subscription["behind"]["transactions"]:
        waiting, lag_s = subscription["behind"]["transactions"], subscription["lag_s"]
        since = "" if lag_s is None else f", the oldest for {human_seconds(lag_s)}"
        return f"{_tables(names)} {'waits' if len(names) == 1 else 'wait'} for {_transactions(waiting)}{since}."
    until = _short(status["store"]["complete_until"])
    verb = "is" if len(names) == 1 else "are"
    return (
        f"{_tables(names)} {verb} complete until {until}."
        if until
        else f"{_tables(names)} {verb} level with the store."
    )


def _tables(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else "Both tables" if len(names) == 2 else f"All {len(names)} tables"


def _are(count: int, parked: Sequence[Any]) -> str:
    return f"{'table' if count == 1 else 'tables'} {'is' if len(parked) == 1 else 'are'}"


def _step(row: BoardRow, due: str, links: Links) -> ExternalLink:
    """Returns what brings parked tables back: a link, or a sentence."""
    return links.remedy(row, due) or ExternalLink(f"Next step: {parked_remedy(row.name, due)}", "")


def details(row: BoardRow, links: Links) -> dict[str, Any]:
    """Returns the content of a destination's page beside its card."""
    status, config = row.status, row.config
    lists = ("charts", "way", "batches", "outstanding", "tables", "parked", "more")
    nothing: dict[str, Any] = {name: [] for name in lists}
    if status is None or config is None:
        return nothing
    subscription = _apply(status)
    parked = {record["table"] for record in subscription["parked"]} if subscription else set()
    source, store, begins = status["source"], status["store"], status["store"]["begins"]
    more = [
        ("GTID", source["gtid"] or "none"),
        ("Source's time", _short(source["time"]) or "not known"),
        ("Store", f"{store['transactions']:,} transactions, {human_bytes(store['bytes'])}"),
        ("Store begins", "not known" if begins is None else f"{begins['file']}:{begins['pos']}, {begins['reason']}"),
        ("Acked up to", seq_text(subscription["acked_seq"]) if subscription else "nothing"),
    ]
    lag_s = None if subscription is None else subscription["lag_s"] if subscription["behind"]["transactions"] else 0.0
    now_s = time.time()
    charts = (lag_chart(row.batches, now_s, lag_s, config.alarms.lag_s), throughput_chart(row.batches, now_s))
    return {
        "charts": [chart for chart in charts if chart is not None],
        "way": _way(status, subscription),
        "more": more,
        "outstanding": [
            {**batch, "seqs": f"{seq_text(batch['first_seq'])} … {seq_text(batch['last_seq'])}"}
            for batch in subscription["outstanding"]
        ]
        if subscription
        else [],
        "batches": [
            {
                "batch": batch.batch,
                "address": links.manifest(config, batch),
                "acked": time_text(batch.acked_s),
                "transactions": f"{batch.transactions:,}",
                "rows": "–" if batch.rows == (0, 0, 0) else " / ".join(f"{count:,}" for count in batch.rows),
                "size": human_bytes(batch.bytes),
                "lag": "" if batch.lag_s is None else human_seconds(batch.lag_s),
                "run": "" if batch.run is None else str(batch.run),
                "run_address": "" if batch.run is None else links.run(config, batch.run),
            }
            for batch in reversed(row.batches[-20:])
        ],
        "tables": [
            {
                "table": table["table"],
                "mode": table["mode"],
                "version": table["delta_version"],
                "applied": "–" if table["applied_seq"] is None else seq_text(table["applied_seq"]),
                "path": table["path"],
                "address": links.table(config, table["table"], table["path"]),
                "note": table["note"] or small_files_text(table, row.name),
                "time": _short(table["applied_time"]),
                "lag": lag_text(table),
                "merge": "" if table["last_merge"] is None else merge_text(table["last_merge"]),
                "phases": "" if table["last_merge"] is None else phases_text(table["last_merge"]["phases"]),
                "parked": table["table"] in parked,
            }
            for table in status["tables"]
        ],
        "parked": parked_sentences(status["subscriptions"], row.name),
    }


def _way(status: dict[str, Any], subscription: dict[str, Any] | None) -> list[tuple[str, list[str]]]:
    """Returns the stations of the changes, from the source to the tables, each with its numbers."""
    source, store, tables = status["source"], status["store"], status["tables"]
    capture = status["capture"]
    waiting = subscription["behind"]["transactions"] if subscription else 0
    outstanding = len(subscription["outstanding"]) if subscription else 0
    parked = len(subscription["parked"]) if subscription else 0
    return [
        ("Source", [f"{source['file']}:{source['pos']}" if source["file"] else "no position yet"]),
        ("Capture", ["connected" if capture["running"] and capture["connected"] else "not connected"]),
        ("Store", [_transactions(store["transactions"]), human_bytes(store["bytes"])]),
        (
            "Batches",
            [f"{_transactions(waiting)} to go" if waiting else "nothing waits", *_counts(outstanding=outstanding)],
        ),
        ("Tables", [f"{len(tables)} in the lake", *_counts(parked=parked)]),
    ]


def _counts(**counts: int) -> list[str]:
    return [f"{count:,} {name}" for name, count in counts.items() if count]


def _apply(status: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the subscription that fills the tables."""
    return next((subscription for subscription in status["subscriptions"] if subscription["name"] == "apply"), None)


def _lag(status: dict[str, Any], subscription: dict[str, Any] | None) -> tuple[float | None, str]:
    """Returns the greatest lag of any table, and a text; None if everything is applied. A parked table counts since it
    was parked."""
    waits = subscription is not None and subscription["behind"]["transactions"]
    lag_s = subscription["lag_s"] if subscription is not None and waits else None
    text = "none" if lag_s is None else human_seconds(lag_s)
    late = oldest_table(status["tables"])
    if late is None or late["parked_since"] is None or late["lag_s"] <= (lag_s or 0.0):
        return lag_s, text
    return late["lag_s"], f"{human_seconds(late['lag_s'])} ({late['table']} is parked), {text} otherwise"


def behind_text(behind: Mapping[str, int]) -> str:
    """Returns how far a subscription is behind the store."""
    return f"{_transactions(behind['transactions'])}, {human_bytes(behind['bytes'])}"


def _transactions(count: int) -> str:
    return f"{count:,} transaction{'' if count == 1 else 's'}"


def seq_text(seq: int) -> str:
    """Returns a seq, and the position that it stands for."""
    return f"{seq} ({format_seq(seq)})"


def _short(iso: str | None) -> str:
    """Returns a time without the fraction of its seconds."""
    return "" if not iso else time_text(datetime.fromisoformat(iso).timestamp())


def now_text() -> str:
    """Returns the time now, in UTC."""
    return time_text(time.time())


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cdc.watch.page"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["prose"] = _prose
    return environment


def _prose(text: str) -> str:
    """Returns a sentence as HTML, in which the words between backticks are code."""
    import markupsafe

    return markupsafe.Markup(_CODE.sub(r"<code>\1</code>", str(markupsafe.escape(text))))


def template(name: str) -> jinja2.Template:
    """Returns a template of this package."""
    return _environment().get_template(name)
