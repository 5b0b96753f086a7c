"""The state of a meta, and the rules inside one subscription.

These are plain models: an implementation of :class:`~cdc.meta.base.Meta` loads and stores a :class:`State`.

A table's record is one short text (``TableRecord.text``), so that a meta of 5,000 tables stays below half a megabyte
and is read in milliseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from cdc.base.errors import BatchError, BatchOrderError, NeedsSnapshotError, UsageError
from cdc.binlog.positions import split_seq

RecordText = Annotated[str, Field(pattern=r"^\d+ \d+ \d+ \S+$")]
"""``GENERATION VERSION APPLIED_SEQ ID``, separated by single blanks."""


@dataclass(frozen=True)
class TableRecord:
    """A Delta table as it was when a batch with its changes was acked. The lake must never be behind it."""

    generation: int
    version: int
    """The Delta version of the table's own last commit at that time."""
    applied_seq: int
    """The seq up to which changes had been applied; 0: the table had been created, and nothing applied."""
    delta_id: str
    """The table's id in Delta's metadata, which stays the same until the table is replaced."""

    @property
    def text(self) -> str:
        """The record as one line."""
        return f"{self.generation} {self.version} {self.applied_seq} {self.delta_id}"

    @classmethod
    def of(cls, text: str) -> TableRecord:
        """Parses a record from :attr:`text`."""
        generation, version, applied_seq, delta_id = text.split(" ")
        return cls(int(generation), int(version), int(applied_seq), delta_id)


class Gap(BaseModel):
    """Transactions that a subscriber never got, and whose loss an operator has accepted."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    after_seq: int = Field(ge=0)
    """Exclusive: later transactions are missing,"""
    until_seq: int = Field(ge=0)
    """up to this seq, inclusive."""
    table: str | None = None
    """``db.table`` if one table alone lacks them; None: all of the subscriber's tables."""
    reason: str
    accepted: AwareDatetime

    def covers(self, after_seq: int, until_seq: int, table: str | None = None) -> bool:
        """Whether the gap has all transactions in (after_seq, until_seq] of the table (None: of all tables)."""
        ours = self.table is None or self.table == table
        return ours and self.after_seq <= after_seq and until_seq <= self.until_seq


