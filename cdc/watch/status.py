"""The status of a destination: positions, store, cursors, lag, outstanding batches and tables, as one document.

``cdc status`` shows it, and so do pages.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cdc.base.errors import CutOffError, DamagedError
from cdc.base.targets import split_table
from cdc.base.units import human_bytes, human_seconds, iso_time, iso_time_us
from cdc.batches.retention import make_watch
from cdc.batches.subscribers import make_filter
from cdc.client import captured_tables, open_batches, open_meta, open_store
from cdc.client.reader import RemoteReader
from cdc.copies.standby.role import read_epoch, read_status
from cdc.lake import groups
from cdc.lake.delta.log import TablePosition, read_position
from cdc.store.formats.archive_record import record_of
from cdc.store.formats.prepared import describe
from cdc.watch.last_merges import last_merges, last_run, newest_acked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cdc.batches.manifest import Manifest
    from cdc.config import DestinationConfig
    from cdc.meta import Gap, Meta, Outstanding, State, Subscription
    from cdc.store.formats.state import CaptureState
    from cdc.store.reader.store import Store


def collect(
    config: DestinationConfig, *, meta: Meta | None = None, lake: bool = True, group: bool = False
) -> dict[str, Any]:
    """Returns the status of a destination: the document of ``cdc status --json``. ``meta``: the open meta, if the
    caller has one. ``lake``: whether to look at the Delta tables and at snapshots; their lists are empty otherwise.
    ``group``: whether to ask the other destinations that share the Delta tables, too; the group is None otherwise.

    Raises DamagedError, VersionError and StorageError of store and meta.
    """
    state = (open_meta(config) if meta is None else meta).read()
    reader = open_store(config, state.source.base_name if state.source else None)
    capture, totals, first_seq, last_seq = (
        reader.capture_state(),
        reader.totals(),
        reader.first_seq(),
        reader.last_seq(),
    )
    begins = reader.beginning() if reader.exists() else None
    tables, members = _tables(config, reader) if lake else ([], {})
    subscriptions = _subscriptions(config, state, reader)
    acked, damage = _newest_acked(config) if lake else ([], None)
    _add_progress(tables, subscriptions, reader, acked)
    return {
        "destination": config.name,
        "capture": {
            "running": capture is not None and capture.running,
            "pid": capture.pid if capture is not None and capture.running else None,
            "connected": capture is not None and capture.connected,
            "ended": capture is None or capture.ended,
            "error": None if capture is None else capture.error,
        },
        "source": {
            "file": None if capture is None else capture.file,
            "pos": None if capture is None else capture.pos,
            "gtid": None if capture is None else capture.gtid,
            "time": None if capture is None else _iso(capture.time_us),
            "server_uuid": None if state.source is None else state.source.server_uuid,
            "epoch": None if state.source is None else state.source.epoch,
            "server": None if state.source is None else state.source.address,
            "folder": None if config.source.folder is None else str(config.source.folder),
            "failovers": _failovers(state),
            "purge": _purge(capture),
        },
        "store": {
            "first_seq": first_seq,
            "last_seq": last_seq,
            "transactions": totals.transactions,
            "bytes": totals.bytes,
            "complete_until": None if capture is None else _iso(capture.complete_until_us),
            "there": reader.exists(),
            "begins": None if begins is None else {**asdict(begins), "time": _iso(begins.time_us)},
            "prepared": _prepared(config),
        },
        "archive": _archive(config),
        "standby": _standby(config),
        "retention": {"removed_until": reader.removed_seq() or None, "disk": _disk(config, reader)},
        "subscriptions": subscriptions,
        "tables": tables,
        "last_run": last_run(acked),
        "manifests_error": damage,
        "group": groups.collect(config, members) if lake and group else None,
        "snapshots": _snapshots(config) if lake else [],
    }


def _purge(capture: CaptureState | None) -> dict[str, Any] | None:
    """Returns how far the source is from the purge of what was not read; None if capture has not asked yet."""
    if capture is None or capture.purge_left is None:
        return None
    return {"left_ratio": capture.purge_left, "text": capture.purge}


def _prepared(config: DestinationConfig) -> dict[str, Any] | None:
    """Returns the XA transactions with captured rows that are neither committed nor rolled back; None for a store that
    is not on this machine's disk."""
    if config.store.kind != "file":
        return None

    return describe(config.store.path)


