"""Preconditions of the batch protocol: what must hold before a batch is handed out, acked or rolled back."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from cdc.base.errors import (
    BatchError,
    CutOffError,
    DamagedError,
    LeaseHeldError,
    StorageError,
    StoreIncompleteError,
    TokenError,
)
from cdc.base.units import iso_time, iso_time_us
from cdc.batches.manifest import ByteRange, Manifest
from cdc.binlog.positions import format_seq
from cdc.meta import Outstanding, State, Subscription

if TYPE_CHECKING:
    from cdc.store.formats.state import Beginning, CaptureState
    from cdc.store.reader.batch_builder import Range

_GET_AGAIN = "Get the batch again for a valid token."


class StoreState(Protocol):
    """The part of :class:`cdc.store.reader.reader.StoreReader` that tells whether a store can be read."""

    def exists(self) -> bool: ...

    def beginning(self) -> Beginning | None: ...

    def removed_seq(self) -> int: ...

    def require_kept(self, after_seq: int) -> None: ...


# of a batch -------------------------------------------------------------------------------------------------------


def require_token(entry: Outstanding, token: str, now: datetime) -> None:
    """Checks a token against an outstanding batch. Raises TokenError that says whether it is wrong, replaced or
    expired."""
    if entry.token != token:
        if token in entry.replaced:
            what = f"was replaced: the batch was handed out again, to {entry.owner}, until {iso_time(entry.expires)}"
        else:
            what = "is wrong"
        raise TokenError(f"the token given for batch {entry.batch} {what}", remedy=_GET_AGAIN)
    if entry.expires <= now:
        raise TokenError(f"the lease of batch {entry.batch} expired at {iso_time(entry.expires)}", remedy=_GET_AGAIN)


def is_repeated(subscription: Subscription, batch: int, token: str, outcome: Literal["acked", "rolled_back"]) -> bool:
    """Whether this ack or rollback repeats one that was done, with the same token.

    Raises TokenError if the batch ended with another token, BatchError if it ended in the other way.
    """
    ended = None if subscription.find(batch) else subscription.ended(batch)
    if ended is None:
        return False
    was = ended.outcome.replace("_", " ")
    if ended.token != token:
        raise TokenError(f"batch {batch} was {was} already, with another token")
    if ended.outcome != outcome:
        raise BatchError(
            f"batch {batch} was {was} already", remedy="If its transactions are due again, they come in a new batch."
        )
    return True


def require_last_acked(subscription: Subscription, batch: int, token: str) -> None:
    """Checks that nothing was handed out since this batch was acked with this token. Raises TokenError."""
    last = subscription.finished[-1] if subscription.finished else None
    if subscription.outstanding or last is None or (last.batch, last.token, last.outcome) != (batch, token, "acked"):
        raise TokenError(
            f"another process has taken the batches after batch {batch}",
            remedy="This process ends here; batches that it acked stay acked.",
        )


def require_manifest_of(entry: Outstanding, manifest: Manifest, path: Path) -> None:
    """Checks that a manifest belongs to an outstanding batch. Raises DamagedError."""
    recorded = (manifest.batch, manifest.after_seq, manifest.first_seq, manifest.last_seq)
    if recorded != (entry.batch, entry.after_seq, entry.first_seq, entry.last_seq):
        raise DamagedError(
            f"belongs to another batch than {entry.batch}, or to other transactions of it", place=str(path)
        )


def are_same_bytes(ranges: Sequence[ByteRange], selected: Sequence[Range]) -> bool:
    """Whether these are the same bytes of the same files; the paths may differ."""
    return len(ranges) == len(selected) and all(
        (old.offset, old.length) == (new.offset, new.length) and _is_same_file(Path(old.path), new.path)
        for old, new in zip(ranges, selected, strict=True)
    )


def _is_same_file(old: Path, new: Path) -> bool:
    try:
        return old == new or old.samefile(new)
    except OSError:  # the old one is gone
        return False


# of a store -------------------------------------------------------------------------------------------------------


def require_store(
    path: Path, name: str, state: State, subscription: Subscription | None, reader: StoreState, *, staged: bool = False
) -> bool:
    """Whether there is a store to read; False if this destination has never had one.

    ``staged``: outstanding batches are staged, and do not need the store. Raises StorageError if the meta knows of a
    store that is missing or empty, and CutOffError if the store begins behind the subscriber's cursor.
    """
    position = 0 if subscription is None else subscription.position()
    if not reader.exists():
        cursors = {subscriber: s.position() for subscriber, s in state.subscriptions.items()}
        if state.source is None and not any(cursors.values()):
            return False
        furthest = max(cursors.values(), default=0)
        reached = f"a cursor is at {furthest} ({format_seq(furthest)})" if furthest else "its source is bound"
        raise StorageError(
            f"this folder has no store, but the meta of {name} knows of one: {reached}",
            place=str(path),
            remedy=f"Mount its disk, run on the machine that has it, or correct store.path. If the store is lost for "
            f"good, start `cdc capture {name}`, which begins a new one.",
        )
    beginning = reader.beginning()
    if beginning is None:
        if position:
            raise StorageError(
                f"the store is empty, but the cursor is at {position} ({format_seq(position)})",
                place=str(path),
                remedy=f"Put the store back. If it is lost for good, start `cdc capture {name}`, which begins to read "
                "again.",
            )
        return True
    if position and beginning.seq > position and not (staged and subscription is not None and subscription.outstanding):
        reader.require_kept(position)  # if retention removed it, its error says more
        raise cut_off_error(path, name, beginning, position)
    return True


def first_seq(name: str, place: str, reader: StoreState) -> int:
    """Returns the seq behind which a store has all transactions. Raises StorageError if there is no store, or an empty
    one."""
    beginning = reader.beginning() if reader.exists() else None
    if beginning is None:
        raise StorageError(
            "there is no store, or an empty one",
            place=place,
            remedy=f"Start `cdc capture {name}` first: the gap ends where the store begins.",
        )
    return max(beginning.seq, reader.removed_seq())


def cut_off_error(path: Path, name: str, beginning: Beginning, position: int) -> CutOffError:
    """Returns the error for a cursor before the store's beginning."""
    when = f" on {iso_time_us(beginning.time_us)}" if beginning.time_us else ""
    return CutOffError(
        f"the store begins at {beginning.seq} ({beginning.file}:{beginning.pos}, {beginning.reason}{when}), behind the "
        f"cursor {position} ({format_seq(position)}): transactions committed between the two are not in it",
        place=str(path),
        remedy="Put back the store that has them; or set source.start to a position that is not behind the cursor, "
        f"remove this store and start `cdc capture {name}`; or start a new destination; or, if the tables may lack "
        f"these changes, accept the gap with `cdc batch accept-gap {name}`.",
    )


def held_error(name: str, subscriber: str, entry: Outstanding) -> LeaseHeldError:
    """Returns the error for a batch that another owner holds."""
    return LeaseHeldError(
        f"batch {entry.batch} is held by {entry.owner} until {iso_time(entry.expires)}",
        place=f"{name}, subscriber {subscriber}",
        remedy="Wait until it is acked or rolled back there, or until its lease has expired.",
    )


def incomplete_error(
    name: str, until: datetime, complete_us: int, capture: CaptureState | None
) -> StoreIncompleteError:
    """Returns the error for a store that may lack transactions committed before ``until``."""
    reached = f"complete up to {iso_time_us(complete_us)}" if complete_us else "not known to be complete at all"
    if capture is None or not capture.running:
        remedy = f"Capture is not running: start `cdc capture {name}`, then try again."
    elif not capture.connected:
        remedy = "Capture has no connection to the source: try again when it has, or look at its log."
    else:
        remedy = "Capture is behind, or the source's clock has not reached that time: try again, or wait longer."
    return StoreIncompleteError(
        f"transactions committed before {iso_time(until)} may be missing: the store is {reached}",
        place=name,
        remedy=f"No later transaction was taken. {remedy}",
    )
