"""The manifest of a batch: one JSON document with everything that a merge needs, and how it is built.

On disk it holds neither token nor expiry: they belong to the lease (:class:`cdc.batches.Lease`). Format:
``docs/formats/manifest.md``; its JSON Schema is generated from :class:`Manifest`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from cdc.base.run_identity import RunIdentity, current_run
from cdc.base.units import iso_time_us
from cdc.binlog.positions import split_seq
from cdc.binlog.sql.schemas import Schemas
from cdc.meta.state import UnknownColumns

if TYPE_CHECKING:
    from cdc.binlog.positions import CommitPosition
    from cdc.meta import Gap, Subscription
    from cdc.store.formats.state import Beginning
    from cdc.store.reader.batch_builder import Selection


FORMAT: Final = "towpath-manifest"
VERSION = 2
"""Version 2 has ``mixed``. Manifests of batches that are not mixed have version 1."""


class _Part(BaseModel):
    """A part of the document. Unknown keys are ignored, because newer versions may add some."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ByteRange(_Part):
    """Whole, consecutive transactions in one segment."""

    path: str = Field(
        description="Absolute path of the segment, or the URI of a staged copy. Its index is beside it: `path + "
        "'.index'`."
    )
    offset: int = Field(ge=0, description="Start of the range, in bytes from the start of the segment.")
    length: int = Field(ge=0, description="Length of the range, in bytes.")
    sha256: str | None = Field(
        default=None,
        description="SHA-256 of the whole staged file, in hexadecimal, as in its name; null if it is not a copy.",
    )
    table_bits: tuple[int, ...] | None = Field(
        default=None,
        description="For a staged file: the bits of the tables whose rows it has (see `table_bits` of the "
        "manifest); null if "
        "that is not known.",
    )

    def may_hold(self, table_mask: int) -> bool:
        """Whether the range can have transactions with one of the bits of ``table_mask``, as far as is known."""
        return self.table_bits is None or any(table_mask >> bit & 1 for bit in self.table_bits)


class Position(_Part):
    """The end of a transaction in the source's binlog: a commit position as JSON."""

    file: str
    pos: int
    gtid: str | None = None
    time: str | None = Field(default=None, description="Commit time, ISO 8601, UTC.")
    file_created_s: int | None = Field(
        default=None, description="When the source created the file, in seconds since 1970; null if it is not recorded."
    )


class Positions(_Part):
    """The ends of the batch's first and last transaction in the source's binlog."""

    first: Position
    last: Position


class Parking(_Part):
    """A table that the merge left out, and that apply leaves out from then on. See the `parked` tables of the meta."""

    due: Literal["snapshot", "retry"] = Field(
        description="What brings the table back: a snapshot, or another try at the next run."
    )
    reason: str = Field(description="A sentence.")
    keep_seq: int | None = Field(
        default=None,
        description="Retention keeps the transactions after this seq for the table; null: it needs none of those in "
        "the store.",
    )
    columns: UnknownColumns | None = Field(
        default=None, description="The columns that the snapshot must read, beside the key; null: all of them."
    )


class TableResult(_Part):
    """The result of a merge for one table: numbers of rows, and the Delta version that it wrote."""

    table: str = Field(description="`db.table`.")
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    skipped: int = Field(default=0, description="Changes that the table already had.")
    files: int = Field(default=0, description="Data files that the merge's commit added; 0 if it does not tell.")
    null_dates: int = Field(default=0, description="Zero and impossible dates in the changes; they became null.")
    delta_version: int | None = Field(
        default=None, description="Version of the table's commit; null if there was none."
    )
    seconds: float = 0.0
    phases: dict[str, float] = Field(
        default={},
        description="Seconds by phase: `read`, `plan`, `merge` and `commit` make up `seconds`; `start` is the time "
        "that the table waited for Spark before. Phases that took no millisecond are absent.",
    )
    delta_id: str | None = Field(default=None, description="The table's id in Delta's metadata.")
    applied_seq: int | None = Field(default=None, description="The table's applied position after the merge.")
    generation: int = Field(default=0, description="The table's generation; see the table properties.")
    parked: Parking | None = Field(default=None, description="Null unless the table was left out.")
    released: bool = Field(
        default=False,
        description="Whether the table waited for its first snapshot, and waits no longer, because the source has "
        "dropped it or given it another name.",
    )
    idle: bool = Field(
        default=False,
        description="Whether the batch has no changes of the table. Others have written to it, nothing was taken back, "
        "and its version is recorded as the one from which the next proof begins.",
    )


