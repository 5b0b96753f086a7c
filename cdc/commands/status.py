"""``cdc status``: positions, store, cursors, lag, outstanding batches and tables of a destination."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from cdc.commands.common import Destination, Json, load, print_json, tables
from cdc.units import human_bytes, human_seconds, iso_time_us

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.meta import State
    from cdc.store.reader.store import Store


def register(app: typer.Typer) -> None:
    app.command()(status)


def status(ctx: typer.Context, dest: Destination = None, as_json: Json = False) -> None:
    """Show positions, store, cursors, lag, outstanding batches and tables."""
    config = load(ctx, dest)
    document = collect(config)
    if as_json:
        print_json(document)
    else:
        _show(config.name, document)


def collect(config: DestinationConfig) -> dict[str, Any]:
    """Returns the document of ``--json``. Raises DamagedError, VersionError and StorageError of store and meta."""
    from cdc.client import open_meta, open_store

    state = open_meta(config).read()
    reader = open_store(config, state.source.base_name if state.source else None)
    capture, totals, first_seq, last_seq = (
        reader.capture_state(),
        reader.totals(),
        reader.first_seq(),
        reader.last_seq(),
    )
    begins = reader.beginning() if reader.exists() else None
    return {
        "destination": config.name,
        "capture": {
            "running": capture is not None and capture.running,
            "pid": capture.pid if capture is not None and capture.running else None,
            "connected": capture is not None and capture.connected,
        },
        "source": {
            "file": None if capture is None else capture.file,
            "pos": None if capture is None else capture.pos,
            "gtid": None if capture is None else capture.gtid,
            "time": None if capture is None else _iso(capture.time_us),
            "server_uuid": None if state.source is None else state.source.server_uuid,
            "epoch": None if state.source is None else state.source.epoch,
        },
        "store": {
            "first_seq": first_seq,
            "last_seq": last_seq,
            "transactions": totals.transactions,
            "bytes": totals.bytes,
            "complete_until": None if capture is None else _iso(capture.complete_until_us),
            "there": reader.exists(),
            "begins": None if begins is None else {**asdict(begins), "time": _iso(begins.time_us)},
        },
        "standby": _standby(config),
        "retention": {"removed_until": reader.removed_seq() or None, "disk": _disk(config, reader)},
        "subscriptions": _subscriptions(config, state, reader),
        "tables": _tables(config, reader, last_seq),
        "snapshots": _snapshots(config),
    }


def _standby(config: DestinationConfig) -> dict[str, Any]:
    """Returns the store's role as master or standby; ``peers`` is empty if none is connected."""
    from cdc.replication.role import read_epoch, read_status

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
    from cdc.commands.batch import batch_document, gap_document

    found = []
    removed_seq = reader.removed_seq()
    begins = reader.beginning() if reader.exists() else None
    for name, known in sorted(state.subscriptions.items()):
        behind = reader.backlog(known.acked_seq)
        oldest_us, since_us = behind.oldest_commit_time_us, behind.oldest_store_time_us
        lag_s = 0.0 if oldest_us is None else max(0.0, round(time.time() - oldest_us / 1e6, 3))
        waiting_s = 0.0 if since_us is None else time.time() - since_us / 1e6
        found.append(
            {
                "name": name,
                "filter": known.filter,
                "acked_seq": known.acked_seq,
                "lag_s": lag_s,
                "behind": {"transactions": behind.transactions, "bytes": behind.bytes},
                "held_back": {
                    "bytes": behind.bytes,
                    "transactions": behind.transactions,
                    "since": None if since_us is None else iso_time_us(since_us),
                    "lost": waiting_s > config.store.retain.lost_after,
                },
                "cut_off": known.acked_seq < removed_seq and _is_cut_off(reader, known.acked_seq),
                "before_beginning": begins is not None and 0 < known.position() < begins.seq,
                "since_seq": known.since_seq,
                "gaps": [gap_document(gap) for gap in known.gaps],
                "outstanding": [batch_document(entry) for entry in known.outstanding],
                "parked": [
                    {"table": table, **one.model_dump(mode="json")} for table, one in sorted(known.parked.items())
                ],
            }
        )
    return found


def _is_cut_off(reader: Store, acked_seq: int) -> bool:
    from cdc.errors import CutOffError

    try:
        reader.require_kept(acked_seq)
    except CutOffError:
        return True
    return False


