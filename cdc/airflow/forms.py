"""The form of the backfill DAG: its fields, and what a filled form asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from airflow.sdk import Param

from cdc.airflow.compat import has_approvals
from cdc.base.errors import CdcError, UsageError
from cdc.base.units import iso_time_us
from cdc.client import open_store
from cdc.config import DestinationConfig
from cdc.config.apply import MODES

if TYPE_CHECKING:
    from cdc.store.reader.store import Store

_T = TypeVar("_T")
Kind = Literal["snapshot", "replay", "verify", "accept"]
MOST_NAMES = 2000
"""Tables that the form offers for selection; with more, their names are typed."""
_OF_REPLAY = ("from_time", "to_time", "into", "mode", "from", "to")
_REPLAY, _POSITIONS = "Only for a replay", "Only for a replay: positions instead of times"
_DEEDS: Mapping[Kind, str] = {
    "snapshot": "load the tables from the source",
    "replay": "rebuild the tables from the store",
    "verify": "compare the tables with the source",
    "accept": "accept that changes are lost, after a person has approved it",
}
_LITERAL = re.compile(r"(?:[\w$-]|\\[^A-Za-z0-9])+")
_POINT = "A seq, a GTID or a GTID set, or a time with its offset such as 2026-11-21T10:00:00Z."


@dataclass(frozen=True)
class Backfill:
    """The request of a filled form."""

    kind: Kind
    tables: tuple[str, ...]
    from_: str | None = None
    to: str | None = None
    into: str | None = None
    mode: str | None = None
    dry_run: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Returns the form as an XCom."""
        return {
            "kind": self.kind,
            "tables": list(self.tables),
            "from": self.from_,
            "to": self.to,
            "into": self.into,
            "mode": self.mode,
            "dry_run": self.dry_run,
        }


def kinds(config: DestinationConfig | None) -> list[Kind]:
    """Returns the kinds of backfills of a destination: losses can be accepted if its configuration says so, and this
    Airflow can ask a person."""
    accepts = config is not None and config.airflow.approve_losses and has_approvals()
    return [kind for kind in _DEEDS if kind != "accept" or accepts]


def fields(config: DestinationConfig | None) -> dict[str, Param]:
    """Returns the fields of the form. ``config``: the destination; None if its file is broken.

    A new text makes a new version of the DAG if the last one has runs. So no text changes more often than once a day.
    The texts are plain: in Airflow's small print a code span covers the line above it.
    """
    names = [] if config is None else known_tables(config)
    offered = kinds(config)
    tables: dict[str, Any] = {"type": "array", "uniqueItems": True, "items": {"type": "string"}}
    if "accept" not in offered:
        tables["minItems"] = 1
    if names:
        tables["examples"] = names
    included = "" if config is None else f" Included: {', '.join(config.tables.include)}."
    if "accept" in offered:
        included += " With accept: the Delta tables that have lost changes, or none for what is lost before the store."
    store = "" if config is None else _reach(config)
    text: dict[str, Any] = {"type": ["null", "string"], "minLength": 1}
    time = text | {"format": "date-time", "section": _REPLAY}
    return {
        "kind": Param(
            "snapshot",
            type="string",
            enum=list(offered),
            values_display={kind: f"{kind}: {_DEEDS[kind]}" for kind in offered},
            title="What to do",
        ),
        "tables": Param([], title="Tables", description=f"As DB.TABLE.{included}", **tables),
        # A field of Airflow's form that cannot be null is marked as required, also a switch.
        "dry_run": Param(
            False, type=["boolean", "null"], title="Dry run", description="Say what would be done, and do nothing."
        ),
        "from_time": Param(
            None,
            title="From (time)",
            description="Apply the changes that were committed at this time or later once more to the tables as they "
            f"are.{store}",
            **time,
        ),
        "to_time": Param(
            None,
            title="To (time)",
            description="Build the tables with all changes that were committed before this time, and with none after "
            f"it.{store}",
            **time,
        ),
        "into": Param(
            None,
            title="Into",
            description="A folder or URI for new tables; the present ones stay as they are.",
            section=_REPLAY,
            **text,
        ),
        "mode": Param(
            None,
            type=["null", "string"],
            enum=[None, *MODES],
            values_display={"None": "as configured"},
            title="Mode",
            description="With Into: the mode of the new tables.",
            section=_REPLAY,
        ),
        "from": Param(
            None,
            title="From (position)",
            description=f"Apply the changes after this transaction once more. {_POINT}",
            section=_POSITIONS,
            **text,
        ),
        "to": Param(
            None,
            title="To (position)",
            description=f"Build the tables as of this transaction. {_POINT}",
            section=_POSITIONS,
            **text,
        ),
    }


