"""``cdc status``: positions, store, cursors, lag, outstanding batches and tables of a destination."""

from __future__ import annotations

from typing import Any

import typer

from cdc.base.targets import PLAIN_READER
from cdc.base.units import human_bytes, human_seconds
from cdc.batches.results import in_brackets, phases_text
from cdc.binlog.positions import format_seq
from cdc.cli.common import Destination, Json, load, one_line, print_json, tables
from cdc.config.memory import in_memory
from cdc.lake import groups
from cdc.watch.last_merges import merge_text, run_text
from cdc.watch.status import (
    alarms,
    archive_sentences,
    collect,
    failover_sentences,
    gap_sentences,
    lag_text,
    parked_sentences,
    prepared_sentences,
    small_files_text,
)


def status(ctx: typer.Context, dest: Destination = None, as_json: Json = False) -> None:
    """Show positions, store, cursors, lag, outstanding batches and tables."""
    config = in_memory(load(ctx, dest))  # the memory of a server on this machine can be read, too
    document = collect(config, group=True)
    if as_json:
        print_json(document)
    else:
        _show(config.name, document)


def _show(name: str, document: dict[str, Any]) -> None:
    from rich.table import Column, Table

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
    if source["folder"] is not None:
        grid.add_row("", f"binlog files in {source['folder']}; times are those of their events")
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
    sentences = [*failover_sentences(document["source"]), *archive_sentences(document["archive"])]
    sentences += groups.sentences(document["group"])
    for text in [*sentences, *prepared_sentences(document["store"]["prepared"])]:
        console.print(one_line(text), markup=False, soft_wrap=True)
    if document["subscriptions"]:
        table = Table("subscriber", "lag", "behind", Column("outstanding", overflow="fold"), box=None, pad_edge=False)
        for subscription in document["subscriptions"]:
            behind = subscription["behind"]
            held = [f"{o['batch']} ({o['owner']}, until {o['expires']})" for o in subscription["outstanding"]]
            table.add_row(
                subscription["name"],
                human_seconds(subscription["lag_s"]) if behind["transactions"] else "none",
                f"{behind['transactions']} transactions, {human_bytes(behind['bytes'])}",
                "; ".join(held) or "none",
            )
        console.print()
        console.print(table, markup=False)
        texts = [*alarms(document["subscriptions"]), *gap_sentences(document["subscriptions"], name)]
        for text in [*texts, *parked_sentences(document["subscriptions"], name)]:
            console.print(one_line(text), markup=False, soft_wrap=True)
    if document["manifests_error"] is not None:
        console.print(one_line(document["manifests_error"]), markup=False, soft_wrap=True)
    if (run := document["last_run"]) is not None:
        console.print()
        console.print(one_line(f"last run: {run_text(run)}, acked {run['acked']}"), markup=False, soft_wrap=True)
    group = document["group"]
    if document["tables"]:
        table = Table(
            Column("table", overflow="fold"),
            "mode",
            "applied up to",
            "as of",
            "lag",
            "version",
            "last merge",
            Column("", overflow="fold"),
            box=None,
            pad_edge=False,
        )
        for row in document["tables"]:
            seq, version = _seq(row["applied_seq"]), _text(row["delta_version"])
            table.add_row(
                one_line(row["table"]),
                row["mode"],
                seq,
                row["applied_time"] or "–",
                lag_text(row),
                version,
                _last_merge(row["last_merge"]),
                one_line(_remark(row, group, name)),
            )
        console.print()
        console.print(table, markup=False)
    for reading in document["snapshots"]:
        console.print(f"snapshot of {one_line(reading['table'])}: {_progress(reading)}", markup=False, soft_wrap=True)


def _last_merge(merge: dict[str, Any] | None) -> str:
    """Returns a text like ``1,203 inserted, 317 updated, 0 deleted, 2.1 s (read 0.3 s, merge 1.8 s)``."""
    if merge is None:
        return "–"
    return merge_text(merge) + in_brackets(phases_text(merge["phases"]))


def _progress(reading: dict[str, Any]) -> str:
    """Returns a text like ``1,200,000 of about 5,000,000 rows, 80.0 MiB, 250,000 rows/s, 15 s left``."""
    if reading["complete"]:
        return f"read: {reading.get('rows', 0):,} rows, {human_bytes(reading.get('bytes', 0))}; to be loaded"
    rows = f"{reading.get('rows', 0):,} of about {max(reading.get('estimated_rows', 0), reading.get('rows', 0)):,} rows"
    left = reading.get("left_s")
    rate = f"{reading.get('rows_per_s', 0):,.0f} rows/s" + ("" if left is None else f", {human_seconds(left)} left")
    return f"{rows}, {human_bytes(reading.get('bytes', 0))}, {rate}"


def _role_text(standby: dict[str, Any]) -> str:
    """Returns a text like ``sync_master, epoch 2: 10.0.0.7:51234, 12.0 KiB behind``."""
    text = standby["role"] + (f", epoch {standby['term']}" if standby["term"] is not None else "")
    if not standby["running"]:
        return f"{text}: not running"
    connected = [f"{p['address']}, {human_bytes(p['behind_bytes'])} behind" for p in standby["peers"] if p["connected"]]
    return f"{text}: {'; '.join(connected) or 'not connected'}"


def _remark(row: dict[str, Any], group: dict[str, Any] | None, name: str) -> str:
    reader = row["reader"]
    members = [] if group is None else group["tables"].get(row["table"], [])
    texts = [
        row["note"] or small_files_text(row, name),
        f"rows of {', '.join(members)}" if members else "",
        f"in the Delta table {row['lake_table']}" if row["lake_table"] else "",
        f"read it with {reader}" if reader not in (None, PLAIN_READER) else "",
    ]
    return "; ".join(text for text in texts if text)


def _text(value: Any) -> str:
    return "–" if value is None else str(value)


def _seq(seq: int | None) -> str:
    return "–" if seq is None else f"{seq} ({format_seq(seq)})"
