"""The operations that a client may call: those of :mod:`cdc.batches.operations`, and those that are more than a method.

Each of these is a function of a call and of the arguments, whose annotations are checked. It returns a JSON value, or
bytes. ``docs/formats/server.md`` describes all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import AwareDatetime, Field

from cdc.base.errors import CdcError, UsageError
from cdc.batches.lease import Lease
from cdc.batches.manifest import Manifest
from cdc.batches.operations import METHODS, Arguments, Method, arguments_of
from cdc.batches.parking import records_of
from cdc.batches.retention import make_watch
from cdc.batches.subscribers import make_filter
from cdc.batches.waiting import find_obstacle
from cdc.binlog.entry import Entries
from cdc.server.destinations import ServedDestination
from cdc.server.files import missing, relative_path, served_path
from cdc.store.formats.index import IndexFile, read_entries
from cdc.wire.protocol import MOST_ENTRIES, MOST_MANIFESTS, error_document

Token = Annotated[str, Field(pattern=r"^[0-9a-f]{32,64}$")]
LockName = Annotated[str, Field(pattern=r"^(commit|job)-[A-Za-z0-9_$%.-]{1,240}$")]
Text = Annotated[str, Field(max_length=1000)]
Owner = Annotated[str, Field(min_length=1, max_length=1000)]
Natural = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class OperationCall:
    """A call of an operation."""

    served: ServedDestination
    subscriber: str
    """The subscriber whose token the client has."""
    arguments: Any
    """The arguments, as the operation's model."""
    is_repeated: bool = False
    """Whether the client repeats a call whose answer was lost."""


@dataclass(frozen=True)
class Operation:
    """An operation: the model of its arguments, and what it does."""

    arguments: type[Arguments]
    run: Callable[[OperationCall], Any]
    subscribes: bool = False
    """Whether it makes a subscription."""


_PARTS: dict[str, Callable[[ServedDestination], object]] = {
    "batches": lambda served: served.batches,
    "parking": lambda served: records_of(served.meta),
    "reader": lambda served: served.reader(),
}


def _of_method(method: Method) -> Operation:
    def run(call: OperationCall) -> Any:
        try:
            return method.run(_PARTS[method.part](call.served), call.subscriber, call.arguments)
        except CdcError as error:
            if call.is_repeated and isinstance(error, method.done):
                return None
            raise

    return Operation(method.arguments, run, subscribes=method.subscribes)


OPERATIONS: dict[str, Operation] = {name: _of_method(method) for name, method in METHODS.items()}
"""The operations by their names in the protocol."""


_F = TypeVar("_F", bound=Callable[..., Any])


def _operation(function: _F) -> _F:
    """Makes a function of a call and of an operation's arguments that operation."""
    arguments = arguments_of(function, {}, ("call",))
    names = [name for name in arguments.model_fields if name != "subscriber"]

    def run(call: OperationCall) -> Any:
        return function(call, **{name: getattr(call.arguments, name) for name in names})

    OPERATIONS[function.__name__] = Operation(arguments, run)
    return function


# --- batches


class Get(Arguments):
    owner: Owner
    token: Token
    lease_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    ahead: bool = False
    until: AwareDatetime | None = None
    acked: int | None = None
    acked_token: str | None = None
    mixes: bool = False
    wait_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The app waits for a batch, so that no thread does."""


def _get(call: OperationCall) -> Any:
    """Hands out a batch; null if there is none now."""
    arguments: Get = call.arguments
    batches = call.served.batches.mixing() if arguments.mixes else call.served.batches
    if arguments.acked is not None:
        lease = batches.get_after(
            arguments.acked,
            arguments.acked_token or "",
            arguments.owner,
            subscriber=call.subscriber,
            wait_s=0.0,
            until=arguments.until,
            token=arguments.token,
        )
    else:
        lease = batches.get(
            arguments.owner,
            subscriber=call.subscriber,
            wait_s=0.0,
            lease_s=arguments.lease_s,
            ahead=arguments.ahead,
            until=arguments.until,
            token=arguments.token,
        )
    return None if lease is None else lease_document(call.served, lease)


OPERATIONS["get"] = Operation(Get, _get, subscribes=True)


@_operation
def obstacle(call: OperationCall, owner: Owner, until: AwareDatetime | None = None) -> Any:
    """The error with which a get of this owner would end if it did not wait; null if nothing is in its way."""
    served = call.served
    error = find_obstacle(served.name, served.meta.read(), served.reader(), owner, until, call.subscriber)
    return None if error is None else error_document(error)


@_operation
def resume(call: OperationCall, batch: int, fingerprint: str) -> Any:
    lease = call.served.batches.resume(batch, fingerprint, subscriber=call.subscriber)
    return lease_document(call.served, lease)


@_operation
def manifests(call: OperationCall, after_batch: int = 0) -> Any:
    """The manifests of acked batches, some at a time."""
    manifests = call.served.batches.manifests.acked(call.subscriber, after_batch, MOST_MANIFESTS)
    return [manifest_document(call.served, manifest) for manifest in manifests]


def lease_document(served: ServedDestination, lease: Lease) -> dict[str, Any]:
    """Returns a lease as JSON; the paths in its manifest are those below the store's folder."""
    return {
        "token": lease.token,
        "expires": lease.expires.astimezone(UTC).isoformat(),
        "manifest_path": str(lease.manifest_path),
        "manifest": manifest_document(served, lease.manifest),
    }


