"""The manifest of a batch: what a Spark job needs to know, as one JSON document.

On disk it holds neither token nor expiry: they belong to who got the batch, see :class:`cdc.batches.Lease`.
Format: ``docs/formats/manifest.md``; its JSON Schema is made from :class:`Manifest`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from cdc.positions import split_seq
from cdc.units import iso_time_us

if TYPE_CHECKING:
    from cdc.meta import Gap
    from cdc.store.formats.beginning import Beginning
    from cdc.store.reader.selection import Place, Selection


FORMAT: Final = "towpath-manifest"
VERSION = 1


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class ByteRange(_Part):
    """Whole transactions, one after another, in one segment."""

    path: str = Field(
        description="Absolute path of the segment, or the URI of a staged copy; its index lies beside it as "
        "`path + '.index'`."
    )
    offset: int = Field(ge=0, description="Where the range begins, in bytes from the segment's start.")
    length: int = Field(ge=0, description="The range's bytes.")
    sha256: str | None = Field(
        default=None, description="Of the whole staged file, in hexadecimal, as in its name; null where it is no copy."
    )
    table_bits: tuple[int, ...] | None = Field(
        default=None,
        description="Of a staged file: the bits of the tables that its transactions have rows of, see the manifest's "
        "`table_bits`; null where that is not known.",
    )


class Position(_Part):
    """A transaction's end in the source's own words."""

    file: str
    pos: int
    gtid: str | None = None
    time: str | None = Field(default=None, description="Commit time, ISO 8601, UTC.")
    file_created_s: int | None = Field(
        default=None, description="When the source created the file, seconds since 1970; null: not recorded."
    )


class Positions(_Part):
    """Where the batch's first and last transaction end in the source's binlog."""

    first: Position
    last: Position


class TableResult(_Part):
    """What a merge did to one table: rows by kind, and the Delta version that it made."""

    table: str = Field(description="`db.table`.")
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    skipped: int = Field(default=0, description="Changes that the table held already.")
    null_dates: int = Field(default=0, description="Zero and impossible dates in the changes that became null.")
    delta_version: int | None = Field(
        default=None, description="Version of the table's commit; null when there was none."
    )
    seconds: float = 0.0
    delta_id: str | None = Field(default=None, description="The table's id in Delta's metadata.")
    applied_seq: int | None = Field(default=None, description="The table's applied position after the merge.")
    generation: int = Field(default=0, description="The table's generation; see the table properties.")


class StoreBeginning(_Part):
    """Where and why the store begins."""

    seq: int = Field(ge=0, description="The store holds every transaction behind this one that was not removed.")
    file: str
    pos: int
    gtid: str | None = Field(default=None, description="The source's GTID set there, where it could tell.")
    time: str | None = Field(default=None, description="When capture began to read, ISO 8601, UTC; null: not known.")
    reason: str = Field(description="`first start`, `started again` or `not recorded`.")


class AcceptedGap(_Part):
    """Transactions that the subscriber never got, and whose loss an operator has accepted."""

    after_seq: int = Field(ge=0, description="Exclusive.")
    until_seq: int = Field(ge=0, description="Inclusive.")
    table: str | None = Field(default=None, description="`db.table` where one table lacks them; null: all tables.")
    reason: str
    accepted: AwareDatetime


class Acked(_Part):
    """Written by the ack."""

    time: AwareDatetime
    tables: tuple[TableResult, ...] = Field(default=(), description="What became of the tables of this batch.")
    versions: dict[str, int] = Field(
        default={},
        description="Delta version by `db.table` after this batch, of every table known by then: all tables as of one "
        "transaction.",
    )


class Manifest(_Part):
    """A batch. `seq` bounds are inclusive; transactions between them that are not ours are not in the ranges."""

    format: Literal["towpath-manifest"] = FORMAT
    version: int = Field(default=VERSION, ge=1, description="Version of this format.")
    destination: str
    subscriber: str
    batch: int = Field(ge=1, description="Grows within a subscriber; never used twice.")
    epoch: int = Field(ge=0, description="Epoch of the seqs; rises when the source's history starts anew.")
    server_uuid: str
    after_seq: int = Field(
        ge=0, description="The subscriber's position before the batch, exclusive; 0 at the beginning."
    )
    first_seq: int
    last_seq: int
    transactions: int
    row_events: int
    bytes: int
    ddl: bool = Field(
        description="Each transaction of the batch is a DDL statement: either one, or several of which none changes "
        "rows or columns that were there before."
    )
    tables: tuple[str, ...] = Field(description="`db.table` of each table with rows in the batch, or named by its DDL.")
    table_bits: dict[str, int] | None = Field(
        default=None,
        description="For each of `tables` its bit (0 to 63) in the table masks of the index entries: only transactions "
        "with that bit can have rows of the table. Null in manifests of older versions: any transaction may.",
    )
    table_filter: str | None = Field(
        default=None,
        description="The subscriber's filter, a regular expression over `db.table`, matched whole; null: all tables. "
        "The ranges may hold changes of others, too.",
    )
    schema_path: str | None = Field(
        description="The `schemas/<seq>.json` in force after the batch, absolute; a URI where it is staged."
    )
    ranges: tuple[ByteRange, ...]
    positions: Positions
    store_begins: StoreBeginning | None = Field(
        default=None, description="Where the store began when the batch was made; null: not recorded."
    )
    gaps: tuple[AcceptedGap, ...] = Field(default=(), description="Gaps of this subscriber that were accepted by then.")
    acked: Acked | None = Field(default=None, description="Null until the batch is acked.")

    def table_mask(self, table: str) -> int | None:
        """The table's bit as a mask; None where the manifest does not tell it."""
        bit = None if self.table_bits is None else self.table_bits.get(table)
        return None if bit is None else 1 << bit

    def wants(self, table: str) -> bool:
        """Does the subscriber's filter let this ``db.table`` through?"""
        if self.table_filter is None:
            return True
        from cdc.store.reader.filters import TableFilter

        return TableFilter(self.table_filter).matches(table)