def _disk(config: DestinationConfig, reader: Store) -> dict[str, Any] | None:
    """Returns the usage of the store's disk; None if there is no store yet."""
    from cdc.client.reader import RemoteReader

    if isinstance(reader, RemoteReader):
        return reader.disk()
    from cdc.batches.retention import make_watch
    from cdc.table_jobs.maintain import disk_document

    return disk_document(make_watch(config.store)) if config.store.path.is_dir() else None


def _snapshots(config: DestinationConfig) -> list[dict[str, Any]]:
    """Returns the progress of each snapshot that was begun and is not loaded yet."""
    if config.store.stage is None and (config.store.kind == "server" or not (config.store.path / "snapshots").is_dir()):
        return []  # without loading what reads snapshots
    from cdc.snapshot.files import unfinished

    return [
        {"table": files.info.table, **(files.read_progress() or {}), "complete": files.is_complete()}
        for files in unfinished(config)
    ]


def _tables(config: DestinationConfig, reader: Store, last_seq: int | None) -> list[dict[str, Any]]:
    from cdc.targets import split_table, table_path
    from spark_jobs.delta.log import TablePosition, read_position

    def look(name: str) -> tuple[str, TablePosition]:
        path = table_path(config.apply.target, *split_table(name))
        return path, read_position(path, config.name, name)

    names = _captured(config, reader, last_seq)
    with ThreadPoolExecutor(max_workers=8) as pool:
        positions = list(pool.map(look, names))
    return [
        {
            "table": name,
            "mode": config.table_apply(name).mode,
            "applied_seq": position.applied_seq,
            "delta_version": position.delta_version,
            "path": path,
            "note": position.note,
            "reader": position.reader,
        }
        for name, (path, position) in zip(names, positions, strict=True)
    ]


def _captured(config: DestinationConfig, reader: Store, last_seq: int | None) -> list[str]:
    """Returns the tables that capture knows: those of the newest schemas, and those whose changes it has stored."""
    from cdc.targets import split_table

    names = set(reader.table_names())
    schemas = reader.schemas(last_seq or 0)
    if schemas is not None:
        names.update(schemas[1].tables)
    return sorted(name for name in names if config.tables.includes(*split_table(name)))


def _iso(time_us: int) -> str | None:
    return iso_time_us(time_us) if time_us > 0 else None


def _show(name: str, document: dict[str, Any]) -> None:
    from rich.table import Column, Table

    from cdc.commands.maintain import alarms

    capture, source, store = document["capture"], document["source"], document["store"]
    retention = document["retention"]
    console = tables()
    running = f"running (process {capture['pid']})" if capture["running"] else "not running"
    if capture["running"]:
        running += ", connected" if capture["connected"] else ", not connected"
    grid = Table.grid("", Column(overflow="fold"), padding=(0, 2))
    grid.add_row("destination", name)
    grid.add_row("capture", running)
    if source["file"] is not None:
        position = [f"{source['file']}:{source['pos']}", source["gtid"], source["time"]]
        grid.add_row("source", ", ".join(part for part in position if part))
    else:
        grid.add_row("source", "not read yet")
    grid.add_row("store", f"{store['transactions']} transactions, {human_bytes(store['bytes'])}")
    if (begins := store["begins"]) is not None:
        since = f", {begins['time']}" if begins["time"] else ""
        grid.add_row("begins", f"{begins['file']}:{begins['pos']}, {begins['reason']}{since}")
    elif not store["there"]:
        grid.add_row("begins", "no store in store.path")
    grid.add_row("complete until", store["complete_until"] or "not known")
    if (standby := document["standby"])["role"] != "none" or standby["term"] is not None:
        grid.add_row("standby", _role_text(standby))
    if retention["removed_until"] is not None:
        grid.add_row("removed until", _seq(retention["removed_until"]))
    if (disk := retention["disk"]) is not None:
        level = {"ok": "", "warn": ", filling up", "clean": ", too full", "stop": ", too full: nothing is written"}
        grid.add_row("disk", f"{disk['used_ratio']:.1%} used{level[disk['level']]}")
    console.print(grid, markup=False)
    if document["subscriptions"]:
        table = Table("subscriber", "lag", "behind", Column("outstanding", overflow="fold"), box=None, pad_edge=False)
        for known in document["subscriptions"]:
            behind = known["behind"]
            held = [f"{o['batch']} ({o['owner']}, until {o['expires']})" for o in known["outstanding"]]
            table.add_row(
                known["name"],
                human_seconds(known["lag_s"]) if behind["transactions"] else "none",
                f"{behind['transactions']} transactions, {human_bytes(behind['bytes'])}",
                "; ".join(held) or "none",
            )
        console.print()
        console.print(table, markup=False)
        texts = [*alarms(document["subscriptions"]), *_gaps(document["subscriptions"], name)]
        for text in [*texts, *_parked(document["subscriptions"], name)]:
            console.print(text, markup=False, soft_wrap=True)
    if document["tables"]:
        table = Table(
            Column("table", overflow="fold"),
            "mode",
            "applied up to",
            "version",
            Column("", overflow="fold"),
            box=None,
            pad_edge=False,
        )
        for row in document["tables"]:
            table.add_row(
                row["table"], row["mode"], _seq(row["applied_seq"]), _text(row["delta_version"]), _remark(row)
            )
        console.print()
        console.print(table, markup=False)
    for one in document["snapshots"]:
        console.print(f"snapshot of {one['table']}: {_progress(one)}", markup=False, soft_wrap=True)


