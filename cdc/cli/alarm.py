"""``cdc alarm``: who is told of alarms, by a test, and which alarms are raised."""

from __future__ import annotations

from typing import Any

import typer

from cdc.base.errors import ConfigError, RetryableError
from cdc.base.units import iso_time
from cdc.cli.common import Destination, Json, load, out, print_json, tables, working
from cdc.config import DestinationConfig
from cdc.config.memory import in_memory
from cdc.watch.alarms.book import read_records
from cdc.watch.alarms.notice import Notice
from cdc.watch.alarms.watch import send_all

alarm = typer.Typer(no_args_is_help=True, help="Send a test alarm, and list the alarms that are raised.")


def _load(ctx: typer.Context, dest: str | None) -> DestinationConfig:
    """Loads a destination with alarms. Raises ConfigError."""
    config = in_memory(load(ctx, dest))
    if not config.alarms.handlers:
        raise ConfigError(
            "nobody is told of alarms",
            place=f"{config.file}: alarms",
            remedy="Add alarms: {webhook: {url: URL}}, {mail: {host: NAME, …}} or {command: [PROGRAM]}.",
        )
    return config


@alarm.command("test")
def send_test(ctx: typer.Context, dest: Destination = None, as_json: Json = False) -> None:
    """Send a test alarm through every handler, and report what became of it.

    Exit code 1 means that a handler has not taken it.
    """
    config = _load(ctx, dest)
    with working("Sending …"):
        summary = f"This is a test of the alarms of {config.name}."
        notice = Notice.once("test", config.name, "test", "warning", summary=summary, detail="Nothing is wrong.")
        reasons = send_all(config, notice)
    if as_json:
        print_json({"destination": config.name, "ok": not any(reasons.values()), "handlers": [
            {"handler": name, "ok": reason is None, "error": reason} for name, reason in reasons.items()
        ]})  # fmt: skip
    else:
        for name, reason in reasons.items():
            out().print(f"{name}: {'took it' if reason is None else reason}", markup=False)
    failed = [name for name, reason in reasons.items() if reason is not None]
    if failed:
        raise RetryableError(f"{' and '.join(failed)} did not take the test alarm", place=config.name)


@alarm.command("list")
def list_(ctx: typer.Context, dest: Destination = None, as_json: Json = False) -> None:
    """List the alarms that are raised, and how many messages each handler has taken."""
    from rich.table import Column, Table

    config = _load(ctx, dest)
    alarms: list[dict[str, Any]] = [
        {
            "alarm": record.alarm,
            "severity": record.severity,
            "summary": record.summary,
            "detail": record.detail,
            "subscriber": record.subscriber or None,
            "table": record.table or None,
            "since": iso_time(record.since),
            "messages": {
                name: record.handlers[name].messages for name in config.alarms.handlers if name in record.handlers
            },
        }
        for record in read_records(config.alarms_path)
        if record.raised is not None and record.resolved is None
    ]
    if as_json:
        print_json({"destination": config.name, "alarms": alarms})
        return
    if not alarms:
        out().print(f"{config.name}: no alarm is raised.", markup=False)
        return
    table = Table("alarm", "severity", "since", Column("", overflow="fold"), box=None, pad_edge=False)
    for alarm in alarms:
        table.add_row(alarm["alarm"], alarm["severity"], alarm["since"], alarm["summary"])
    tables().print(table, markup=False)
