"""From what a store selected to the manifest of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdc.batches.lease import iso_time_us
from cdc.batches.manifest import AcceptedGap, ByteRange, Manifest, Position, Positions, StoreBeginning
from cdc.positions import CommitPosition, split_seq

if TYPE_CHECKING:
    from cdc.meta import Gap
    from cdc.store.formats.state import Beginning
    from cdc.store.reader.batch_builder import Selection


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


def _position(end: CommitPosition, file_created_s: int | None = None) -> Position:
    time = iso_time_us(end.commit_time_us) if end.commit_time_us > 0 else None
    return Position(
        file=end.position.file, pos=end.position.pos, gtid=end.gtid, time=time, file_created_s=file_created_s
    )
