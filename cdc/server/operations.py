"""The operations that a client may call: their arguments, and what each does in the store and the meta.

Each is a function of the destination, the subscriber whose token the client has, and the checked arguments. It returns
a JSON value, or bytes. ``docs/formats/server.md`` describes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from cdc.base.errors import UsageError
from cdc.batches import parking
from cdc.batches.manifest import Manifest, TableResult
from cdc.batches.subscribers import make_filter
from cdc.meta import ParkedTable, TableRecord
from cdc.server.files import missing, relative_path, served_path
from cdc.store.formats.index import IndexFile, read_entries
from cdc.wire.protocol import MOST_ENTRIES, MOST_MANIFESTS

if TYPE_CHECKING:
    from cdc.batches.lease import Lease
    from cdc.binlog.entry import Entries
    from cdc.server.destinations import ServedDestination

_TOKEN = r"^[0-9a-f]{32,64}$"
_LOCK = r"^(commit|job)-[A-Za-z0-9_$%.-]{1,240}$"


class Arguments(BaseModel):
    """The arguments of an operation. Unknown keys are refused: a newer client must not be misunderstood."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    subscriber: str | None = None
    """The subscriber that the client means; null: whose token it has. It must be the same one."""


_A = TypeVar("_A", bound=Arguments)


@dataclass(frozen=True)
class Call(Generic[_A]):
    """A call of an operation."""

    served: ServedDestination
    subscriber: str
    """The subscriber whose token the client has."""
    given: _A
    is_repeated: bool = False
    """Whether the client repeats a call whose answer was lost."""


@dataclass(frozen=True)
class Operation:
    """An operation: the model of its arguments, and what it does."""

    arguments: type[Arguments]
    run: Callable[[Call[Any]], Any]


OPERATIONS: dict[str, Operation] = {}
"""The operations by their names in the protocol."""


def _operation(arguments: type[_A]) -> Callable[[Callable[[Call[_A]], Any]], Callable[[Call[_A]], Any]]:
    def register(run: Callable[[Call[_A]], Any]) -> Callable[[Call[_A]], Any]:
        OPERATIONS[run.__name__] = Operation(arguments, run)
        return run

    return register


class Nothing(Arguments):
    """No arguments."""


# --- batches


class Get(Arguments):
    owner: str = Field(min_length=1, max_length=1000)
    token: str = Field(pattern=_TOKEN)
    lease_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    ahead: bool = False
    until: AwareDatetime | None = None
    acked: int | None = None
    acked_token: str | None = None
    wait_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """The app waits for a batch, so that no thread does."""


@_operation(Get)
def get(call: Call[Get]) -> Any:
    """Hands out a batch; null if there is none now."""
    given, batches = call.given, call.served.batches
    if given.acked is not None:
        lease = batches.get_after(
            given.acked,
            given.acked_token or "",
            given.owner,
            subscriber=call.subscriber,
            wait_s=0.0,
            until=given.until,
            token=given.token,
        )
    else:
        lease = batches.get(
            given.owner,
            subscriber=call.subscriber,
            wait_s=0.0,
            lease_s=given.lease_s,
            ahead=given.ahead,
            until=given.until,
            token=given.token,
        )
    return None if lease is None else lease_document(call.served, lease)


class Batch(Arguments):
    batch: int
    token: str


class Ack(Batch):
    results: list[TableResult] | None = None


@_operation(Ack)
def ack(call: Call[Ack]) -> Any:
    call.served.batches.ack(call.given.batch, call.given.token, subscriber=call.subscriber, results=call.given.results)


@_operation(Batch)
def rollback(call: Call[Batch]) -> Any:
    return call.served.batches.rollback(call.given.batch, call.given.token, subscriber=call.subscriber)


class Owner(Arguments):
    owner: str


@_operation(Owner)
def release(call: Call[Owner]) -> Any:
    return call.served.batches.release(call.given.owner, subscriber=call.subscriber)


@_operation(Batch)
def check(call: Call[Batch]) -> Any:
    found = call.served.batches.check(call.given.batch, call.given.token, subscriber=call.subscriber)
    return found.model_dump(mode="json")


class Renew(Batch):
    lease_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)


@_operation(Renew)
def renew(call: Call[Renew]) -> Any:
    return call.served.batches.renew(
        call.given.batch, call.given.token, subscriber=call.subscriber, lease_s=call.given.lease_s
    ).isoformat()


class Resume(Arguments):
    batch: int
    fingerprint: str