@dataclass(frozen=True)
class Draft:
    """A batch to be."""

    destination: str
    subscriber: str
    batch: int
    after_seq: int
    chosen: Selection
    table_filter: str | None = None
    beginning: Beginning | None = None
    gaps: tuple[Gap, ...] = ()

    def manifest(self, server_uuid: str, ranges: tuple[ByteRange, ...], schema_path: str | None) -> Manifest:
        """``ranges`` and ``schema_path`` as who merges finds them: in the store, or staged."""
        chosen = self.chosen
        return Manifest(
            destination=self.destination,
            subscriber=self.subscriber,
            batch=self.batch,
            epoch=split_seq(chosen.last_seq).epoch,
            server_uuid=server_uuid,
            after_seq=self.after_seq,
            first_seq=chosen.first_seq,
            last_seq=chosen.last_seq,
            transactions=chosen.transactions,
            row_events=chosen.row_events,
            bytes=chosen.bytes,
            ddl=chosen.ddl,
            tables=tuple(chosen.tables),
            table_bits=dict(chosen.table_bits) or None,
            table_filter=self.table_filter,
            schema_path=schema_path,
            ranges=ranges,
            positions=Positions(first=_position(chosen.first), last=_position(chosen.last, chosen.file_created_s)),
            store_begins=None if self.beginning is None else _beginning(self.beginning),
            gaps=tuple(AcceptedGap.model_validate(gap.model_dump()) for gap in self.gaps),
        )


def _beginning(found: Beginning) -> StoreBeginning:
    time = iso_time_us(found.time_us) if found.time_us > 0 else None
    return StoreBeginning(
        seq=found.seq, file=found.file, pos=found.pos, gtid=found.gtid, time=time, reason=found.reason
    )


def _position(place: Place, file_created_s: int | None = None) -> Position:
    time = iso_time_us(place.commit_time_us) if place.commit_time_us > 0 else None
    return Position(file=place.file, pos=place.pos, gtid=place.gtid, time=time, file_created_s=file_created_s)
