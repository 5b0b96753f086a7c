"""The nodes of a meta in ZooKeeper, in the tree that Canal's tools know: ``docs/formats/meta.md``.

Pure functions translate a state into the nodes below ``destinations/<destination>`` and back. The names, LogPosition
and PositionRange are those of Canal's ZooKeeperMetaManager and ZookeeperPathUtils. Data that Canal does not have is in
the key or the node ``towpath``.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from cdc.base.addresses import Address
from cdc.base.documents import json_object
from cdc.base.errors import DamagedError, IdentityError, UsageError
from cdc.binlog.positions import make_file_name, split_seq
from cdc.meta.envelope import NODES_VERSION, checksum, invalid, unwrap, wrap
from cdc.meta.state import HistoryMark, Outstanding, State, Subscription

OURS, FILTER, CURSOR, MARK = "towpath", "filter", "cursor", "mark"
SUBSCRIBER = "subscriber"
"""The key in a subscriber's own node with its name, where that is not the name of the node."""
_BUCKETS = 16
TABLES = tuple(f"tables-{number:02d}" for number in range(_BUCKETS))
"""Nodes with the records of tables, distributed by a checksum of the name: an ack rewrites few of them, and none grows
beyond ZooKeeper's limit."""
PARKED = tuple(f"parked-{number:02d}" for number in range(_BUCKETS))
"""Nodes with the parked tables, distributed likewise."""
OWN = frozenset({OURS, FILTER, CURSOR, MARK, *TABLES, *PARKED})
"""The names of Towpath's nodes below a subscriber's node."""
RESERVED = frozenset({OURS, "cluster", "running"})
"""Names below a destination that are not subscribers: Towpath's, and those of Canal's servers."""

_CANALS = re.compile(r"canal-(0|-?[1-9][0-9]*)")
_POSITION = "com.alibaba.otter.canal.protocol.position."
_MARK_DIGITS = 10
_REMEDY = (
    "Nothing was changed. Restore the node's content. Or delete the subscriber's whole node: it then begins at the "
    "store's first transaction, and changes that the tables already have are skipped."
)

Nodes = dict[str, bytes]
"""Content by path below the destination's node. Nodes that only have children are empty."""
FullName = Callable[[str], str]
"""Returns the full name of a path, for messages."""


def render(state: State, address: Address | None, change: str) -> Nodes:
    """Returns all nodes of a state.

    ``address`` is the source's, which Canal writes beside each position; ``change`` identifies the change that writes
    the nodes.
    """
    body = state.model_dump(mode="json", include={"destination", "source"})
    nodes = {OURS: _json(wrap(body, NODES_VERSION, change=change))}
    for name, subscription in state.subscriptions.items():
        if name in RESERVED:
            raise UsageError(
                f"{name!r} cannot be the name of a subscriber: Canal's tree uses it for another node",
                remedy="Choose another name.",
            )
        node = node_of(name, state.subscriptions)
        ours = {} if node == name else {SUBSCRIBER: name}
        nodes[node] = b""
        nodes.update({f"{node}/{path}": data for path, data in _subscription(subscription, state, address, ours)})
    return nodes


def node_of(name: str, names: Collection[str]) -> str:
    """Returns the node of a subscriber. That of a client id of Canal, ``canal-1001``, is ``1001``, where Canal's tools
    look for it; unless there is a subscriber with that very name, among ``names``."""
    match = _CANALS.fullmatch(name)
    return name if match is None or match[1] in names else match[1]


def _subscription(
    subscription: Subscription, state: State, address: Address | None, further: Mapping[str, str]
) -> Iterator[tuple[str, bytes]]:
    body = _body(subscription)
    ours = {key: body[key] for key in _IN_OURS if key in body}
    yield OURS, _json({**further, **ours, "checksum": checksum(body)})
    if subscription.filter is not None:
        yield FILTER, subscription.filter.encode()
    if subscription.acked_seq:
        cursor = _log_position(subscription.acked_seq, subscription.mark, state, address)
        yield CURSOR, _json({**cursor, OURS: {"acked_seq": subscription.acked_seq}})
    for node, records in (_buckets(TABLES, body.get("tables", {})) | _buckets(PARKED, body.get("parked", {}))).items():
        yield node, _json(records)
    yield MARK, b""
    for entry in subscription.outstanding:
        start, end = (_log_position(seq, entry.mark, state, address) for seq in (entry.first_seq, entry.last_seq))
        document = {"@type": f"{_POSITION}PositionRange", "ack": end, "end": end, "start": start}
        yield f"{MARK}/{_mark_name(entry.batch)}", _json({**document, OURS: entry.model_dump(mode="json")})


