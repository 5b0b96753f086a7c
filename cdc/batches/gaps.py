"""Accepting a gap: a subscriber goes on although it will never get some transactions, and the meta remembers that."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cdc.errors import UsageError
from cdc.meta import Gap, Meta, TableRecord
from cdc.meta.state import check_name

if TYPE_CHECKING:
    from cdc.batches.service import BatchService


def accept_beginning(service: BatchService, subscriber: str) -> list[Gap]:
    """Let the subscriber go on at the store's beginning. Outstanding batches are rolled back: their transactions are
    not there any more.

    A cursor that does not lie before the beginning has no gap. Then, as long as no table was merged for this
    subscriber, the gap is the one that tables of an unknown past may have: everything before the subscriber began.
    Raises UsageError where nothing is missing, or that was accepted before.
    """
    begins_seq, removed_seq = service.beginning_seqs()
    with service.meta.change() as state:
        known = state.subscription(check_name(subscriber))
        position, since = known.position(), known.since_seq
        first = max(begins_seq, removed_seq)
        if position < first:
            gap = _gap(position, first, "the store begins behind the cursor")
            for entry in known.outstanding:
                known.remember(entry, "rolled_back")
            gone = [entry.batch for entry in known.outstanding]
            known.outstanding = []
            known.acked_seq = first
        elif since and not known.tables and not known.has_accepted(0, since):
            gap, gone = _gap(0, since, "nothing proves what tables had before the subscriber began"), []
        else:
            raise UsageError(
                f"{subscriber} lacks nothing that was not accepted before: its cursor stands at {position}, and the "
                f"store begins at {first}",
                remedy="For a Delta table that has lost changes, name it with --table.",
            )
        known.gaps = [*known.gaps, gap]
    service.manifests.remove(subscriber, gone)
    return [gap]


def accept_tables(meta: Meta, subscriber: str, tables: Mapping[str, TableRecord | None]) -> list[Gap]:
    """Take Delta tables as they are now, whatever they have lost; None: the table is gone, and is made anew when its
    next changes come. Each lacks an unknown part of the changes up to the cursor."""
    gaps = []
    with meta.change() as state:
        known = state.subscription(check_name(subscriber))
        for name, record in tables.items():
            before = known.table(name)
            if record is not None and before == record:
                raise UsageError(
                    f"the Delta table of {name} is as it was at the last ack", remedy="Nothing of it is to be accepted."
                )
            if record is None:
                known.tables.pop(name, None)
                reason = "the Delta table is gone"
            else:
                known.tables[name] = record.text
                reason = "the Delta table is taken as it is"
            gaps.append(_gap(0, known.position(), reason, name))
        known.gaps = [*known.gaps, *gaps]
    return gaps


def _gap(after_seq: int, until_seq: int, reason: str, table: str | None = None) -> Gap:
    return Gap(after_seq=after_seq, until_seq=until_seq, table=table, reason=reason, accepted=datetime.now(UTC))
