"""The form of the backfill DAG: its fields, and what a filled form asks for."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from airflow.sdk import Param

from cdc.base.errors import CdcError, UsageError
from cdc.client import open_store
from cdc.config import DestinationConfig
from cdc.config.apply import MODES

Kind = Literal["snapshot", "replay", "verify"]
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST_NAMES = 2000
"""Tables that the form offers for selection; with more, their names are typed."""
_OF_REPLAY = ("from", "to", "into", "mode")
_LITERAL = re.compile(r"(?:[\w$-]|\\[^A-Za-z0-9])+")
_POINT = "a seq, a time with its offset (2026-11-21T10:00:00Z), a GTID or a GTID set"


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


def fields(config: DestinationConfig | None) -> dict[str, Param]:
    """Returns the fields of the form. ``config``: the destination; None if its file is broken."""
    names = [] if config is None else known_tables(config)
    tables: dict[str, Any] = {"type": "array", "minItems": 1, "uniqueItems": True, "items": {"type": "string"}}
    if names:
        tables["examples"] = names
    included = "" if config is None else f" Included: {', '.join(f'`{pattern}`' for pattern in config.tables.include)}."
    point: dict[str, Any] = {"type": ["null", "string"], "minLength": 1, "section": "Only for a replay"}
    return {
        "kind": Param(
            "snapshot",
            type="string",
            enum=list(KINDS),
            title="What to do",
            description_md="`snapshot`: load the tables anew from the source. `replay`: rebuild them, or a range of "
            "them, from the store, without touching the source. `verify`: compare them with the source.",
        ),
        "tables": Param([], title="Tables", description_md=f"As `DB.TABLE`.{included}", **tables),
        "dry_run": Param(
            False, type="boolean", title="Dry run", description_md="Say what would be done, and do nothing."
        ),
        "from": Param(
            None, title="From", description_md=f"Apply the changes after this point again: {_POINT}.", **point
        ),
        "to": Param(None, title="To", description_md=f"Build the tables as of this point: {_POINT}.", **point),
        "into": Param(
            None,
            title="Into",
            description_md="A folder or URI for new tables; the present ones stay as they are.",
            **point,
        ),
        "mode": Param(
            None,
            type=["null", "string"],
            enum=[None, *MODES],
            title="Mode",
            description_md="With Into: the mode of the new tables; empty: as configured.",
            section="Only for a replay",
        ),
    }


def read_form(config: DestinationConfig, params: Mapping[str, Any]) -> Backfill:
    """Returns what a filled form asks for. Raises UsageError for tables that are not included, and for fields that
    contradict each other."""
    kind = params["kind"]
    if kind not in KINDS:
        raise UsageError(f"{kind!r} is not a kind of backfill", remedy=f"Choose one of {', '.join(KINDS)}.")
    tables = tuple(table_names(config, params["tables"]))
    replay_fields = [field for field in _OF_REPLAY if params.get(field) is not None]
    if kind != "replay" and replay_fields:
        raise UsageError(f"{', '.join(replay_fields)} and kind {kind} contradict each other", remedy="Empty the field.")
    return Backfill(
        kind,
        tables,
        params.get("from"),
        params.get("to"),
        params.get("into"),
        params.get("mode"),
        bool(params.get("dry_run")),
    )


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
    if config.store.kind == "server":
        return []  # the file is parsed every few seconds, and must not wait for a network
    try:
        newest = open_store(config).newest_schemas()
        return [] if newest is None else list(newest[1].tables)
    except (CdcError, OSError):  # the DAG is built all the same; the task's own error says what is wrong
        return []
