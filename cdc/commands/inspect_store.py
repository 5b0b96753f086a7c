"""The part of ``cdc inspect`` that looks at a store as a whole: its checkpoint, its segments, what was given up."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from cdc.errors import DamagedError


def checkpoint_report(path: Path, data: bytes) -> dict[str, Any]:
    """What a checkpoint file says. Raises DamagedError, VersionError."""
    from cdc.store.formats.checkpoint import parse
    from cdc.units import iso_time_us

    note = parse(data, str(path))
    return {**asdict(note), "segment": note.segment or None, "time": iso_time_us(note.time_us)}


def look_at_store(store: Path, report: dict[str, Any]) -> DamagedError | None:
    """Verify every segment of a store, transaction by transaction. The first damage is returned; a writer may be at
    work meanwhile."""
    from cdc.store.formats import layout
    from cdc.store.formats.checkpoint import FILE_NAME, read_checkpoint, was_aborted
    from cdc.store.formats.damaged import read_damaged
    from cdc.store.formats.state import is_locked
    from cdc.store.recovery.salvage import examine

    layout.check(store)
    damage: DamagedError | None = None
    report["kind"] = "store"
    report["writer"] = is_locked(store)
    report["clean_stop"] = not was_aborted(store)
    try:
        note = read_checkpoint(store)
        report["checkpoint"] = None if note is None else checkpoint_report(store / FILE_NAME, note.render())
    except DamagedError as error:
        report["checkpoint"], damage = None, error
    report["given_up"] = [asdict(one) for one in read_damaged(store)]
    report["segments"] = []
    segments = layout.list_segments(store)
    for segment in segments:
        found = examine(segment, is_last=segment == segments[-1])
        losses = [
            {
                "offset": one.offset,
                "length": one.end - one.offset,
                "transactions": len(one.entries) or None,
                "first_seq": int(one.entries["seq"][0]) if len(one.entries) else None,
                "last_seq": int(one.entries["seq"][-1]) if len(one.entries) else None,
                "why": one.why,
            }
            for one in found.losses
        ]
        count = int((found.good["length"] > 0).sum())
        report["segments"].append(
            {"name": segment.name, "size_bytes": found.size, "transactions": count, "damaged": losses}
        )
        if losses and damage is None:
            first = found.losses[0]
            damage = DamagedError(
                f"{len(losses)} part(s) of this segment cannot be read, the first at byte {first.offset}: {first.why}",
                place=str(segment),
                remedy="Restore the file from a copy; or see docs/how-to/restoring.md for what else can be done.",
            )
    return damage


def accept(store: Path, name: str, report: dict[str, Any]) -> None:
    """Give up what is damaged in a segment. Raises UsageError, LeaseHeldError, StorageError."""
    from cdc.store.recovery.salvage import accept_loss

    report["kind"] = "store"
    report["accepted"] = [asdict(one) for one in accept_loss(store, name)]
