"""Proves before a merge that no Delta table lies behind what the meta recorded at the last ack.

A Delta table that was removed, replaced or restored looks like a new one, or like one whose applied position is ahead
of its rows: merging into it would lose changes silently. Commits that lose nothing pass: OPTIMIZE, VACUUM, statements
of others, properties of others; and a lake that is ahead of the meta, after a kill between the commit and the ack.
``docs/how-to/restoring.md`` lists what is refused.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Any

from cdc.base.errors import CdcError, MergeFailedError, TargetError
from cdc.base.log import get_logger
from cdc.base.targets import SINCE_PROPERTY, application_id, local_path, split_table
from cdc.batches.manifest import TableResult
from cdc.binlog.positions import format_seq
from cdc.lake.delta.log import (
    LEDGER_DEPTH,
    TRANSACTION_RETENTION,
    DeltaState,
    commits_since,
    ends_with,
    last_commits,
    ledger_of,
)
from cdc.lake.delta.tables import Target, target_of

if TYPE_CHECKING:
    from cdc.batches.manifest import Manifest
    from cdc.config import DestinationConfig
    from cdc.meta.state import Subscription, TableRecord

IDLE_TABLES = 500
"""Tables without changes in the batch that are proved for each batch, in turn."""
IDLE_S = 300.0
"""Time after which a process looks again at a table without changes that is in an object store or shared: once in a
run."""
_LOOKS = 16
"""Tables in object stores that are looked at together."""
_log = get_logger(__name__)
_looked_at: dict[str, float] = {}
"""When this process has found such a table unchanged, or proved a shared one, last, by :func:`_place`."""


def prove(
    target: Target,
    state: DeltaState | None,
    manifest: Manifest,
    subscription: Subscription,
    *,
    created_here: bool,
    is_idle: bool = False,
) -> None:
    """Raises TargetError if the table is not, or not completely, what was acked. ``created_here``: a CREATE TABLE of
    this very batch creates the table. ``is_idle``: the batch does not change the table. Then only the last commits of a
    shared one are searched for a RESTORE: others may have made any number since."""
    record = subscription.table(target.table)
    if state is None:
        if record is not None:
            raise _refusal(
                target,
                f"the Delta table is gone; it had changes up to {_seq(record.applied_seq)}{_or_restored(target)}",
            )
        _require_whole_start(target, manifest, subscription, created_here=created_here)
        return
    if record is None:
        _require_reaches_beginning(target, state, subscription)
    elif state.generation <= record.generation:
        _require_record(target, state, record)
    _require_not_restored(target, state, record, last=is_idle and _has_commits_of_others(target))
    require_all_rows(target, state)
    retention = state.properties.get(TRANSACTION_RETENTION)
    if retention is not None and not retention_is_long(retention):
        _log.warning(
            "Delta forgets the table's applied position",
            table=target.table,
            property=f"{TRANSACTION_RETENTION}={retention}",
            remedy="Unset the property; until then the position is taken from the last commits.",
        )


def prove_known(target: Target, state: DeltaState | None, subscription: Subscription) -> DeltaState:
    """Makes the checks of :func:`prove` that need no batch, for a table that must exist. Returns its state."""
    record = subscription.table(target.table)
    if state is None:
        raise _refusal(target, f"the Delta table is gone{_or_restored(target)}")
    if record is None:
        _require_reaches_beginning(target, state, subscription)
    elif state.generation <= record.generation:
        _require_record(target, state, record)
    _require_not_restored(target, state, record)
    require_all_rows(target, state)
    return state


def require_all_rows(target: Target, state: DeltaState) -> None:
    """Raises TargetError if a statement of this generation read fewer rows than it was given: they were lost on the way
    into Spark, and the table's applied position says that they are there."""
    lost = state.lost_rows
    if lost is not None:
        raise TargetError(
            f"version {lost.version} of the Delta table lacks changes: Spark read {lost.read:,} of the {lost.sent:,} "
            "rows that its statement was given",
            place=f"table {target.table} at {target.path}",
            remedy=f"Rebuild the table with `cdc replay {target.destination} {target.table}`, or load it with "
            f"`cdc snapshot {target.destination} {target.table}`; and report this.",
        )


def require_applied(target: Target, state: DeltaState, seq: int) -> None:
    """Raises MergeFailedError if the table does not have the changes up to ``seq`` that were just merged into it:
    somebody has restored or replaced it since, or the statement has done nothing."""
    if state.applied_seq < seq:
        raise MergeFailedError(
            f"version {state.version} of the Delta table has changes up to {_seq(state.applied_seq)} after those up to "
            f"{_seq(seq)} were merged",
            place=f"table {target.table} at {target.path}",
            remedy="Nothing was acked. The batch is merged again; see the table's history for commits of others.",
        )