class StoreBeginning(_Part):
    """The beginning of the store, and its reason."""

    seq: int = Field(
        ge=0, description="The store holds every later transaction, except those that retention has removed."
    )
    file: str
    pos: int
    gtid: str | None = Field(default=None, description="The source's GTID set there; null if it was not known.")
    time: str | None = Field(
        default=None, description="When capture began to read, ISO 8601, UTC; null if that is not known."
    )
    reason: str = Field(description="`first start`, `started again` or `not recorded`.")


class AcceptedGap(_Part):
    """Transactions that the subscriber never got, and whose loss an operator has accepted."""

    after_seq: int = Field(ge=0, description="Exclusive.")
    until_seq: int = Field(ge=0, description="Inclusive.")
    table: str | None = Field(default=None, description="`db.table` if one table lacks them; null if all tables do.")
    reason: str
    accepted: AwareDatetime


class Acked(_Part):
    """The part that the ack adds."""

    time: AwareDatetime
    run: RunIdentity | None = Field(
        default=None, description="Who acked the batch; null if that is not known, as in manifests of older versions."
    )
    tables: tuple[TableResult, ...] = Field(
        default=(), description="The results of the merge, one for each table of the batch."
    )
    versions: dict[str, int] = Field(
        default={},
        description="Delta version after this batch of every table known by then, by `db.table`: all tables as of one "
        "transaction.",
    )


class Manifest(_Part):
    """A batch. `first_seq` and `last_seq` are inclusive; transactions without captured tables are not in the ranges."""

    format: Literal["towpath-manifest"] = FORMAT
    version: int = Field(default=1, ge=1, description="Version of this format: 2 if `mixed`, else 1.")
    destination: str
    subscriber: str
    batch: int = Field(
        ge=0,
        description="Increases within a subscriber; never used twice. 0 in the changes that a job reads for one table, "
        "which nobody leases.",
    )
    epoch: int = Field(ge=0, description="Epoch of the seqs; increases when the source's history starts again.")
    server_uuid: str
    after_seq: int = Field(
        ge=0, description="The subscriber's position before the batch, exclusive; 0 at the beginning of the store."
    )
    first_seq: int
    last_seq: int
    transactions: int
    row_events: int
    bytes: int
    ddl: bool = Field(
        description="Whether the batch has DDL statements. Unless it is `mixed`, it has nothing else: a single one, or "
        "several of which none changes existing rows or columns."
    )
    mixed: bool = Field(
        default=False,
        description="Whether DDL statements of single tables share the batch with rows, or with statements that change "
        "other tables. A statement that changes a table then comes before all rows of the table in the batch.",
    )
    tables: tuple[str, ...] = Field(
        description="`db.table` of each table that has rows in the batch, or that its DDL names."
    )
    table_bits: dict[str, int] | None = Field(
        default=None,
        description="For each of `tables` its bit (0 to 63) in the table masks of the index entries: only transactions "
        "with that bit can have rows of the table. Null in manifests of older versions, where any transaction may.",
    )
    table_filter: str | None = Field(
        default=None,
        description="The subscriber's filter, a regular expression that must match the whole `db.table`; null: "
        "all tables. "
        "The ranges may also hold changes of other tables.",
    )
    schema_path: str | None = Field(
        description="Absolute path of the `schemas/<seq>.json` in force after the batch; a URI if it is staged."
    )
    ranges: tuple[ByteRange, ...]
    positions: Positions
    gtids: str | None = Field(
        default=None,
        description="All GTIDs of the source up to the end of the batch: MySQL's set, or the last number of each "
        "domain and server of MariaDB; null if they are not known.",
    )
    store_begins: StoreBeginning | None = Field(
        default=None, description="The beginning of the store when the batch was made; null if it is not recorded."
    )
    gaps: tuple[AcceptedGap, ...] = Field(
        default=(), description="Gaps of this subscriber that were accepted when the batch was made."
    )
    run: RunIdentity | None = Field(
        default=None,
        description="Who got the batch first; null if that is not known, as in manifests of older versions. Who merged "
        "it is in the user metadata of the tables' commits.",
    )
    acked: Acked | None = Field(default=None, description="Null until the batch is acked.")

    def table_mask(self, table: str) -> int | None:
        """Returns the table's bit as a mask; None if the manifest does not have it."""
        bit = None if self.table_bits is None else self.table_bits.get(table)
        return None if bit is None else 1 << bit

    def wants(self, table: str) -> bool:
        """Whether the subscriber's filter matches this ``db.table``."""
        if self.table_filter is None:
            return True
        from cdc.store.reader.batch_builder import TableFilter  # loads NumPy

        return TableFilter(self.table_filter).matches(table)


