"""A meta as nodes of ZooKeeper, in the tree that Canal's tools know: ``docs/formats/meta.md``.

Pure: from a state to the nodes below ``destinations/<destination>`` and back. Canal's ZooKeeperMetaManager and
ZookeeperPathUtils are where the names, LogPosition and PositionRange come from. What Canal has no place for stands
under the key or the node ``towpath``.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from cdc.errors import DamagedError, IdentityError, UsageError
from cdc.meta.envelope import checksum, invalid, read_object, unwrap, wrap
from cdc.meta.state import Outstanding, State, Subscription
from cdc.positions import make_file_name, split_seq

OURS, FILTER, CURSOR, MARK = "towpath", "filter", "cursor", "mark"
_BUCKETS = 16
TABLES = tuple(f"tables-{number:02d}" for number in range(_BUCKETS))
"""The records of tables, shared out by a checksum of the name: an ack rewrites few of these nodes, and none grows
beyond what ZooKeeper takes."""
OWN = frozenset({OURS, FILTER, CURSOR, MARK, *TABLES})
"""What a subscriber's node may hold of ours."""
RESERVED = frozenset({OURS, "cluster", "running"})
"""Names below a destination that are no subscribers: ours, and those of Canal's servers."""

_POSITION = "com.alibaba.otter.canal.protocol.position."
_MARK_DIGITS = 10
_REMEDY = (
    "Nothing was changed. Put back what the node held; or delete the subscriber's whole node: it then begins at the "
    "store's first transaction, and what the tables hold already is skipped."
)

Nodes = dict[str, bytes]
"""Content by path below the destination's node. Nodes that only hold others are empty."""
Place = Callable[[str], str]
"""The full name of a path, for messages."""


@dataclass(frozen=True)
class Address:
    """The source's address, which Canal writes beside each position."""

    host: str
    port: int


def render(state: State, address: Address | None, change: str) -> Nodes:
    """All nodes of a state. ``change`` names the change that makes it."""
    body = state.model_dump(mode="json", include={"destination", "source"})
    nodes = {OURS: _json(wrap(body, change=change))}
    for name, known in state.subscriptions.items():
        if name in RESERVED:
            raise UsageError(
                f"{name!r} cannot be the name of a subscriber: Canal's tree has another node of this name",
                remedy="Choose another name.",
            )
        nodes[name] = b""
        nodes.update({f"{name}/{path}": data for path, data in _subscription(known, state, address)})
    return nodes


def _subscription(known: Subscription, state: State, address: Address | None) -> Iterator[tuple[str, bytes]]:
    body = _body(known)
    ours = {key: body[key] for key in _IN_OURS if key in body}
    yield OURS, _json({**ours, "checksum": checksum(body)})
    if known.filter is not None:
        yield FILTER, known.filter.encode()
    if known.acked_seq:
        cursor = _log_position(known.acked_seq, state, address)
        yield CURSOR, _json({**cursor, OURS: {"acked_seq": known.acked_seq}})
    for node, records in _buckets(known.tables).items():
        yield node, _json(records)
    yield MARK, b""
    for entry in known.outstanding:
        end = _log_position(entry.last_seq, state, address)
        start = _log_position(entry.first_seq, state, address)
        document = {"@type": f"{_POSITION}PositionRange", "ack": end, "end": end, "start": start}
        yield f"{MARK}/{_mark_name(entry.batch)}", _json({**document, OURS: entry.model_dump(mode="json")})


_IN_OURS = ("next_batch", "finished", "since_seq", "gaps", "mark")
_SINCE_V2 = ("since_seq", "gaps", "tables", "mark")


def _body(known: Subscription) -> dict[str, Any]:
    """What the checksum is made of. Keys that version 1 did not have are left out where they say nothing, so that the
    checksum of its nodes holds."""
    body = known.model_dump(mode="json")
    return {key: value for key, value in body.items() if key not in _SINCE_V2 or value not in (None, [], {})}