def read_form(config: DestinationConfig, params: Mapping[str, Any]) -> Backfill:
    """Returns what a filled form asks for. Raises UsageError for tables that are not included, and for fields that
    contradict each other."""
    kind = params["kind"]
    if kind not in kinds(config):
        raise UsageError(f"{kind!r} is not a kind of backfill", remedy=f"Choose one of {', '.join(kinds(config))}.")
    has_tables = kind != "accept" or bool(params["tables"])
    tables = tuple(table_names(config, params["tables"])) if has_tables else ()
    replay_fields = [field for field in _OF_REPLAY if params.get(field) is not None]
    if kind != "replay" and replay_fields:
        raise UsageError(f"{', '.join(replay_fields)} and kind {kind} contradict each other", remedy="Empty the field.")
    return Backfill(
        kind,
        tables,
        _point(params, "from"),
        _point(params, "to"),
        params.get("into"),
        params.get("mode"),
        bool(params.get("dry_run")),
    )


def _point(params: Mapping[str, Any], end: str) -> str | None:
    """Returns the point that one of the fields ``from`` and ``from_time``, or ``to`` and ``to_time``, gives."""
    position, time = params.get(end), params.get(f"{end}_time")
    if position is not None and time is not None:
        raise UsageError(f"{end} and {end}_time contradict each other", remedy="Empty one of the two fields.")
    return time if position is None else position


def table_names(config: DestinationConfig, names: Sequence[str] | str) -> list[str]:
    """Returns the names of tables, each once, from a list or a text with commas. Raises UsageError if there is none,
    and for tables that are not included."""
    parts = names.split(",") if isinstance(names, str) else names
    tables = list(dict.fromkeys(config.tables.name(name) for name in (str(part).strip() for part in parts) if name))
    if not tables:
        raise UsageError("no table is named", remedy="Name the tables, as DB.TABLE.")
    for table in tables:
        db, dot, name = table.partition(".")
        if not (db and dot and name and config.tables.includes(db, name)):
            raise UsageError(
                f"{table!r} is not a table that {config.name} captures",
                remedy=f"Name tables as DB.TABLE that match tables.include: {', '.join(config.tables.include)}.",
            )
    return tables


def replay_arguments(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keyword arguments of a replay, from the XCom of a form. An empty text counts as none."""
    return {f"{key}_" if key == "from" else key: asked[key] or None for key in ("from", "to", "into", "mode")}


def known_tables(config: DestinationConfig) -> list[str]:
    """Returns the included tables for the form to offer: those that capture found at its last look, if the store is on
    this machine, and those that ``tables.include`` names without a pattern. Returns none if that is not all of them, or
    too many: the form then takes typed names."""
    literal = [_literal(pattern) for pattern in config.tables.include]
    names = set(_stored(config))
    if not names and None in literal:
        return []
    names |= {name for name in literal if name is not None}
    tables = sorted(name for name in names if config.tables.includes(*name.split(".", 1)))
    return tables if len(tables) <= MOST_NAMES else []


def _literal(pattern: str) -> str | None:
    r"""Returns the one table that a pattern such as ``shop\.orders`` matches; None for a pattern of several."""
    if _LITERAL.fullmatch(pattern) is None:
        return None
    name = re.sub(r"\\(.)", r"\1", pattern)
    return name if "." in name else None


def _stored(config: DestinationConfig) -> list[str]:
    """Returns the tables in the newest stored schemas; none if there are none that can be read here."""
    newest = _look(config, lambda store: store.newest_schemas())
    return [] if newest is None else list(newest[1].tables)


def _reach(config: DestinationConfig) -> str:
    """Returns a sentence about the day since which the store has all transactions; empty if it cannot be read here."""
    since_us = _look(config, _reaches_back_to_us)
    if since_us is None:
        return ""
    archive = "" if config.store.archive.url is None else ", and the archive may go back further"
    return f" The store goes back to {iso_time_us(since_us)[:10]} (UTC){archive}; a dry run says the exact time."


def _reaches_back_to_us(store: Store) -> int | None:
    from cdc.store.reader.points import reaches_back_to_us  # loads NumPy, which files of DAGs do without if they can

    return reaches_back_to_us(store)


def _look(config: DestinationConfig, ask: Callable[[Store], _T | None]) -> _T | None:
    """Returns the answer of a store on this machine; None if there is no such store, or if it has no answer."""
    if config.store.kind == "server":
        return None  # the file is parsed every few seconds, and must not wait for a network
    try:
        return ask(open_store(config))
    except (CdcError, OSError):  # the DAG is built all the same; the task's own error says what is wrong
        return None