def schemas_of(manifest: Manifest) -> Schemas | None:
    """Returns the table definitions that a manifest names. Raises DamagedError, StorageError."""
    from cdc.store.reader.staged import local_copy

    if manifest.schema_path is None:
        return None
    with local_copy(manifest.schema_path) as path:
        return Schemas.load(path)


@dataclass(frozen=True)
class BatchFiles:
    """The files that a merge reads: in the store, or staged copies."""

    ranges: tuple[ByteRange, ...]
    schema_path: str | None


def build_manifest(
    selection: Selection,
    files: BatchFiles,
    *,
    destination: str,
    subscriber: str,
    subscription: Subscription,
    gaps: Iterable[Gap],
    server_uuid: str,
    beginning: Beginning | None,
) -> Manifest:
    """Builds the manifest of the subscriber's next batch from what the store selected.

    ``subscription`` is the subscription as it was at the selection, ``beginning`` where the store begins.
    """
    return Manifest(
        destination=destination,
        subscriber=subscriber,
        batch=subscription.next_batch,
        epoch=split_seq(selection.last_seq).epoch,
        server_uuid=server_uuid,
        after_seq=subscription.start_seq(),
        first_seq=selection.first_seq,
        last_seq=selection.last_seq,
        transactions=selection.transactions,
        row_events=selection.row_events,
        bytes=selection.bytes,
        version=2 if selection.mixed else 1,
        ddl=selection.ddl,
        mixed=selection.mixed,
        tables=tuple(selection.tables),
        table_bits=dict(selection.table_bits) or None,
        table_filter=subscription.filter,
        schema_path=files.schema_path,
        ranges=files.ranges,
        positions=Positions(first=_position(selection.first), last=_position(selection.last, selection.file_created_s)),
        store_begins=None if beginning is None else _beginning(beginning),
        gaps=tuple(AcceptedGap.model_validate(gap.model_dump()) for gap in gaps),
        run=current_run(),
    )


def _beginning(beginning: Beginning) -> StoreBeginning:
    time = iso_time_us(beginning.time_us) if beginning.time_us > 0 else None
    return StoreBeginning(
        seq=beginning.seq,
        file=beginning.file,
        pos=beginning.pos,
        gtid=beginning.gtid,
        time=time,
        reason=beginning.reason,
    )


def _position(end: CommitPosition, file_created_s: int | None = None) -> Position:
    time = iso_time_us(end.commit_time_us) if end.commit_time_us > 0 else None
    return Position(
        file=end.position.file, pos=end.position.pos, gtid=end.gtid, time=time, file_created_s=file_created_s
    )
