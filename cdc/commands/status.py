"""``cdc status``: where everything stands."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import typer

from cdc.commands.common import Destination, Json, human_bytes, human_seconds, load, print_json, tables

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.meta import State
    from cdc.store.reader import StoreReader


def register(app: typer.Typer) -> None:
    app.command()(status)


def status(ctx: typer.Context, dest: Destination = None, as_json: Json = False) -> None:
    """Positions, store, cursors, lag, outstanding batches, tables."""
    config = load(ctx, dest)
    document = collect(config)
    if as_json:
        print_json(document)
    else:
        _show(config.name, document)


def collect(config: DestinationConfig) -> dict[str, Any]:
    """The document of ``--json``. Raises DamagedError, VersionError and StorageError of store and meta."""
    from cdc.meta import open_meta
    from cdc.store.reader import StoreReader

    state = open_meta(config).read()
    reader = StoreReader(config.store.path, state.source.base_name) if state.source else StoreReader(config.store.path)
    capture, totals, first_seq, last_seq = (
        reader.capture_state(),
        reader.totals(),
        reader.first_seq(),
        reader.last_seq(),
    )
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
        },
        "subscriptions": _subscriptions(state, reader),
        "tables": _tables(config, reader, last_seq),
    }


def _subscriptions(state: State, reader: StoreReader) -> list[dict[str, Any]]:
    from cdc.commands.batch import plain

    found = []
    for name, known in sorted(state.subscriptions.items()):
        behind = reader.behind(known.acked_seq)
        oldest_us = behind.oldest_commit_time_us
        lag_s = 0.0 if oldest_us is None else max(0.0, round(time.time() - oldest_us / 1e6, 3))
        found.append(
            {
                "name": name,
                "acked_seq": known.acked_seq,
                "lag_s": lag_s,
                "behind": {"transactions": behind.transactions, "bytes": behind.bytes},
                "outstanding": [plain(entry) for entry in known.outstanding],
            }
        )
    return found


def _tables(config: DestinationConfig, reader: StoreReader, last_seq: int | None) -> list[dict[str, Any]]:
    from cdc.targets import TablePosition, read_position, split_table, table_path

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
        }
        for name, (path, position) in zip(names, positions, strict=True)
    ]


def _captured(config: DestinationConfig, reader: StoreReader, last_seq: int | None) -> list[str]:
    """The tables that capture knows: those of the newest schemas, and those that it met."""
    from cdc.source.schemas import Schemas
    from cdc.store.state import TableNumbers
    from cdc.targets import split_table

    names = set(TableNumbers(config.store.path).names)
    path = reader.schema_path(last_seq or 0)
    if path is not None:
        names.update(Schemas.load(path).tables)
    return sorted(name for name in names if config.tables.includes(*split_table(name)))


def _iso(time_us: int) -> str | None:
    from cdc.batches.lease import iso_time_us

    return iso_time_us(time_us) if time_us > 0 else None


def _show(name: str, document: dict[str, Any]) -> None:
    from rich.table import Column, Table

    capture, source, store = document["capture"], document["source"], document["store"]
    console = tables()
    running = f"running (process {capture['pid']})" if capture["running"] else "not running"
    if capture["running"]:
        running += ", connected" if capture["connected"] else ", not connected"
    grid = Table.grid("", Column(overflow="fold"), padding=(0, 2))
    grid.add_row("destination", name)
    grid.add_row("capture", running)
    if source["file"] is not None:
        place = [f"{source['file']}:{source['pos']}", source["gtid"], source["time"]]
        grid.add_row("source", ", ".join(part for part in place if part))
    else:
        grid.add_row("source", "not read yet")
    grid.add_row("store", f"{store['transactions']} transactions, {human_bytes(store['bytes'])}")
    grid.add_row("complete until", store["complete_until"] or "not known")
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
                row["table"], row["mode"], _seq(row["applied_seq"]), _text(row["delta_version"]), row["note"] or ""
            )
        console.print()
        console.print(table, markup=False)


def _text(value: Any) -> str:
    return "–" if value is None else str(value)


def _seq(seq: int | None) -> str:
    from cdc.positions import format_seq

    return "–" if seq is None else f"{seq} ({format_seq(seq)})"