class UnknownColumns(BaseModel):
    """The columns of a table whose values only the server knows since a statement."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    seq: int = Field(ge=1, description="The seq of the statement.")
    names: tuple[str, ...] = Field(min_length=1, description="The source's names of the columns.")

    @classmethod
    def of(cls, error: BaseException) -> UnknownColumns | None:
        """Returns the columns that an error names; None if it names none, so that all columns have to be read."""
        if not isinstance(error, NeedsSnapshotError) or not error.columns:
            return None
        return cls(seq=error.seq, names=error.columns)


class ParkedTable(BaseModel):
    """A table that apply leaves out, so that the others go on. Its applied position may lie behind the cursor."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    due: Literal["snapshot", "retry", "hold"]
    """The way back: a snapshot, another try at the next run, or only a command of the operator."""
    reason: str
    """A sentence."""
    since: AwareDatetime
    keep_seq: int | None = Field(default=None, ge=0)
    """Retention keeps the transactions after this seq for the table; None: it needs none of those in the store."""
    loaded: str | None = None
    """Id of the snapshot that the table was loaded from since it was parked: only the changes after it are missing."""
    columns: UnknownColumns | None = None
    """The columns that the snapshot must read, beside the key; None: all of them."""

    @model_serializer(mode="wrap")
    def _without_absent(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_empty(_OF_SNAPSHOTS, write(self))


_OF_SNAPSHOTS = frozenset({"loaded", "columns"})
"""Keys of a parked table that are left out when they are empty."""

REMEMBERED = 16
"""The number of ended batches that are remembered with their tokens, so that a repeated ack or rollback does
nothing."""

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")


class _Part(BaseModel):
    # An unknown key would be lost by read-modify-write, so it is refused.
    model_config = ConfigDict(extra="forbid", defer_build=True)


def _without_empty(optional: frozenset[str], fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields without those of ``optional`` that are empty."""
    return {key: value for key, value in fields.items() if key not in optional or value not in (None, (), [])}


class EpochStart(_Part):
    """The beginning of an epoch after a failover."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    file: str
    pos: int = Field(ge=4)
    """The position in the new server's binlog."""
    after_seq: int = Field(ge=0)
    """The store's newest seq of the epoch before."""
    time: AwareDatetime
    overlap: str | None = None
    """The GTIDs of transactions after the position that the store had already; None if there are none."""
    overlap_file: str | None = None
    overlap_pos: int = 0
    """The end of the last one of them."""
    lost: str | None = None
    """GTIDs that the store has and the new server lacks, as an operator has accepted."""


class SourceIdentity(_Part):
    """The server and the part of its history that store and cursors belong to."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    server_uuid: str
    flavor: Literal["mysql", "mariadb"]
    base_name: str
    """``binlog`` for ``binlog.000012``."""
    epoch: int = Field(ge=0)
    start_gtid: str | None = None
    """The GTID set from which reading began; None if the source has none, or if it was not known."""
    address: str | None = None
    """``host:port`` of the server; None if capture has never moved to another one."""
    began: EpochStart | None = None
    """The failover that began the epoch; None if none did."""
    former: tuple[SourceIdentity, ...] = ()
    """The identities of earlier epochs, oldest first."""
    begins_seq: int | None = Field(default=None, ge=1)
    """Where the destination's first store begins, exclusive, for other servers (``server.ha``); None: not recorded."""

    @model_serializer(mode="wrap")
    def _without_absent(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_empty(_OF_FAILOVERS, write(self))

    def of_epoch(self, epoch: int) -> SourceIdentity:
        """Returns the identity of an epoch; this one for an epoch that is not known."""
        return next((identity for identity in self.former if identity.epoch == epoch), self)

    def of_seq(self, seq: int) -> SourceIdentity:
        """Returns the identity of the epoch that a seq belongs to."""
        return self.of_epoch(split_seq(seq).epoch)

    def failovers(self) -> tuple[tuple[SourceIdentity, EpochStart], ...]:
        """Returns the epochs that failovers have begun, oldest first."""
        return tuple((identity, identity.began) for identity in (*self.former, self) if identity.began is not None)


_OF_FAILOVERS = frozenset({"address", "began", "former", "begins_seq"})
"""Keys that are left out when they are empty."""


class HistoryMark(_Part):
    """A transaction by which a source is recognised if the store is lost: whether it still has the same history.

    It has the transaction's GTID, and the time when its binlog file was created. The other fields are shown to Canal's
    tools (:mod:`cdc.meta.zookeeper_nodes`); each is None if it is not known.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    seq: int = Field(ge=1)
    gtid: str | None = None
    file_created_s: int | None = Field(default=None, ge=0)
    """Seconds since 1970, from the file's format description; None if the batch had no bytes of that file."""
    commit_time_us: int | None = Field(default=None, ge=1)
    """Microseconds since 1970."""
    server_id: int | None = Field(default=None, ge=0)
    """The id of the server that executed the transaction first: not the source's if the source is a replica."""
    gtids: str | None = None
    """All GTIDs up to the transaction: MySQL's set, or MariaDB's position, which has the last GTID of each domain."""

    @model_serializer(mode="wrap")
    def _without_absent(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_empty(_FOR_CANAL, write(self))


_FOR_CANAL = frozenset({"commit_time_us", "server_id", "gtids"})
"""Keys of a mark that are left out when they are not known."""


class Outstanding(_Part):
    """A batch that was handed out, and is neither acked nor rolled back."""

    batch: int = Field(ge=1)
    first_seq: int
    last_seq: int
    after_seq: int
    """The subscriber's position before the batch, exclusive."""
    owner: str
    token: str
    expires: AwareDatetime
    replaced: list[str] = []
    """Former tokens, by which an error distinguishes a replaced token from a wrong one."""
    mark: HistoryMark | None = None
    """The mark of :attr:`last_seq`, which an ack gives to the subscription; None: there is nothing to recognise the
    transaction by."""

    @model_serializer(mode="wrap")
    def _without_absent(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without_empty(_OF_BATCHES, write(self))

    def copied(self) -> Outstanding:
        """Returns a copy that may be changed."""
        return self.model_copy(update={"replaced": list(self.replaced)})


_OF_BATCHES = frozenset({"mark"})
"""Keys of an outstanding batch that are left out when they are empty."""


class Finished(_Part):
    """The end of a batch: its outcome, and the token that ended it."""

    batch: int
    token: str
    outcome: Literal["acked", "rolled_back"]


class Subscription(_Part):
    """One reader of the store: its cursor, and its batches in order."""

    filter: str | None = None
    acked_seq: int = Field(default=0, ge=0)
    """The cursor: everything up to this seq is acked; 0 at the beginning."""
    next_batch: int = Field(default=1, ge=1)
    """The id of the next batch. Ids only grow, even after rollbacks."""
    outstanding: list[Outstanding] = []
    finished: list[Finished] = []
    since_seq: int | None = Field(default=None, ge=0)
    """Where the subscriber began, exclusive: it got every later transaction except those in its :attr:`gaps`. None: not
    known."""
    gaps: list[Gap] = []
    """Accepted gaps, in the order of acceptance."""
    tables: dict[str, RecordText] = {}
    """The lake's tables as of the last ack, by ``db.table``; see :meth:`table`."""
    parked: dict[str, ParkedTable] = {}
    """The tables that apply leaves out, by ``db.table``."""
    mark: HistoryMark | None = None
    """The mark of the last acked transaction. A filter may have moved the cursor further."""

    def copied(self) -> Subscription:
        """Returns a copy that may be changed."""
        return self.model_copy(
            update={
                "outstanding": [entry.copied() for entry in self.outstanding],
                "finished": list(self.finished),
                "gaps": list(self.gaps),
                "tables": dict(self.tables),
                "parked": dict(self.parked),
            }
        )

    def position(self) -> int:
        """Returns the seq up to which everything was acked, or came before the subscriber began."""
        return max(self.acked_seq, self.since_seq or 0)

    def table(self, name: str) -> TableRecord | None:
        """Returns the record of a table in the lake; None if no ack has written one."""
        text = self.tables.get(name)
        return None if text is None else TableRecord.of(text)

    def has_accepted(self, after_seq: int, until_seq: int, table: str | None = None) -> bool:
        """Whether one accepted gap covers these transactions of the table (None: of all tables)."""
        return any(gap.covers(after_seq, until_seq, table) for gap in self.gaps)

    @property
    def was_used(self) -> bool:
        """Whether a batch was ever handed out, as far as that is remembered."""
        return bool(self.outstanding or self.finished) or self.mark is not None

    def start_seq(self) -> int:
        """Returns where the next batch begins, exclusive: the end of the latest outstanding one, else the cursor."""
        return self.outstanding[-1].last_seq if self.outstanding else self.acked_seq

    def end_of_batches(self) -> int:
        """Returns the seq that a parked table must reach: the end of the latest outstanding batch, else the cursor."""
        return max(self.start_seq(), self.position())

    def find(self, batch: int) -> Outstanding | None:
        """Returns an outstanding batch by its id; None if there is none."""
        return next((o for o in self.outstanding if o.batch == batch), None)

    def ended(self, batch: int) -> Finished | None:
        """Returns the end of a batch; None if the meta does not remember it."""
        return next((f for f in reversed(self.finished) if f.batch == batch), None)

    def add(self, entry: Outstanding) -> None:
        """Appends a batch, and moves :attr:`next_batch` behind its id. Raises BatchError if id or range is not new."""
        latest = self.outstanding[-1].batch if self.outstanding else 0
        if entry.batch <= latest:
            raise BatchError(f"batch {entry.batch} is not newer than the outstanding batch {latest}")
        if entry.after_seq < self.start_seq():
            raise BatchError(f"batch {entry.batch} begins after {entry.after_seq}, before {self.start_seq()}")
        self.outstanding.append(entry)
        self.next_batch = max(self.next_batch, entry.batch + 1)

    def require_first(self, batch: int, doing: str) -> Outstanding:
        """Returns the batch if it is the first outstanding one.

        Raises BatchOrderError, naming both, if another one is first, and BatchError if the batch is not outstanding.
        """
        entry = self.require(batch)
        first = self.outstanding[0]
        if entry is not first:
            raise BatchOrderError(
                f"batch {batch} cannot be {doing}: batch {first.batch} is due first",
                remedy=f"Ack or roll back batch {first.batch} before it.",
            )
        return entry

    def require(self, batch: int) -> Outstanding:
        """Returns an outstanding batch. If it is not outstanding, raises BatchError with what is known about it."""
        entry = self.find(batch)
        if entry is not None:
            return entry
        done = self.ended(batch)
        if done is not None:
            what = f"batch {batch} was {done.outcome.replace('_', ' ')} already"
        else:
            what = f"batch {batch} is not outstanding"
        outstanding = ", ".join(str(o.batch) for o in self.outstanding)
        raise BatchError(what, remedy=f"Outstanding: {outstanding}." if outstanding else "No batch is outstanding.")

    def remove(self, batch: int) -> Outstanding:
        """Removes the first outstanding batch. Raises BatchOrderError for another one, because data would be lost."""
        entry = self.require_first(batch, "removed")
        del self.outstanding[0]
        return entry

    def remove_from(self, batch: int) -> list[Outstanding]:
        """Removes a batch and all later ones, and returns them. The cursor stays: their transactions come again."""
        index = self.outstanding.index(self.require(batch))
        removed = self.outstanding[index:]
        del self.outstanding[index:]
        return removed

    def remember(self, entry: Outstanding, outcome: Literal["acked", "rolled_back"]) -> None:
        """Records how a batch ended."""
        self.finished = [*self.finished, Finished(batch=entry.batch, token=entry.token, outcome=outcome)][-REMEMBERED:]


class State(_Part):
    """The whole meta of one destination."""

    destination: str | None = None
    source: SourceIdentity | None = None
    subscriptions: dict[str, Subscription] = {}

    def copied(self) -> State:
        """Returns a copy that may be changed. It costs far less than parsing the state of thousands of tables."""
        return self.model_copy(
            update={"subscriptions": {name: subscription.copied() for name, subscription in self.subscriptions.items()}}
        )

    def subscription(self, name: str) -> Subscription:
        """Returns a subscription. Raises UsageError if there is no such subscriber."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            names = ", ".join(sorted(self.subscriptions))
            raise UsageError(
                f"there is no subscriber {name!r}",
                remedy=f"Subscribers: {names}." if names else "The first `cdc apply` or `cdc batch get` adds one.",
            )
        return subscription


def check_name(name: str) -> str:
    """Returns a subscriber's name if it can also name a folder. Raises UsageError."""
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name!r} cannot be the name of a subscriber",
            remedy="Use up to 64 letters, digits, underscores, dashes and dots; the first must not be a dot.",
        )
    return name