def prepared_sentences(prepared: dict[str, Any] | None) -> list[str]:
    """Returns a sentence about pending XA transactions; none if there are none."""
    if not prepared or not prepared["count"]:
        return []
    count, oldest = prepared["count"], prepared["transactions"][0]
    wait = "transaction waits" if count == 1 else "transactions wait"
    since = f"since {oldest['time']}: {oldest['xid']} ({', '.join(oldest['tables'])})"
    text = f"{count} prepared XA {wait} for XA COMMIT or XA ROLLBACK, {human_bytes(prepared['bytes'])}"
    return [f"{text}, {since}." if count == 1 else f"{text}, the oldest {since}."]


def _failovers(state: State) -> list[dict[str, Any]]:
    """Returns the epochs that failovers have begun, oldest first."""
    return [
        {
            "epoch": identity.epoch,
            "server": identity.address,
            "server_uuid": identity.server_uuid,
            "time": iso_time(began.time),
            "after_seq": began.after_seq,
            "file": began.file,
            "pos": began.pos,
            "lost": began.lost,
        }
        for identity, began in (() if state.source is None else state.source.failovers())
    ]


def failover_sentences(source: dict[str, Any]) -> list[str]:
    """Returns a sentence for the last failover, and for each one that has lost transactions."""
    sentences = []
    for failover in source["failovers"]:
        where = f"{failover['server']} at {failover['time']} (epoch {failover['epoch']})"
        if failover["lost"] is not None:
            sentences.append(
                f"The failover to {where} has lost transactions that the store has: {failover['lost']}. Their loss was "
                "accepted; the tables that they changed need a snapshot."
            )
        elif failover is source["failovers"][-1]:
            sentences.append(f"Capture moved to {where}.")
    return sentences


def _archive(config: DestinationConfig) -> dict[str, Any] | None:
    """Returns the state of the store's archive; None if none is configured, or another machine writes it."""
    store = config.store
    uri = config.archive_uri
    if store.kind == "server" or uri is None or store.standby.role == "standby":
        return None
    from cdc.copies.archive.writer import backlog_of  # zstandard, for an archive alone

    record = record_of(store.path, uri)
    behind = backlog_of(store.path, record.archived_seq)
    return {
        "uri": uri,
        "segments": record.segments,
        "bytes": record.bytes,
        "archived_seq": record.archived_seq or None,
        "copied": _iso(record.copied_us),
        "behind": {"segments": behind.segments, "bytes": behind.bytes, "since": _iso(behind.since_us)},
        "failing_since": _iso(record.failing_since_us),
        "error": record.error or None,
    }


def archive_sentences(archive: dict[str, Any] | None) -> list[str]:
    """Returns a sentence about the archive of a status document; none if none is configured."""
    if archive is None:
        return []
    behind = archive["behind"]
    waiting = f"{behind['segments']} finished segments wait, {human_bytes(behind['bytes'])}"
    if archive["error"] is not None:
        more = f" ({waiting})" if behind["segments"] else ""
        return [f"Alarm: nothing is copied to the archive since {archive['failing_since']}{more}. {archive['error']}"]
    level = f"{waiting}, the oldest since {behind['since']}" if behind["segments"] else "level with the store"
    return [f"Archive {archive['uri']}: {archive['segments']} segments; {level}."]


def _standby(config: DestinationConfig) -> dict[str, Any]:
    """Returns the store's role as master or standby; ``peers`` is empty if none is connected."""
    if config.store.kind == "server":  # `cdc status` there tells more
        return {"role": "none", "term": None, "state": None, "running": False, "peers": []}
    last, epoch = read_status(config.store.path), read_epoch(config.store.path)
    fresh = last is not None and last.is_fresh
    return {
        "role": config.store.standby.role,
        "term": None if epoch is None else epoch.number,
        "state": None if epoch is None else epoch.state,
        "running": fresh,
        "peers": [
            {"address": p.address, "connected": p.connected, "seq": p.seq or None, "behind_bytes": p.behind_bytes}
            for p in (last.peers if last is not None and fresh else ())
        ],
    }