def _require_record(target: Target, state: DeltaState, record: TableRecord) -> None:
    if state.id != record.delta_id or state.generation < record.generation:
        raise _refusal(
            target,
            f"the Delta table was replaced: its id is {state.id}, and the one with the changes up to "
            f"{_seq(record.applied_seq)} was {record.delta_id}",
        )
    if state.version < record.version:
        raise _refusal(
            target,
            f"the Delta table is at version {state.version}, and version {record.version} was there at the last ack: "
            "an older copy was put in its place",
        )
    if state.applied_seq < record.applied_seq:
        raise _refusal(
            target,
            f"the Delta table has changes up to {_seq(state.applied_seq)}, and had those up to "
            f"{_seq(record.applied_seq)} at the last ack",
        )


def _or_restored(target: Target) -> str:
    """Another reason why a shared table does not exist for a destination that had joined it."""
    what = "source table" if target.is_routed else "destination"
    return f", or it was restored to a version before this {what} joined it" if target.apply.shared else ""


def _require_not_restored(target: Target, state: DeltaState, record: TableRecord | None, *, last: bool = False) -> None:
    """Raises TargetError for a RESTORE that takes back changes. RESTORE makes a new version and keeps the applied
    position, so only its entry in the history shows it. ``last``: whether to look at the last commits only."""
    newest = max((version for version, _ in state.ledger), default=None)
    if newest is None and state.is_shared and state.applied_seq:
        newest = 0  # the last commits are all those of others
    since = record.version if record is not None and record.delta_id == state.id else newest
    if since is None or since >= state.version:
        return
    if last:
        commits = [commit for commit in last_commits(state, target.table) if int(commit["version"]) > since]
    else:
        commits = commits_since(state, target.table, since)
    ours = {version for version, _ in [*state.ledger, *ledger_of(commits, target.destination, target.table)]}
    if not any(our <= since for our in ours):  # else the last one before is known, and the recorded one may be foreign
        ours.add(since)
    if record is not None:
        _require_whole_history(target, state, max(since, state.version - LEDGER_DEPTH) if last else since, commits)
    for commit in commits:
        if commit.get("operation") != "RESTORE":
            continue
        version, to = int(commit["version"]), _restored_to(commit)
        if to is None or any(to < our < version for our in ours):
            when = "an earlier time" if to is None else f"version {to}"
            raise _refusal(
                target,
                f"version {version} of the Delta table is a RESTORE to {when}, which takes back changes that were "
                "applied",
            )


def _require_whole_history(target: Target, state: DeltaState, since: int, commits: list[dict[str, Any]]) -> None:
    """Raises TargetError if commits after a version are missing: one of them may have been a RESTORE."""
    missing = set(range(since + 1, state.version + 1)) - {int(commit["version"]) for commit in commits}
    if missing:
        raise _refusal(
            target,
            f"versions {min(missing)} to {max(missing)} of the Delta table are not in its history any more, and "
            "nothing proves that none of them was a RESTORE",
        )


def _restored_to(commit: dict[str, Any]) -> int | None:
    text = str((commit.get("operationParameters") or {}).get("version"))
    return int(text) if text.isdigit() else None


def _require_reaches_beginning(target: Target, state: DeltaState, subscription: Subscription) -> None:
    """Checks a table that the meta has no record of: the meta was lost, or has an older format. The subscriber gets
    every change after its beginning, so the table must have those before."""
    since, reached = subscription.since_seq, position_of(state)
    if since is None or reached >= since or subscription.has_accepted(reached, since, target.table):
        return
    raise _refusal(
        target,
        f"the Delta table has changes up to {_seq(reached)}, and the store gives those after {_seq(since)}: nothing "
        "proves that there are none in between",
    )


def _require_whole_start(target: Target, manifest: Manifest, subscription: Subscription, *, created_here: bool) -> None:
    """Checks a table that is to be created: retention may have removed changes of it before this subscriber began."""
    begins = manifest.store_begins.seq if manifest.store_begins is not None else None
    since = subscription.since_seq
    if created_here or begins is None or since is None or since <= begins or subscription.has_accepted(begins, since):
        return
    if subscription.has_accepted(begins, since, target.table):
        return
    raise _refusal(
        target,
        f"there is no Delta table, and its changes up to {_seq(since)} cannot be applied any more: retention has "
        "removed them from the store",
    )


def position_of(state: DeltaState) -> int:
    """Returns the seq up to which a table is complete by its own properties: the applied seq, else that of its
    creation."""
    return max(state.applied_seq, int(state.properties.get(SINCE_PROPERTY, "0")))