def manifest_document(served: ServedDestination, manifest: Manifest) -> dict[str, Any]:
    store = served.config.store.path
    document: dict[str, Any] = manifest.model_dump(mode="json")
    for byte_range in document["ranges"]:
        byte_range["path"] = relative_path(store, byte_range["path"])
    if document["schema_path"] is not None:
        document["schema_path"] = relative_path(store, document["schema_path"])
    return document


@_operation
def table_batch(
    call: OperationCall, table: str, after_seq: int, until_seq: int | None = None, whole: bool = False
) -> Any:
    """The next changes of one table, as a manifest that nobody leases."""
    if call.served.config.store.stages_batches:
        raise UsageError(
            "store.stage is set where the server runs, and copies for single tables would be gone before they are read",
            place=call.served.name,
            remedy="Remove store.stage there: executors read from the server.",
        )
    with call.served.table_batches().next(table, after_seq, until_seq, whole=whole) as manifest:
        return None if manifest is None else manifest_document(call.served, manifest)


# --- the subscriber


@_operation
def whoami(call: OperationCall) -> Any:
    """The subscriber whose token the client has."""
    return call.subscriber


@_operation
def state(call: OperationCall) -> Any:
    """The meta as far as the subscriber may see it: the source, and its own subscription."""
    state = call.served.meta.read()
    subscription = state.subscriptions.get(call.subscriber)
    state.subscriptions = {} if subscription is None else {call.subscriber: subscription}
    return state.model_dump(mode="json")


# --- locks


@_operation
def lock(call: OperationCall, id: Token, name: LockName, what: Text, shared: bool = False) -> None:  # noqa: A002
    """Takes a lock of the meta without waiting."""
    call.served.locks.acquire(id, name, what, call.subscriber, shared=shared)


@_operation
def renew_locks(call: OperationCall, ids: list[str]) -> Any:
    """Renews locks. Returns those that the client does not hold any more."""
    return call.served.locks.renew(ids, call.subscriber)


@_operation
def unlock(call: OperationCall, ids: list[str]) -> Any:
    """Releases locks. Returns those that the client did not hold any more."""
    return [lock_id for lock_id in ids if not call.served.locks.release(lock_id, call.subscriber)]


# --- the store


@_operation
def store(call: OperationCall) -> Any:
    """The store as it is now."""
    reader = call.served.reader()
    beginning = reader.beginning() if reader.exists() else None
    capture = reader.capture_state()
    # Read before the end: everything up to it is then visible.
    complete_us = reader.complete_until_us()
    return {
        "exists": reader.exists(),
        "base_name": reader.base_name,
        "beginning": None if beginning is None else asdict(beginning),
        "removed_seq": reader.removed_seq(),
        "complete_until_us": complete_us,
        "last_seq": reader.last_seq(),
        "capture": None if capture is None else asdict(capture),
        "tables": reader.table_names(),
    }


@_operation
def totals(call: OperationCall) -> Any:
    """The size of the store, where its segments begin, and the use of its disk."""
    reader, config = call.served.reader(), call.served.config.store
    return {
        "first_seq": reader.first_seq(),
        "segment_starts": reader.segment_starts(),
        "totals": asdict(reader.totals()),
        "disk": make_watch(config).document() if config.path.is_dir() else None,
        "standby": config.standby.role,
    }


@_operation
def backlog(call: OperationCall, seq: int, filter: str | None = None) -> Any:  # noqa: A002
    """The transactions after a seq, of the tables that a filter leaves."""
    return asdict(call.served.reader().backlog(seq, make_filter(filter)))


@_operation
def schemas(call: OperationCall, seq: int | None = None) -> Any:
    """Table definitions: those in force after a seq, else the newest."""
    reader = call.served.reader()
    schemas = reader.newest_schemas() if seq is None else reader.schemas(seq)
    return None if schemas is None else {"seq": schemas[0], "schemas": schemas[1].model_dump(mode="json")}


@_operation
def entries(call: OperationCall, after_seq: int, upto_seq: int | None = None) -> bytes:
    """Index entries as bytes, in order, some at a time."""
    entries = next(call.served.reader().all_entries(after_seq, upto_seq), None)
    return b"" if entries is None else _packed(entries)


@_operation
def entry_at(call: OperationCall, seq: int) -> bytes:
    """The last index entry up to a seq, as bytes."""
    entry = call.served.reader().entry_at(seq)
    return b"" if entry is None else bytes(entry.tobytes())


@_operation
def range_entries(call: OperationCall, path: str, offset: Natural, length: Natural) -> bytes:
    """The index entries of the transactions in a byte range of a segment, from its start, some at a time."""
    segment = served_path(call.served.config.store.path, path)
    if not segment.exists():
        raise missing(segment)
    offsets = IndexFile(segment).entries["offset"]
    start = int(np.searchsorted(offsets, np.uint64(offset), side="left"))
    stop = int(np.searchsorted(offsets, np.uint64(offset + length), side="left"))
    if stop - start > MOST_ENTRIES:
        length = int(offsets[start + MOST_ENTRIES]) - offset
    return _packed(read_entries(segment, offset, length))


def _packed(entries: Entries) -> bytes:
    return bytes(entries[:MOST_ENTRIES].tobytes())
