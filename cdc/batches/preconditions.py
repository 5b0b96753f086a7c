"""What is asked before a batch may be ended or handed out again."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from cdc.batches.manifest import Manifest
from cdc.errors import BatchError, CutOffError, DamagedError, StorageError, StoreIncompleteError, TokenError
from cdc.meta.state import Outstanding, State, Subscription
from cdc.positions import format_seq
from cdc.units import iso_time, iso_time_us

if TYPE_CHECKING:
    from cdc.store.formats.beginning import Beginning
    from cdc.store.formats.state import CaptureState


class StoreState(Protocol):
    """What is asked of a store before it is read."""

    def exists(self) -> bool: ...

    def beginning(self) -> Beginning | None: ...

    def require_kept(self, after_seq: int) -> None: ...


def require_token(entry: Outstanding, token: str, now: datetime) -> None:
    """Raises TokenError, telling a wrong, a replaced and an expired one apart."""
    if entry.token != token:
        if token in entry.replaced:
            what = f"was replaced: the batch was handed out again, to {entry.owner}, until {iso_time(entry.expires)}"
        else:
            what = "is wrong"
        raise TokenError(
            f"the token given for batch {entry.batch} {what}", remedy="Get the batch again for a valid token."
        )
    if entry.expires <= now:
        raise TokenError(
            f"the lease of batch {entry.batch} expired at {iso_time(entry.expires)}",
            remedy="Get the batch again for a valid token.",
        )


def cut(known: Subscription, batch: int) -> list[int]:
    """Take a batch and all later ones out of the outstanding ones; returns their ids."""
    gone = known.cut(batch)
    for entry in gone:
        known.remember(entry, "rolled_back")
    return [entry.batch for entry in gone]


def done_before(known: Subscription, batch: int, token: str, outcome: Literal["acked", "rolled_back"]) -> bool:
    """Is this a repetition of what was done? Raises TokenError and BatchError where it contradicts that."""
    ended = None if known.find(batch) else known.ended(batch)
    if ended is None:
        return False
    was = ended.outcome.replace("_", " ")
    if ended.token != token:
        raise TokenError(f"batch {batch} was {was} already, with another token")
    if ended.outcome != outcome:
        raise BatchError(
            f"batch {batch} was {was} already", remedy="Its transactions, if any are due, come in a new one."
        )
    return True


def require_same(manifest: Manifest, entry: Outstanding, path: Path) -> None:
    """Is this the manifest of that batch? Raises DamagedError."""
    said = (manifest.batch, manifest.after_seq, manifest.first_seq, manifest.last_seq)
    if said != (entry.batch, entry.after_seq, entry.first_seq, entry.last_seq):
        raise DamagedError(f"belongs to another batch than {entry.batch}, or to other transactions", place=str(path))


def require_store(
    path: Path, name: str, state: State, known: Subscription | None, reader: StoreState, *, staged: bool = False
) -> bool:
    """Whether there is a store to read; False where this destination has never had one. ``staged``: outstanding batches
    do not need it.

    Raises StorageError where the meta knows of a store that is not there or is empty, and CutOffError where the store
    begins behind the subscriber's cursor.
    """
    position = 0 if known is None else known.position()
    if not reader.exists():
        cursors = {subscriber: s.position() for subscriber, s in state.subscriptions.items()}
        if state.source is None and not any(cursors.values()):
            return False
        furthest = max(cursors.values(), default=0)
        reached = f"a cursor stands at {furthest} ({format_seq(furthest)})" if furthest else "its source is bound"
        raise StorageError(
            f"there is no store in this folder, but the meta of {name} knows of one: {reached}",
            place=str(path),
            remedy=f"Mount its disk, run on the machine that has it, or correct store.path. If the store is lost for "
            f"good, start `cdc capture {name}`, which begins a new one.",
        )
    beginning = reader.beginning()
    if beginning is None:
        if position:
            raise StorageError(
                f"the store is empty, but the cursor stands at {position} ({format_seq(position)})",
                place=str(path),
                remedy=f"Put the store back; or, if it is lost for good, start `cdc capture {name}`, which begins to "
                "read anew.",
            )
        return True
    if position and beginning.seq > position and not (staged and known is not None and known.outstanding):
        reader.require_kept(position)  # if retention removed it, its error says more
        raise cut_off(path, name, beginning, position)
    return True


def cut_off(path: Path, name: str, beginning: Beginning, position: int) -> CutOffError:
    """The error for a cursor that lies before the store's beginning."""
    when = f" on {iso_time_us(beginning.time_us)}" if beginning.time_us else ""
    return CutOffError(
        f"the store begins at {beginning.seq} ({beginning.file}:{beginning.pos}, {beginning.reason}{when}), behind the "
        f"cursor {position} ({format_seq(position)}): what was committed between the two is not in it",
        place=str(path),
        remedy="Put back the store that has it; or set source.start to a position that is not behind the cursor, "
        f"remove this store and start `cdc capture {name}`; or start a new destination; or, if the tables may lack "
        f"these changes, accept the gap with `cdc batch accept-gap {name}`.",
    )


def incomplete(name: str, until: datetime, complete_us: int, capture: CaptureState | None) -> StoreIncompleteError:
    """The error for a store that is not known to hold all that was committed before ``until``, and what to do."""
    known = f"complete up to {iso_time_us(complete_us)}" if complete_us else "not known to be complete at all"
    if capture is None or not capture.running:
        remedy = f"Capture is not running: start `cdc capture {name}`, then try again."
    elif not capture.connected:
        remedy = "Capture has no connection to the source: try again when it has, or look at its log."
    else:
        remedy = "Capture is behind, or that moment is yet to come by the source's clock: try again, or wait longer."
    return StoreIncompleteError(
        f"what was committed before {iso_time(until)} may not all be here: the store is {known}",
        place=name,
        remedy=f"Nothing later was taken. {remedy}",
    )
