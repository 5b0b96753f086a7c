"""Reads the positions that Debezium, Canal and Maxwell have stored, so that capture begins where they have stopped.

=========  ==========================================================================================================
tool       what is read
=========  ==========================================================================================================
Debezium   Kafka Connect's offsets as JSON (``GET /connectors/NAME/offsets``, or the value of a record in its topic),
           or ``offsets.dat`` of the embedded engine, a map that Java has serialized
Canal      the cursor in ZooKeeper (``/otter/canal/destinations/NAME/ID/cursor``), or ``meta.dat``
Maxwell    a row of ``maxwell.positions`` as a JSON object
=========  ==========================================================================================================

All three may lie inside a transaction, of which they have taken some rows. Capture then begins with that transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdc.base.errors import ConfigError

_MOST_BYTES = 16 << 20
_REMEDY = (
    "Give offsets of Debezium (Kafka Connect's JSON, or offsets.dat), the cursor or meta.dat of Canal, or a row of "
    "maxwell.positions as JSON; or write the position itself: start: {file: …, pos: …} or {gtid: …}."
)


@dataclass(frozen=True)
class OtherOffset:
    """A position of another tool: everything before it is taken."""

    tool: str
    file: str
    pos: int
    gtids: str | None
    """The transactions that are taken as a whole; None if they are not known."""


def read_other_offset(path: Path) -> OtherOffset:
    """Returns the only position in a file. Raises ConfigError."""
    try:
        with path.open("rb") as stream:
            text = stream.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise _error(path, f"cannot be read: {error.strerror or error}") from error
    offsets = list(dict.fromkeys(offset for document in _documents(text) for offset in _offsets(document, path)))
    if len(offsets) != 1:
        listed = ", ".join(f"{offset.file}:{offset.pos}" for offset in offsets)
        raise _error(path, f"has {len(offsets)} positions ({listed})" if offsets else "has no position")
    return offsets[0]


def _error(path: Path, what: str) -> ConfigError:
    return ConfigError(f"source.start.offsets: the file {what}", place=str(path), remedy=_REMEDY)


def _documents(text: str) -> Iterator[Any]:
    """Yields the JSON objects in a text, also those between other bytes."""
    decoder, at = json.JSONDecoder(), 0
    while (at := text.find("{", at)) >= 0:
        try:
            document, at = decoder.raw_decode(text, at)
        except json.JSONDecodeError:
            at += 1
            continue
        yield document


def _offsets(document: Any, path: Path) -> Iterator[OtherOffset]:
    """Yields the positions in a document, at any depth."""
    if isinstance(document, list):
        for item in document:
            yield from _offsets(item, path)
    if not isinstance(document, dict):
        return
    offset = _offset(document, path)
    if offset is not None:
        yield offset
        return
    for value in document.values():
        yield from _offsets(value, path)


def _offset(document: Mapping[str, Any], path: Path) -> OtherOffset | None:
    for tool, file, pos, gtids in (
        ("Debezium", "file", "pos", "gtids"),
        ("Canal", "journalName", "position", "gtid"),
        ("Maxwell", "binlog_file", "binlog_position", "gtid_set"),
    ):
        name, number = document.get(file), document.get(pos)
        if not isinstance(name, str) or isinstance(number, bool) or not str(number).isdigit():
            continue
        if tool == "Debezium" and document.get("snapshot") not in (None, False, "false"):
            raise _error(path, "is of a snapshot of Debezium's that has not ended")
        # Canal's set has the transaction in which its cursor lies.
        gtid_set = None if tool == "Canal" else document.get(gtids)
        return OtherOffset(tool, name, int(str(number)), str(gtid_set) if gtid_set else None)
    return None