def _gaps(subscriptions: list[dict[str, Any]], name: str) -> list[str]:
    """Returns a sentence for each subscriber whose cursor is before the beginning, and for each accepted gap."""
    before = [
        f"Alarm: the store begins behind the cursor of {one['name']}, and lacks the transactions between the two. Put "
        f"back the store that has them, or accept the gap with `cdc batch accept-gap {name}`."
        for one in subscriptions
        if one["before_beginning"]
    ]
    return before + [
        f"{gap['table'] or one['name']} lacks the transactions after {gap['after_seq']} up to {gap['until_seq']}: "
        f"accepted on {gap['accepted']} ({gap['reason']})."
        for one in subscriptions
        for gap in one["gaps"]
    ]


def _parked(subscriptions: list[dict[str, Any]], name: str) -> list[str]:
    """Returns a sentence for each parked table."""
    ways = {
        "snapshot": f"`cdc snapshot {name}` brings it back.",
        "retry": "Each run tries it again.",
        "hold": f"`cdc replay {name} TABLE` brings it back.",
    }
    return [
        f"{one['table']} is left out since {one['since']}: {one['reason']} {ways[one['due']]}"
        for known in subscriptions
        for one in known["parked"]
    ]


def _progress(one: dict[str, Any]) -> str:
    """Returns a text like ``1,200,000 of about 5,000,000 rows, 80.0 MiB, 250,000 rows/s, 15 s left``."""
    if one["complete"]:
        return f"read: {one.get('rows', 0):,} rows, {human_bytes(one.get('bytes', 0))}; to be loaded"
    rows = f"{one.get('rows', 0):,} of about {max(one.get('estimated_rows', 0), one.get('rows', 0)):,} rows"
    left = one.get("left_s")
    rate = f"{one.get('rows_per_s', 0):,.0f} rows/s" + ("" if left is None else f", {human_seconds(left)} left")
    return f"{rows}, {human_bytes(one.get('bytes', 0))}, {rate}"


def _role_text(standby: dict[str, Any]) -> str:
    """Returns a text like ``sync_master, epoch 2: 10.0.0.7:51234, 12.0 KiB behind``."""
    text = standby["role"] + (f", epoch {standby['term']}" if standby["term"] is not None else "")
    if not standby["running"]:
        return f"{text}: not running"
    connected = [f"{p['address']}, {human_bytes(p['behind_bytes'])} behind" for p in standby["peers"] if p["connected"]]
    return f"{text}: {'; '.join(connected) or 'not connected'}"


def _remark(row: dict[str, Any]) -> str:
    from cdc.targets import PLAIN_READER

    reader = row["reader"]
    return row["note"] or (f"read it with {reader}" if reader not in (None, PLAIN_READER) else "")


def _text(value: Any) -> str:
    return "–" if value is None else str(value)


def _seq(seq: int | None) -> str:
    from cdc.positions import format_seq

    return "–" if seq is None else f"{seq} ({format_seq(seq)})"