def _buckets(tables: Mapping[str, str]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for name, record in sorted(tables.items()):
        found.setdefault(TABLES[zlib.crc32(name.encode()) % _BUCKETS], {})[name] = record
    return found


def _log_position(seq: int, state: State, address: Address | None) -> dict[str, Any]:
    identity: dict[str, Any] = {"slaveId": -1}
    if address is not None:
        identity["sourceAddress"] = {"address": address.host, "port": address.port}
    found = {"@type": f"{_POSITION}LogPosition", "identity": identity}
    entry = _entry_position(seq, state)
    return found if entry is None else {**found, "postion": entry}  # Canal's spelling


def _entry_position(seq: int, state: State) -> dict[str, Any] | None:
    if state.source is None:
        return None
    parts = split_seq(seq)
    file = make_file_name(state.source.base_name, parts.file_number)
    return {"included": False, "journalName": file, "position": parts.offset}


def parse(nodes: Mapping[str, bytes], destination: str, place: Place) -> State:
    """The state in these nodes; empty where there are none. Raises DamagedError naming the node, VersionError, and
    IdentityError for the nodes of another destination."""
    names = sorted(name for name, _, below in (path.partition("/") for path in nodes) if below == OURS)
    if not nodes.get(OURS):
        if names:
            lost = f"is empty or missing, though there is the subscriber {names[0]!r}"
            raise DamagedError(lost, place=place(OURS), remedy=_REMEDY)
        return State(destination=destination)
    document = unwrap(nodes[OURS], place(OURS), _REMEDY, "node")
    try:
        state = State.model_validate_json(json.dumps(document["body"]))
    except ValidationError as error:
        raise invalid(error, "body", place(OURS), _REMEDY) from None
    if state.destination != destination:
        raise IdentityError(
            f"belongs to destination {state.destination!r}, not to {destination!r}",
            place=place(OURS),
            remedy="Nodes cannot be copied from one destination to another: delete these.",
        )
    for name in names:
        within = {path.removeprefix(f"{name}/"): data for path, data in nodes.items() if path.startswith(f"{name}/")}
        state.subscriptions[name] = _read_subscription(within, state, _below(place, name))
    return state


def _read_subscription(nodes: Mapping[str, bytes], state: State, place: Place) -> Subscription:
    ours = read_object(nodes[OURS], place(OURS), _REMEDY)
    marks = sorted(path for path in nodes if path.startswith(f"{MARK}/"))
    try:
        table_filter = nodes[FILTER].decode() if FILTER in nodes else None
    except UnicodeDecodeError as error:
        raise DamagedError(f"is not UTF-8: {error}", place=place(FILTER), remedy=_REMEDY) from None
    body: dict[str, Any] = {
        "filter": table_filter,
        "acked_seq": _read_cursor(nodes[CURSOR], state, place(CURSOR)) if CURSOR in nodes else 0,
        "next_batch": ours.get("next_batch"),
        "outstanding": [_read_mark(path, nodes[path], place(path)) for path in marks],
        "finished": ours.get("finished"),
        "since_seq": ours.get("since_seq"),
        "gaps": ours.get("gaps", []),
        "mark": ours.get("mark"),
        "tables": {},
    }
    for node in TABLES:
        if node in nodes:
            body["tables"].update(read_object(nodes[node], place(node), _REMEDY))
    try:
        found = Subscription.model_validate_json(json.dumps(body))
    except ValidationError as error:
        raise invalid(error, OURS, place(OURS), _REMEDY) from None
    said, is_now = ours.get("checksum"), checksum(_body(found))
    if said != is_now or not {"next_batch", "finished", "checksum"} <= set(ours) <= {*_IN_OURS, "checksum"}:
        raise DamagedError(
            f"does not fit the nodes beside it: its checksum is {said!r}, theirs {is_now!r}; one was changed or lost",
            place=place(OURS),
            remedy=_REMEDY,
        )
    return found


def _read_cursor(data: bytes, state: State, place: str) -> int:
    cursor = read_object(data, place, _REMEDY)
    ours = cursor.get(OURS)
    seq = ours.get("acked_seq") if isinstance(ours, dict) else None
    if not isinstance(seq, int) or isinstance(seq, bool):
        raise DamagedError("is not a cursor of ours: it has no towpath.acked_seq", place=place, remedy=_REMEDY)
    entry, said = _entry_position(seq, state), cursor.get("postion")
    if entry is not None and said != entry:
        raise DamagedError(
            f"contradicts itself: towpath.acked_seq {seq} is {entry}, but postion says {said}",
            place=place,
            remedy=_REMEDY,
        )
    return seq


def _read_mark(path: str, data: bytes, place: str) -> Any:
    ours = read_object(data, place, _REMEDY).get(OURS)
    try:
        entry = Outstanding.model_validate_json(json.dumps(ours))
    except ValidationError as error:
        raise invalid(error, OURS, place, _REMEDY) from None
    if path != f"{MARK}/{_mark_name(entry.batch)}":
        raise DamagedError(f"is the mark of batch {entry.batch}", place=place, remedy=_REMEDY)
    return ours


def refuse_foreign(state: State, foreign: Mapping[str, frozenset[str]], place: Place) -> None:
    """A new subscriber must not take over the nodes of Canal's own client of the same name. Raises IdentityError."""
    for name in state.subscriptions:
        taken = foreign.get(name, frozenset()) & OWN
        if taken:
            raise IdentityError(
                f"holds {', '.join(sorted(taken))} of a client that is not Towpath's",
                place=place(name),
                remedy="Choose another name or another meta.root; or delete the node, if that client is gone.",
            )


def only_holds_others(path: str) -> bool:
    """Is this a node without content of ours? Whatever stands there is left alone."""
    name, _, below = path.partition("/")
    return below == MARK or (not below and name != OURS)


def _below(place: Place, name: str) -> Place:
    return lambda path: place(f"{name}/{path}")


def _mark_name(batch: int) -> str:
    return f"{batch:0{_MARK_DIGITS}d}"


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
