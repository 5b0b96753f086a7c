"""``cdc archive``: the copy of a store in an object store, and the way back from it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cdc.base.errors import UsageError
from cdc.base.units import human_bytes, iso_time
from cdc.capture.replication import require_no_standby
from cdc.cli.common import Destination, Json, err, load, out, print_json, working
from cdc.config import DestinationConfig
from cdc.copies.archive.fetch import fetch as fetch_archive
from cdc.copies.archive.restore import restore as restore_archive
from cdc.copies.archive.states import Archive
from cdc.copies.archive.verify import verify as verify_archive
from cdc.copies.archive.writer import Archiver
from cdc.store.formats import layout

archive = typer.Typer(
    no_args_is_help=True, help="Copy the store to its archive by hand, verify it, and restore a store from it."
)


def _load(ctx: typer.Context, dest: str | None) -> DestinationConfig:
    """Loads a destination whose store is on this machine. Raises UsageError, ConfigError."""
    config = load(ctx, dest)
    if config.store.kind == "server":
        raise UsageError(
            "the archive belongs to the store, which another machine has (store.kind: server)",
            place=str(config.file),
            remedy="Do this where `cdc server` runs, with the configuration there.",
        )
    return config


@archive.command()
def upload(ctx: typer.Context, dest: Destination = None, as_json: Json = False) -> None:
    """Copy finished segments and the meta to the archive now; capture does it by itself."""
    config = _load(ctx, dest)
    require_no_standby(config)
    with working("Copying …"):
        record = Archiver(config).run(everything=True)
    if as_json:
        print_json({"state": record.number, "segments": record.segments, "archived_seq": record.archived_seq or None})
    else:
        out().print(
            f"The archive has {record.segments} segments of {config.name}, {human_bytes(record.bytes)}, as of state "
            f"{record.number}.",
            markup=False,
        )


@archive.command()
def show(ctx: typer.Context, dest: Destination = None, as_json: Json = False) -> None:
    """Show what the archive has, and who writes it."""
    config = _load(ctx, dest)
    archive = Archive(config)
    newest = archive.newest()
    document: dict[str, Any] = {"destination": config.name, "uri": archive.uri, "state": None}
    if newest is not None:
        state = newest.state
        document |= {
            "state": state.number,
            "time": iso_time(state.time),
            "writer": {**state.writer.model_dump(mode="json"), "since": iso_time(state.writer.since)},
            **state.totals.model_dump(),
            "gaps": [segment.name for segment in newest.segments if segment.gap],
        }
    if as_json:
        print_json(document)
    elif newest is None:
        out().print(f"{archive.uri} is empty.", markup=False)
    else:
        _show(document)


def _show(state: dict[str, Any]) -> None:
    writer = state["writer"]
    extent = f"after {state['first_seq']} up to {state['last_seq']}"
    lines = [
        f"{state['uri']}, state {state['state']} of {state['time']}",
        f"{state['segments']} segments, {human_bytes(state['bytes'])}, {extent}",
        f"written by the store of {writer['host']} since {writer['since']} ({writer['how']})",
    ]
    lines += [f"transactions before the segment {name} are missing" for name in state["gaps"]]
    for line in lines:
        out().print(line, markup=False)


@archive.command()
def verify(ctx: typer.Context, dest: Destination = None, as_json: Json = False) -> None:
    """Read every object of the archive, and compare it with its checksum. Exit code 2: something is missing or
    damaged."""
    config = _load(ctx, dest)
    with working("Reading the archive …"):
        report = verify_archive(Archive(config))
    if as_json:
        print_json({"destination": config.name, "ok": not report.faults, **report.as_dict()})
    else:
        for fault in report.faults:
            out().print(fault, markup=False)
        verdict = f"{len(report.faults)} of them are missing or damaged" if report.faults else "all are sound"
        out().print(f"{report.objects} objects, {human_bytes(report.bytes)}: {verdict}.", markup=False)
    raise typer.Exit(2 if report.faults else 0)


@archive.command()
def claim(ctx: typer.Context, dest: Destination = None, as_json: Json = False) -> None:
    """Let this machine's store write to the archive, and no other one: after a copy or a move, or if the archive is not
    the one that the store knows."""
    config = _load(ctx, dest)
    require_no_standby(config)
    if not layout.exists(config.store.path):
        raise UsageError(
            "there is no store here that could write to the archive",
            place=str(config.store.path),
            remedy="Run `cdc archive restore` to make one from the archive, or start `cdc capture`.",
        )
    record = Archiver(config).claim()
    if as_json:
        print_json({"state": record.number})
    else:
        out().print(f"The store of {config.name} on this machine writes to {record.uri} from now on.", markup=False)


@archive.command()
def restore(
    ctx: typer.Context,
    dest: Destination = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Restore all segments, not only those that the store had; retention removes them."),
    ] = False,
    drill: Annotated[
        bool,
        typer.Option(
            "--drill", help="Leave the archive to the store that writes it; the restored one does not copy to it."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Make the store, and the meta if there is none, from the archive, on a machine that has no store.

    Capture then goes on with what the source has after the archive's end. A restore that was killed is repeated by the
    same command.
    """

    config = _load(ctx, dest)
    require_no_standby(config)
    console = err()
    with console.status("Restoring …") as status:

        def show(done: int, total: int) -> None:
            status.update(f"Restoring … {human_bytes(done)} of {human_bytes(total)}")

        restored = restore_archive(config, everything=everything, claim=not drill, progress=show)
    if as_json:
        print_json(restored)
        return
    out().print(
        f"{restored.segments} segments, {human_bytes(restored.bytes)}, up to {restored.last_seq}, as of "
        f"{restored.time}. The meta was {restored.meta}.",
        markup=False,
    )
    if restored.writer:
        out().print(f"Go on with `cdc capture {config.name}`.", markup=False)
    else:
        out().print("This is a drill: capture of this store does not copy to the archive.", markup=False)


@archive.command()
def fetch(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="A new folder.", show_default=False)],
    dest: Destination = None,
    from_seq: Annotated[
        int, typer.Option("--from", metavar="SEQ", min=0, help="From this _seq on.", show_default=False)
    ] = 0,
    to_seq: Annotated[
        int | None, typer.Option("--to", metavar="SEQ", min=0, help="Up to this _seq.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Copy a range of the archive to a folder, whole segments at a time, for `cdc decode` and `cdc inspect`."""

    config = _load(ctx, dest)
    with working("Copying …"):
        fetched = fetch_archive(config, folder, from_seq, to_seq)
    if as_json:
        print_json(fetched)
    else:
        out().print(f"{fetched.segments} segments, {human_bytes(fetched.bytes)}, are in {fetched.path}.", markup=False)