@_operation(Resume)
def resume(call: Call[Resume]) -> Any:
    lease = call.served.batches.resume(call.given.batch, call.given.fingerprint, subscriber=call.subscriber)
    return lease_document(call.served, lease)


@_operation(Nothing)
def next_seq(call: Call[Nothing]) -> Any:
    return call.served.batches.next_seq(call.subscriber)


@_operation(Nothing)
def last_seq(call: Call[Nothing]) -> Any:
    return call.served.batches.last_seq()


class Manifests(Arguments):
    after_batch: int = 0


@_operation(Manifests)
def manifests(call: Call[Manifests]) -> Any:
    """The manifests of acked batches, some at a time."""
    found = call.served.batches.manifests.acked(call.subscriber, call.given.after_batch, MOST_MANIFESTS)
    return [manifest_document(call.served, one) for one in found]


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
    for one in document["ranges"]:
        one["path"] = relative_path(store, one["path"])
    if document["schema_path"] is not None:
        document["schema_path"] = relative_path(store, document["schema_path"])
    return document


class TableBatch(Arguments):
    table: str
    after_seq: int
    until_seq: int | None = None
    whole: bool = False


@_operation(TableBatch)
def table_batch(call: Call[TableBatch]) -> Any:
    """The next changes of one table, as a manifest that nobody leases."""
    if call.served.config.store.stages_batches:
        raise UsageError(
            "store.stage is set where the server runs, and copies for single tables would be gone before they are read",
            place=call.served.name,
            remedy="Remove store.stage there: executors read from the server.",
        )
    given = call.given
    with call.served.table_batches().next(given.table, given.after_seq, given.until_seq, whole=given.whole) as found:
        return None if found is None else manifest_document(call.served, found)


# --- the subscriber


@_operation(Nothing)
def whoami(call: Call[Nothing]) -> Any:
    """The subscriber whose token the client has."""
    return call.subscriber


@_operation(Nothing)
def state(call: Call[Nothing]) -> Any:
    """The meta as far as the subscriber may see it: the source, and its own subscription."""
    found = call.served.meta.read()
    known = found.subscriptions.get(call.subscriber)
    found.subscriptions = {} if known is None else {call.subscriber: known}
    return found.model_dump(mode="json")


class Filter(Arguments):
    table_filter: str | None = None


@_operation(Filter)
def subscribe(call: Call[Filter]) -> Any:
    return call.served.batches.subscribe(call.subscriber, call.given.table_filter).model_dump(mode="json")


@_operation(Nothing)
def unsubscribe(call: Call[Nothing]) -> Any:
    call.served.batches.unsubscribe(call.subscriber)


@_operation(Nothing)
def accept_beginning(call: Call[Nothing]) -> Any:
    return call.served.batches.accept_beginning(call.subscriber).model_dump(mode="json")


class Tables(Arguments):
    tables: dict[str, str | None]
    """The text of each table's record; null: the table is gone."""


@_operation(Tables)
def accept_tables(call: Call[Tables]) -> Any:
    try:
        records = {name: None if one is None else TableRecord.of(one) for name, one in call.given.tables.items()}
    except ValueError as error:
        raise UsageError(f"these are no records of tables: {error}") from None
    return [gap.model_dump(mode="json") for gap in call.served.batches.accept_tables(call.subscriber, records)]


# --- parked tables, and locks


class Park(Arguments):
    table: str
    parked: ParkedTable


@_operation(Park)
def park(call: Call[Park]) -> Any:
    """Parks a table. The client holds the table's commit lock."""
    given = call.given
    before = parking.record_parked(call.served.meta, call.subscriber, given.table, given.parked)
    return None if before is None else before.model_dump(mode="json")


class KeepFrom(Arguments):
    table: str
    keep_seq: int | None = Field(default=None, ge=0)


@_operation(KeepFrom)
def keep_from(call: Call[KeepFrom]) -> Any:
    parking.keep_from(call.served.meta, call.subscriber, call.given.table, call.given.keep_seq)


class Unpark(Arguments):
    result: TableResult
    level_seq: int


@_operation(Unpark)
def unpark(call: Call[Unpark]) -> Any:
    try:
        return parking.unpark(call.served.meta, call.subscriber, call.given.result, call.given.level_seq)
    except UsageError:
        if call.is_repeated:  # the table is not parked any more: the call before was done
            return None
        raise


class TableName(Arguments):
    table: str


@_operation(TableName)
def release_parked(call: Call[TableName]) -> Any:
    parking.release_parked(call.served.meta, call.subscriber, call.given.table)


