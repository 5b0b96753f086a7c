"""The proof of the lake before a merge: no table lies behind what the meta recorded at the last ack.

A Delta table that was removed, replaced or restored looks like a new one, or like one that is further on than its rows
are: merging into it would lose changes without a word. Commits that lose nothing pass: OPTIMIZE, VACUUM, statements of
others, foreign properties; and a lake that is ahead of the meta, after a kill between the commit and the ack.
``docs/how-to/restoring.md`` has the table of what is refused.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cdc.errors import TargetError
from cdc.log import get_logger
from cdc.positions import format_seq
from cdc.targets import SINCE_PROPERTY, local_path
from spark_jobs.delta.log import TRANSACTION_RETENTION, DeltaState, commits_since
from spark_jobs.delta.tables import Target, target

if TYPE_CHECKING:
    from cdc.batches.manifest import Manifest
    from cdc.config import DestinationConfig
    from cdc.meta.state import Subscription, TableRecord

IDLE_TABLES = 500
"""So many tables without changes in the batch are looked at for each batch, in turn."""
_LARGEST_COMMIT = 1 << 20
_log = get_logger(__name__)


def prove(
    place: Target, state: DeltaState | None, manifest: Manifest, known: Subscription, *, created_here: bool
) -> None:
    """Raises TargetError where the table is not, or not wholly, what was acked. ``created_here``: a CREATE TABLE of
    this very batch makes the table."""
    record = known.table(place.table)
    if state is None:
        if record is not None:
            raise _refusal(place, f"the Delta table is gone; it had changes up to {_seq(record.applied_seq)}")
        _require_whole_start(place, manifest, known, created_here=created_here)
        return
    if record is None:
        _require_reaches_beginning(place, state, known)
    elif state.generation <= record.generation:
        _require_record(place, state, record)
    _require_not_restored(place, state, record)
    retention = state.properties.get(TRANSACTION_RETENTION)
    if retention is not None and not retention_is_long(retention):
        _log.warning(
            "Delta forgets the table's applied position",
            table=place.table,
            property=f"{TRANSACTION_RETENTION}={retention}",
            remedy="Unset the property; until then the position is taken from the last commits.",
        )


def _require_record(place: Target, state: DeltaState, record: TableRecord) -> None:
    if state.id != record.delta_id or state.generation < record.generation:
        raise _refusal(
            place,
            f"the Delta table was replaced: its id is {state.id}, and the one with the changes up to "
            f"{_seq(record.applied_seq)} was {record.delta_id}",
        )
    if state.version < record.version:
        raise _refusal(
            place,
            f"the Delta table is at version {state.version}, and version {record.version} was there at the last ack: "
            "an older copy was put in its place",
        )
    if state.applied_seq < record.applied_seq:
        raise _refusal(
            place,
            f"the Delta table has changes up to {_seq(state.applied_seq)}, and had those up to "
            f"{_seq(record.applied_seq)} at the last ack",
        )


def _require_not_restored(place: Target, state: DeltaState, record: TableRecord | None) -> None:
    """RESTORE makes a new version and leaves the applied position as it is, so only its entry in the history tells."""
    last = max((version for version, _ in state.ledger), default=None)
    since = record.version if record is not None and record.delta_id == state.id else last
    if since is None or since >= state.version:
        return
    ours = {version for version, _ in state.ledger} | {since}
    for commit in commits_since(state, place.table, since):
        if commit.get("operation") != "RESTORE":
            continue
        version, to = int(commit["version"]), _restored_to(commit)
        if to is None or any(to < our < version for our in ours):
            when = "an earlier time" if to is None else f"version {to}"
            raise _refusal(
                place,
                f"version {version} of the Delta table is a RESTORE to {when}, which takes back changes that were "
                "applied",
            )


def _restored_to(commit: dict[str, Any]) -> int | None:
    text = str((commit.get("operationParameters") or {}).get("version"))
    return int(text) if text.isdigit() else None


def _require_reaches_beginning(place: Target, state: DeltaState, known: Subscription) -> None:
    """A table of which the meta has no record: the meta was lost, or is of an older format. The subscriber got every
    change since its beginning, so the table must have those before."""
    since, reached = known.since_seq, position_of(state)
    if since is None or reached >= since or known.has_accepted(reached, since, place.table):
        return
    raise _refusal(
        place,
        f"the Delta table has changes up to {_seq(reached)}, and the store gives those behind {_seq(since)}: nothing "
        "proves that there are none in between",
    )


def _require_whole_start(place: Target, manifest: Manifest, known: Subscription, *, created_here: bool) -> None:
    """A table that is to be made: the changes that retention removed before this subscriber began may be its own."""
    begins = manifest.store_begins.seq if manifest.store_begins is not None else None
    since = known.since_seq
    if created_here or begins is None or since is None or since <= begins or known.has_accepted(begins, since):
        return
    if known.has_accepted(begins, since, place.table):
        return
    raise _refusal(
        place,
        f"there is no Delta table, and its changes up to {_seq(since)} cannot be applied any more: retention has "
        "removed them from the store",
    )


def position_of(state: DeltaState) -> int:
    """The seq up to which a table is complete by its own account: what was applied, else where it was made."""
    return max(state.applied_seq, int(state.properties.get(SINCE_PROPERTY, "0")))


def _refusal(place: Target, what: str) -> TargetError:
    return TargetError(
        what,
        place=f"table {place.table} at {place.path}",
        remedy="Put back the table as it was (is the disk mounted?); or start a new destination; or, if the table may "
        f"lack these changes, accept that with `cdc batch accept-gap {place.destination} --table {place.table}`.",
    )


def _seq(seq: int) -> str:
    return f"{seq} ({format_seq(seq)})"


def retention_is_long(text: str) -> bool:
    """Whether transaction ids are kept for decades: what :data:`spark_jobs.delta.log.KEPT_TRANSACTIONS` says."""
    words = text.lower().removeprefix("interval").split()
    days = {"day": 1, "days": 1, "week": 7, "weeks": 7}
    return len(words) == 2 and words[0].isdigit() and int(words[0]) * days.get(words[1], 0) >= 3650


# --- tables without changes in the batch ---------------------------------------------------------------------------


def prove_idle(config: DestinationConfig, manifest: Manifest, known: Subscription, busy: Collection[str]) -> None:
    """A look at tables that the batch does not change, where that costs little: those on a local disk, at most
    :data:`IDLE_TABLES` for each batch. Raises TargetError for one that is gone, replaced or restored."""
    names = sorted(name for name in known.tables if name not in busy and config.tables.includes(*_split(name)))
    for name in _turn(names, manifest.batch):
        place, record = target(config, name), known.table(name)
        folder = local_path(place.path)
        if folder is None or record is None or config.spark.remote is not None:
            continue
        if not _is_unchanged(folder / "_delta_log", place, record):
            prove(place, place.state(), manifest, known, created_here=False)


def _split(name: str) -> tuple[str, str]:
    from cdc.targets import split_table

    return split_table(name)


def _turn(names: list[str], batch: int) -> Iterator[str]:
    rounds = max(1, -(-len(names) // IDLE_TABLES))
    return islice(names, (batch % rounds) * IDLE_TABLES, (batch % rounds + 1) * IDLE_TABLES)


def _is_unchanged(log: Path, place: Target, record: TableRecord) -> bool:
    """Whether the newest commit is still the recorded one. False: look closer."""
    if (log / f"{record.version + 1:020d}.json").exists():
        return False
    commit = log / f"{record.version:020d}.json"
    try:
        if commit.stat().st_size > _LARGEST_COMMIT:
            return False
        text = commit.read_text(encoding="utf-8")
    except OSError:
        return False
    if record.applied_seq == 0:
        return record.delta_id in text
    return any(_carries(line, place, record) for line in text.splitlines() if '"txn"' in line)


def _carries(line: str, place: Target, record: TableRecord) -> bool:
    from cdc.targets import application_id

    transaction = json.loads(line).get("txn") or {}
    wanted = application_id(place.destination, place.table, record.generation), record.applied_seq
    return (transaction.get("appId"), transaction.get("version")) == wanted