def _subscriptions(config: DestinationConfig, state: State, reader: Store) -> list[dict[str, Any]]:
    subscriptions = []
    removed_seq = reader.removed_seq()
    begins = reader.beginning() if reader.exists() else None
    for name, subscription in sorted(state.subscriptions.items()):
        behind = reader.backlog(subscription.acked_seq, make_filter(subscription.filter))
        oldest_us, since_us = behind.oldest_commit_time_us, behind.oldest_store_time_us
        lag_s = 0.0 if oldest_us is None else max(0.0, round(time.time() - oldest_us / 1e6, 3))
        waiting_s = 0.0 if since_us is None else time.time() - since_us / 1e6
        subscriptions.append(
            {
                "name": name,
                "filter": subscription.filter,
                "acked_seq": subscription.acked_seq,
                "lag_s": lag_s,
                "behind": {"transactions": behind.transactions, "bytes": behind.bytes},
                "held_back": {
                    "bytes": behind.bytes,
                    "transactions": behind.transactions,
                    "since": None if since_us is None else iso_time_us(since_us),
                    "lost": waiting_s > config.store.retain.lost_after,
                },
                "cut_off": subscription.acked_seq < removed_seq and _is_cut_off(reader, subscription.acked_seq),
                "before_beginning": begins is not None and 0 < subscription.position() < begins.seq,
                "since_seq": subscription.since_seq,
                "gaps": [gap_document(gap) for gap in subscription.gaps],
                "outstanding": [batch_document(entry) for entry in subscription.outstanding],
                "rolled_back": _rolled_back(subscription),
                "parked": [
                    {"table": table, **record.model_dump(mode="json")}
                    for table, record in sorted(subscription.parked.items())
                    if config.tables.includes(*split_table(table))
                ],
            }
        )
    return subscriptions


def _rolled_back(subscription: Subscription) -> int:
    """Returns how many batches were rolled back since the last one that was acked, as far as the meta remembers."""
    ends = [batch.outcome for batch in reversed(subscription.finished)]
    return next((number for number, outcome in enumerate(ends) if outcome == "acked"), len(ends))


def _is_cut_off(reader: Store, acked_seq: int) -> bool:
    try:
        reader.require_kept(acked_seq)
    except CutOffError:
        return True
    return False


def _disk(config: DestinationConfig, reader: Store) -> dict[str, Any] | None:
    """Returns the usage of the store's disk; None if there is no store yet."""
    if isinstance(reader, RemoteReader):
        return reader.disk()

    return make_watch(config.store).document() if config.store.path.is_dir() else None


def _snapshots(config: DestinationConfig) -> list[dict[str, Any]]:
    """Returns the progress of each snapshot that was begun and is not loaded yet."""
    if config.store.stage is None and (config.store.kind == "server" or not (config.store.path / "snapshots").is_dir()):
        return []  # without loading what reads snapshots
    from cdc.source.snapshot.files import unfinished

    return [
        {"table": files.info.table, **(files.read_progress() or {}), "complete": files.is_complete()}
        for files in unfinished(config)
    ]


def _tables(config: DestinationConfig, reader: Store) -> tuple[list[dict[str, Any]], dict[str, tuple[str, ...]]]:
    """Returns the tables, and the members of each shared one."""

    def look(name: str) -> tuple[str, TablePosition]:
        path = config.table_path(name)
        return path, read_position(path, config.name, name)

    names = captured_tables(config, reader)
    with ThreadPoolExecutor(max_workers=8) as pool:
        positions = list(pool.map(look, names))
    rows = [
        {
            "table": name,
            "mode": config.table_apply(name).mode,
            "applied_seq": position.applied_seq,
            "delta_version": position.delta_version,
            "path": path,
            "lake_table": lake_name if (lake_name := config.tables.lake_name(name)) != name else None,
            "note": position.note,
            "reader": position.reader,
            "small_files": position.small_files,
        }
        for name, (path, position) in zip(names, positions, strict=True)
    ]
    return rows, {name: position.members for name, (_, position) in zip(names, positions, strict=True)}


def _newest_acked(config: DestinationConfig) -> tuple[list[Manifest], str | None]:
    """Returns the manifests of the newest acked batches, or why they cannot be read."""
    try:
        return newest_acked(open_batches(config)), None
    except DamagedError as error:
        return [], f"The last merges are not known: {error}"


def _add_progress(
    tables: list[dict[str, Any]], subscriptions: list[dict[str, Any]], reader: Store, acked: Sequence[Manifest]
) -> None:
    """Adds to each table its lag, its applied position as time, when it was parked, and its last merge. A table that is
    not parked has all changes up to the cursor; one that is parked stands still since then."""
    merges = last_merges(acked)
    apply = next((subscription for subscription in subscriptions if subscription["name"] == "apply"), None)
    since = {} if apply is None else {record["table"]: record["since"] for record in apply["parked"]}
    times: dict[int, str | None] = {}
    for table in tables:
        parked, seq, lag_s = since.get(table["table"]), table["applied_seq"] or 0, None
        if apply is not None and parked is None and table["applied_seq"] is not None:
            seq, lag_s = max(seq, apply["acked_seq"]), apply["lag_s"] if apply["behind"]["transactions"] else 0.0
        elif parked is not None:
            lag_s = max(0.0, round(time.time() - datetime.fromisoformat(parked).timestamp(), 3))
        if seq not in times:
            times[seq] = _time_of(reader, seq) if seq else None
        table |= {
            "applied_time": times[seq],
            "lag_s": lag_s,
            "parked_since": parked,
            "last_merge": merges.get(table["table"]),
        }