def _refusal(target: Target, what: str) -> TargetError:
    return TargetError(
        what,
        place=f"table {target.table} at {target.path}",
        remedy="Put back the table as it was (is the disk mounted?); or start a new destination; or, if the table may "
        f"lack these changes, accept that with `cdc batch accept-gap {target.destination} --table {target.table}`.",
    )


def _seq(seq: int) -> str:
    return f"{seq} ({format_seq(seq)})"


def retention_is_long(text: str) -> bool:
    """Whether transaction ids are kept for decades, as :data:`cdc.lake.delta.log.KEPT_TRANSACTIONS` asks."""
    words = text.lower().removeprefix("interval").split()
    days = {"day": 1, "days": 1, "week": 7, "weeks": 7}
    return len(words) == 2 and words[0].isdigit() and int(words[0]) * days.get(words[1], 0) >= 3650


# --- tables without changes in the batch ---------------------------------------------------------------------------


def prove_idle(
    config: DestinationConfig,
    manifest: Manifest,
    subscription: Subscription,
    busy: Collection[str],
    faults: dict[str, CdcError] | None = None,
) -> list[TableResult]:
    """Proves tables that the batch does not change, on a local disk and in an object store: at most
    :data:`IDLE_TABLES` for each batch. Adds to ``faults`` the error of each table that is gone, replaced or restored;
    without it, raises the first one, a TargetError. Returns the versions of tables that others have written to, from
    which the next proof begins: by then Delta may have removed these commits from the history."""
    seen: list[TableResult] = []
    names = sorted(
        name for name in subscription.tables if name not in busy and config.tables.includes(*split_table(name))
    )
    targets = [target_of(config, name) for name in _turn(names, manifest.batch)]
    for target in _changed(config, targets, subscription):
        try:
            state = target.state()
            prove(target, state, manifest, subscription, created_here=False, is_idle=True)
        except CdcError as error:
            if faults is None:
                raise
            faults[target.table] = error
            continue
        if target.apply.shared:
            _looked_at[_place(target)] = time.monotonic()
        record = subscription.table(target.table)
        if state is None or record is None or state.generation != record.generation:
            continue
        most = LEDGER_DEPTH if _has_commits_of_others(target) else state.version  # else all of them were looked at
        if 0 < state.version - record.version <= most:
            seen.append(
                TableResult(
                    table=target.table,
                    delta_version=state.version,
                    delta_id=state.id,
                    applied_seq=record.applied_seq,
                    generation=record.generation,
                    idle=True,
                )
            )
    return seen


def _has_commits_of_others(target: Target) -> bool:
    """Whether other destinations may have made any number of commits since the last look. Those for the other source
    tables of a routed table are as many as this destination has made, which looks at each of its tables."""
    return target.apply.shared and not target.is_routed


def _changed(config: DestinationConfig, targets: list[Target], subscription: Subscription) -> list[Target]:
    """Returns the tables whose newest commit is not the recorded one, and which this process can read. In an object
    store several are looked at together. Each of these, and each shared table, which mostly ends with a commit of
    another member, is looked at again after :data:`IDLE_S`."""
    now = time.monotonic()
    here: list[Target] = []
    away: list[Target] = []
    for target in targets:
        is_local = local_path(target.path) is not None
        if (target.apply.shared or not is_local) and now - _looked_at.get(_place(target), -IDLE_S) < IDLE_S:
            continue
        if not is_local:
            away.append(target)
        elif config.spark.remote is None:
            here.append(target)
    changed = [target for target in here if not _is_unchanged(target, subscription)]
    if not away:
        return changed
    with ThreadPoolExecutor(min(len(away), _LOOKS), thread_name_prefix="idle") as pool:
        same = list(pool.map(lambda target: _is_unchanged(target, subscription), away))
    _looked_at.update((_place(target), now) for target, is_same in zip(away, same, strict=True) if is_same)
    return changed + [target for target, is_same in zip(away, same, strict=True) if not is_same]


def _place(target: Target) -> str:
    """Returns what tells a table from others that this process looks at; members of a routed one share its path."""
    return f"{target.path} {target.member}"


def _turn(names: list[str], batch: int) -> Iterator[str]:
    rounds = max(1, -(-len(names) // IDLE_TABLES))
    return islice(names, (batch % rounds) * IDLE_TABLES, (batch % rounds + 1) * IDLE_TABLES)


def _is_unchanged(target: Target, subscription: Subscription) -> bool:
    """Whether the newest commit is still the recorded one, or there is no record. False: the whole proof is needed.
    Raises RetryableError."""
    record = subscription.table(target.table)
    if record is None:
        return True
    transaction = None
    if record.applied_seq > 0:
        identity = application_id(target.destination, target.table, record.generation)
        transaction = identity, record.applied_seq
    return ends_with(target.path, record.version, record.delta_id, transaction)
