"""What is asked before a batch may be ended or handed out again."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cdc.batches.lease import iso_time, iso_time_us
from cdc.batches.manifest import Manifest
from cdc.errors import BatchError, DamagedError, StoreIncompleteError, TokenError
from cdc.meta.state import Outstanding, Subscription

if TYPE_CHECKING:
    from cdc.store.state import CaptureState


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