def _time_of(reader: Store, seq: int) -> str | None:
    """Returns the commit time of the last transaction up to a seq, or when it was stored if the source gave it no time;
    None if the store does not have it any more."""
    entry = reader.entry_at(seq)
    return None if entry is None else _iso(int(entry["commit_time_us"]) or int(entry["store_time_us"]))


def _iso(time_us: int) -> str | None:
    return iso_time_us(time_us) if time_us > 0 else None


def gap_document(gap: Gap) -> dict[str, Any]:
    """Returns an accepted gap for JSON."""
    return gap.model_dump(mode="json")


def batch_document(entry: Outstanding) -> dict[str, Any]:
    """Returns an outstanding batch for JSON, without its token."""
    return {
        "batch": entry.batch,
        "owner": entry.owner,
        "first_seq": entry.first_seq,
        "last_seq": entry.last_seq,
        "expires": iso_time(entry.expires),
    }


def small_files_text(table: Mapping[str, Any], destination: str) -> str:
    """Returns the end of a sentence about a table with many small files, empty if it has few."""
    if not table["small_files"]:
        return ""
    count, name = table["small_files"], table["table"]
    return f"has {count:,} small files, which readers open one by one: `cdc maintain {destination} {name}` joins them"


def lag_text(table: Mapping[str, Any]) -> str:
    """Returns the lag of a table as a text."""
    return "–" if table["lag_s"] is None else human_seconds(table["lag_s"]) if table["lag_s"] else "none"


def oldest_table(tables: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the table with the greatest lag; None if no table has any."""
    late = [table for table in tables if table["lag_s"]]
    return max(late, key=lambda table: float(table["lag_s"]), default=None)


def alarms(subscriptions: list[dict[str, Any]]) -> list[str]:
    """Returns a sentence for each subscriber that was cut off, or seems lost."""
    cut_off = [
        f"Alarm: subscriber {subscription['name']} was cut off: retention removed transactions that it had not acked. "
        "Rebuild the tables that it fills, and let it begin again with `cdc batch unsubscribe` and "
        "`cdc batch subscribe`."
        for subscription in subscriptions
        if subscription.get("cut_off")
    ]
    return cut_off + [
        f"Alarm: subscriber {subscription['name']} seems lost. It holds back "
        f"{human_bytes(subscription['held_back']['bytes'])}, the oldest since {subscription['held_back']['since']}. "
        "Start it, or remove it with `cdc batch unsubscribe`."
        for subscription in subscriptions
        if subscription["held_back"]["lost"]
    ]


def gap_sentences(subscriptions: list[dict[str, Any]], name: str) -> list[str]:
    """Returns a sentence for each subscriber whose cursor is before the beginning, and for each accepted gap."""
    before = [
        f"Alarm: the store begins behind the cursor of {subscription['name']}, and lacks the transactions between the "
        f"two. Put back the store that has them, or accept the gap with `cdc batch accept-gap {name}`."
        for subscription in subscriptions
        if subscription["before_beginning"]
    ]
    return before + [
        f"{gap['table'] or subscription['name']} lacks the transactions after {gap['after_seq']} up to "
        f"{gap['until_seq']}: accepted on {gap['accepted']} ({gap['reason']})."
        for subscription in subscriptions
        for gap in subscription["gaps"]
    ]


def parked_sentences(subscriptions: list[dict[str, Any]], name: str) -> list[str]:
    """Returns a sentence for each parked table, with one way to bring it back: that of its reason, if it has one."""
    return [
        f"{table['table']} is left out since {table['since'][:19].replace('T', ' ')} UTC: {table['reason']}"
        + ("" if "`cdc " in table["reason"] else f" {parked_remedy(name, table['due'])}")
        for subscription in subscriptions
        for table in subscription["parked"]
    ]


def parked_remedy(name: str, due: str) -> str:
    """Returns what brings the parked tables of a destination back that wait for this."""
    remedies = {
        "snapshot": f"`cdc snapshot {name}` brings it back.",
        "retry": "Each run tries it again.",
        "hold": f"`cdc replay {name} TABLE` brings it back.",
    }
    return remedies[due]
