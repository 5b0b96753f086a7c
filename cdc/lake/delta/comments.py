"""Gives Delta tables and their columns the comments that the source's have.

A comment of the source replaces what the Delta table has. Where the source has none, a comment that somebody gave the
Delta table stays, and one that came from the source goes: the table's property :data:`COMMENTS_PROPERTY` tells them
apart. The commits change no row and carry no position, so they come before the statement that does.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.lake.delta.sql import literal, quote
from cdc.lake.delta.tables import schema_of, sql_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc.binlog.sql.schemas import TableComments
    from cdc.lake.delta.log import DeltaState
    from cdc.lake.delta.tables import Target

COMMENTS_PROPERTY = "towpath.comments"
"""Delta table property: the digests of the comments that came from the source, as JSON: {column: digest}. The table's
own has the key ``""``."""
_TABLE = ""


@dataclass(frozen=True)
class CommentChanges:
    """The changes to be made in a table."""

    comments: dict[str, str]
    """Comments by the names of columns in Delta; an empty one is removed."""
    record: str
    """The new value of :data:`COMMENTS_PROPERTY`."""


def follows_comments(state: DeltaState, target: Target, comments: TableComments | None) -> bool:
    """Whether the table has the source's comments. ``comments``: None if they are not known."""
    return _changes(state, target, comments) is None


def follow_comments(
    spark: SparkSession, target: Target, state: DeltaState, comments: TableComments | None
) -> DeltaState:
    """Gives the table the source's comments, and returns its state."""
    changes = _changes(state, target, comments)
    if changes is None:
        return state
    properties = {COMMENTS_PROPERTY: changes.record}
    if _TABLE in changes.comments:
        properties["comment"] = changes.comments[_TABLE]  # Delta makes it the description of the table
    spark.sql(f"ALTER TABLE {target.sql} SET TBLPROPERTIES ({sql_properties(properties)})").collect()
    columns = {name: text for name, text in changes.comments.items() if name != _TABLE}
    if columns:
        parts = ", ".join(f"{quote(name)} COMMENT {literal(text)}" for name, text in columns.items())
        spark.sql(f"ALTER TABLE {target.sql} ALTER COLUMN {parts}").collect()
    return target.state() or state


def _changes(state: DeltaState, target: Target, comments: TableComments | None) -> CommentChanges | None:
    if comments is None or not target.apply.comments or target.apply.shared:  # the sources may differ in them
        return None
    fields = {field.name.lower(): field for field in schema_of(state).fields}
    present = {field.name: str(field.metadata.get("comment", "")) for field in fields.values()} | {
        _TABLE: state.description
    }
    texts = {_TABLE: comments.table} if comments.table else {}
    for source, text in comments.columns.items():
        field = fields.get((target.policies.lake_name(source) or "").lower())
        if field is not None:
            texts[field.name] = text
    recorded: Mapping[str, str] = json.loads(state.properties.get(COMMENTS_PROPERTY, "{}"))
    changed = {name: text for name, text in texts.items() if present[name] != text}
    ours = {name for name, text in present.items() if text and recorded.get(name) == _digest(text)}
    changed |= dict.fromkeys(ours - texts.keys(), "")
    record = {name: _digest(text) for name, text in texts.items()}
    if not changed and record == recorded:
        return None
    return CommentChanges(changed, json.dumps(record, ensure_ascii=False, sort_keys=True))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