class Lock(Arguments):
    id: str = Field(pattern=_TOKEN)
    name: str = Field(pattern=_LOCK)
    what: str = Field(max_length=1000)
    shared: bool = False


@_operation(Lock)
def lock(call: Call[Lock]) -> Any:
    """Takes a lock of the meta without waiting."""
    given = call.given
    call.served.locks.acquire(given.id, given.name, given.what, call.subscriber, shared=given.shared)


class LockIds(Arguments):
    ids: list[str]


@_operation(LockIds)
def renew_locks(call: Call[LockIds]) -> Any:
    """Renews locks. Returns those that the client does not hold any more."""
    return call.served.locks.renew(call.given.ids, call.subscriber)


@_operation(LockIds)
def unlock(call: Call[LockIds]) -> Any:
    """Releases locks. Returns those that the client did not hold any more."""
    return [one for one in call.given.ids if not call.served.locks.release(one, call.subscriber)]


# --- the store


@_operation(Nothing)
def store(call: Call[Nothing]) -> Any:
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


@_operation(Nothing)
def totals(call: Call[Nothing]) -> Any:
    """The size of the store, where its segments begin, and the use of its disk."""
    from cdc.batches.retention import make_watch
    from cdc.lake.jobs.maintain import disk_document

    reader, config = call.served.reader(), call.served.config.store
    return {
        "first_seq": reader.first_seq(),
        "segment_starts": reader.segment_starts(),
        "totals": asdict(reader.totals()),
        "disk": disk_document(make_watch(config)) if config.path.is_dir() else None,
        "standby": config.standby.role,
    }


class Seq(Arguments):
    seq: int


@_operation(Seq)
def require_kept(call: Call[Seq]) -> Any:
    call.served.reader().require_kept(call.given.seq)


class After(Seq):
    filter: str | None = None


@_operation(After)
def backlog(call: Call[After]) -> Any:
    """The transactions after a seq, of the tables that a filter leaves."""
    return asdict(call.served.reader().backlog(call.given.seq, make_filter(call.given.filter)))


class Schemas(Arguments):
    seq: int | None = None


@_operation(Schemas)
def schemas(call: Call[Schemas]) -> Any:
    """Table definitions: those in force after a seq, else the newest."""
    reader, seq = call.served.reader(), call.given.seq
    found = reader.newest_schemas() if seq is None else reader.schemas(seq)
    return None if found is None else {"seq": found[0], "schemas": found[1].model_dump(mode="json")}


class Time(Arguments):
    time_us: int


@_operation(Time)
def find_by_commit_time(call: Call[Time]) -> Any:
    return call.served.reader().find_by_commit_time(call.given.time_us)


@_operation(Time)
def find_by_store_time(call: Call[Time]) -> Any:
    return call.served.reader().find_by_store_time(call.given.time_us)


@_operation(Time)
def seq_before(call: Call[Time]) -> Any:
    return call.served.reader().seq_before(call.given.time_us)


@_operation(Nothing)
def check_files(call: Call[Nothing]) -> Any:
    return asdict(call.served.reader().check_files())


class Between(Arguments):
    after_seq: int
    upto_seq: int | None = None


@_operation(Between)
def entries(call: Call[Between]) -> bytes:
    """Index entries as bytes, in order, some at a time."""
    found = next(call.served.reader().all_entries(call.given.after_seq, call.given.upto_seq), None)
    return b"" if found is None else _packed(found)


@_operation(Seq)
def entry_at(call: Call[Seq]) -> bytes:
    """The last index entry up to a seq, as bytes."""
    found = call.served.reader().entry_at(call.given.seq)
    return b"" if found is None else bytes(found.tobytes())


class RangeEntries(Arguments):
    path: str
    offset: int = Field(ge=0)
    length: int = Field(ge=0)


@_operation(RangeEntries)
def range_entries(call: Call[RangeEntries]) -> bytes:
    """The index entries of the transactions in a byte range of a segment, from its start, some at a time."""
    given = call.given
    segment = served_path(call.served.config.store.path, given.path)
    if not segment.exists():
        raise missing(segment)
    found = IndexFile(segment).entries["offset"]
    start = int(np.searchsorted(found, np.uint64(given.offset), side="left"))
    stop = int(np.searchsorted(found, np.uint64(given.offset + given.length), side="left"))
    length = given.length
    if stop - start > MOST_ENTRIES:
        length = int(found[start + MOST_ENTRIES]) - given.offset
    return _packed(read_entries(segment, given.offset, length))


def _packed(found: Entries) -> bytes:
    return bytes(found[:MOST_ENTRIES].tobytes())