_IN_OURS = ("next_batch", "finished", "since_seq", "gaps", "mark")
_OPTIONAL = ("since_seq", "gaps", "tables", "mark", "parked")


def _body(subscription: Subscription) -> dict[str, Any]:
    """Returns the content that the checksum covers. Keys that may be absent are left out when they are empty."""
    body = subscription.model_dump(mode="json")
    return {key: value for key, value in body.items() if key not in _OPTIONAL or value not in (None, [], {})}


def _buckets(nodes: tuple[str, ...], tables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    buckets: dict[str, dict[str, Any]] = {}
    for name, record in sorted(tables.items()):
        buckets.setdefault(nodes[zlib.crc32(name.encode()) % _BUCKETS], {})[name] = record
    return buckets


def _log_position(seq: int, mark: HistoryMark | None, state: State, address: Address | None) -> dict[str, Any]:
    identity: dict[str, Any] = {"slaveId": -1}
    if address is not None:
        identity["sourceAddress"] = {"address": address.host, "port": address.port}
    position = {"@type": f"{_POSITION}LogPosition", "identity": identity}
    entry = _entry_position(seq, mark, state)
    return position if entry is None else {**position, "postion": entry}  # Canal's spelling


def _entry_position(seq: int, mark: HistoryMark | None, state: State) -> dict[str, Any] | None:
    """Returns Canal's EntryPosition of a seq, with what the mark tells if it is that of the seq. None if the source is
    not bound."""
    if state.source is None:
        return None
    parts = split_seq(seq)
    shown = mark if mark is not None and mark.seq == seq else HistoryMark(seq=seq)
    entry = {
        "gtid": shown.gtids,
        "included": False,
        "journalName": make_file_name(state.source.of_epoch(parts.epoch).base_name, parts.file_number),
        "position": parts.offset,
        "serverId": shown.server_id,
        "timestamp": None if shown.commit_time_us is None else shown.commit_time_us // 1000,
    }
    return {key: value for key, value in entry.items() if value is not None}


def parse(nodes: Mapping[str, bytes], destination: str, place: FullName) -> State:
    """Returns the state in these nodes; an empty one if there are none.

    Raises DamagedError that names the node, VersionError, and IdentityError for nodes of another destination.
    """
    names = sorted(name for name, _, below in (path.partition("/") for path in nodes) if below == OURS)
    if not nodes.get(OURS):
        if names:
            lost = f"is empty or missing, but there is a subscriber {names[0]!r}"
            raise DamagedError(lost, place=place(OURS), remedy=_REMEDY)
        return State(destination=destination)
    document = unwrap(nodes[OURS], place(OURS), _REMEDY, "node", NODES_VERSION)
    try:
        state = State.model_validate_json(json.dumps(document["body"]))
    except ValidationError as error:
        raise invalid(error, "body", place(OURS), _REMEDY) from None
    if state.destination != destination:
        raise IdentityError(
            f"belongs to destination {state.destination!r}, not to {destination!r}",
            place=place(OURS),
            remedy="Nodes cannot be copied from one destination to another: delete them.",
        )
    for node in names:
        within = {path.removeprefix(f"{node}/"): data for path, data in nodes.items() if path.startswith(f"{node}/")}
        name, subscription = _read_subscription(node, within, state, _below(place, node))
        if name in state.subscriptions:
            raise DamagedError(f"is a second node of the subscriber {name!r}", place=place(node), remedy=_REMEDY)
        state.subscriptions[name] = subscription
    return state


def _read_subscription(
    node: str, nodes: Mapping[str, bytes], state: State, place: FullName
) -> tuple[str, Subscription]:
    """Returns the subscriber's name too."""
    ours = json_object(nodes[OURS], place(OURS), _REMEDY)
    name = ours.pop(SUBSCRIBER, node)
    if name != node and (not isinstance(name, str) or node_of(name, ()) != node):
        raise DamagedError(f"is not the node of a subscriber {name!r}", place=place(OURS), remedy=_REMEDY)
    marks = sorted(path for path in nodes if path.startswith(f"{MARK}/"))
    try:
        table_filter = nodes[FILTER].decode() if FILTER in nodes else None
    except UnicodeDecodeError as error:
        raise DamagedError(f"is not UTF-8: {error}", place=place(FILTER), remedy=_REMEDY) from None
    cursor = json_object(nodes[CURSOR], place(CURSOR), _REMEDY) if CURSOR in nodes else None
    body: dict[str, Any] = {
        "filter": table_filter,
        "acked_seq": 0 if cursor is None else _acked_seq(cursor, place(CURSOR)),
        "next_batch": ours.get("next_batch"),
        "outstanding": [_read_mark(path, nodes[path], place(path)) for path in marks],
        "finished": ours.get("finished"),
        "since_seq": ours.get("since_seq"),
        "gaps": ours.get("gaps", []),
        "mark": ours.get("mark"),
        "tables": {},
        "parked": {},
    }
    for key, names in (("tables", TABLES), ("parked", PARKED)):
        for node in names:
            if node in nodes:
                body[key].update(json_object(nodes[node], place(node), _REMEDY))
    try:
        subscription = Subscription.model_validate_json(json.dumps(body))
    except ValidationError as error:
        raise invalid(error, OURS, place(OURS), _REMEDY) from None
    recorded, is_now = ours.get("checksum"), checksum(_body(subscription))
    if recorded != is_now or not {"next_batch", "finished", "checksum"} <= set(ours) <= {*_IN_OURS, "checksum"}:
        raise DamagedError(
            f"does not fit the nodes beside it: its checksum is {recorded!r}, but theirs is {is_now!r}; a node was "
            "changed or lost",
            place=place(OURS),
            remedy=_REMEDY,
        )
    if cursor is not None:
        _require_position(cursor, subscription, state, place(CURSOR))
    return name, subscription


def _acked_seq(cursor: Mapping[str, Any], place: str) -> int:
    ours = cursor.get(OURS)
    seq = ours.get("acked_seq") if isinstance(ours, dict) else None
    if not isinstance(seq, int) or isinstance(seq, bool):
        raise DamagedError("is not a cursor of Towpath: it has no towpath.acked_seq", place=place, remedy=_REMEDY)
    return seq


def _require_position(cursor: Mapping[str, Any], subscription: Subscription, state: State, place: str) -> None:
    """Raises DamagedError if what Canal's tools read is not the position of the subscriber's cursor."""
    seq, recorded = subscription.acked_seq, cursor.get("postion")
    entry = _entry_position(seq, subscription.mark, state)
    if entry is not None and recorded != entry:
        raise DamagedError(
            f"contradicts itself: towpath.acked_seq {seq} is {entry}, but postion is {recorded}",
            place=place,
            remedy=_REMEDY,
        )


def _read_mark(path: str, data: bytes, place: str) -> Any:
    ours = json_object(data, place, _REMEDY).get(OURS)
    try:
        entry = Outstanding.model_validate_json(json.dumps(ours))
    except ValidationError as error:
        raise invalid(error, OURS, place, _REMEDY) from None
    if path != f"{MARK}/{_mark_name(entry.batch)}":
        raise DamagedError(f"is the mark of batch {entry.batch}", place=place, remedy=_REMEDY)
    return ours


def refuse_foreign(state: State, foreign: Mapping[str, frozenset[str]], place: FullName) -> None:
    """Checks that a new subscriber does not take over the nodes of a Canal client of the same name. Raises
    IdentityError."""
    for name in state.subscriptions:
        node = node_of(name, state.subscriptions)
        foreign_nodes = foreign.get(node, frozenset()) & OWN
        if foreign_nodes:
            raise IdentityError(
                f"has {', '.join(sorted(foreign_nodes))} of a client that is not Towpath's",
                place=place(node),
                remedy="Choose another name or another meta.root; or delete the node, if that client is gone.",
            )


def only_holds_others(path: str) -> bool:
    """Whether Towpath writes no content into this node; existing content is left alone."""
    name, _, below = path.partition("/")
    return below == MARK or (not below and name != OURS)


def _below(place: FullName, name: str) -> FullName:
    return lambda path: place(f"{name}/{path}")


def _mark_name(batch: int) -> str:
    return f"{batch:0{_MARK_DIGITS}d}"


def _json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
