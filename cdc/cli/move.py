"""``cdc move``: moves a store to another folder or machine, and verifies it there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cdc.base.errors import UsageError
from cdc.base.units import human_bytes
from cdc.cli.common import Json, err, load, out, print_json
from cdc.config import DestinationConfig, as_named
from cdc.lifecycle.move.link import Link, serve
from cdc.lifecycle.move.receiver import Proof, Receiver, Receives, describe
from cdc.lifecycle.move.sender import Moved, Sender, at


def move(
    ctx: typer.Context,
    dest: Annotated[str, typer.Argument(metavar="DEST", help="Name of the destination.", show_default=False)],
    to: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="New folder of the store, on this machine.", show_default=False),
    ] = None,
    meta: Annotated[
        Path | None,
        typer.Option(
            "--meta", metavar="FOLDER", help="New folder of the meta; else it stays where it is.", show_default=False
        ),
    ] = None,
    through: Annotated[
        str | None,
        typer.Option(
            "--through",
            metavar="COMMAND",
            help="Instead of FOLDER: a command that runs cdc on another machine, like 'ssh new.example cdc --conf-dir "
            "/srv/towpath/conf'. Store and meta go where the configuration there says.",
            show_default=False,
        ),
    ] = None,
    receive: Annotated[bool, typer.Option("--receive", hidden=True)] = False,
    as_json: Json = False,
) -> None:
    """Move a store to another folder or another machine, and verify it there.

    Copies every file, reads it again there, compares checksums, verifies every transaction, and says where capture goes
    on. Then the old store is taken out of use: whatever still runs with it is refused. It is not removed. Capture must
    be stopped, and no batch be outstanding. Call it again after an interruption; what was copied is not copied again.
    """
    config = load(ctx, dest)
    if receive:
        serve(lambda: _receiver(config), sys.stdin.buffer, sys.stdout.buffer)
        return
    if (to is None) == (through is None):
        raise UsageError("one of FOLDER and --through must be given", remedy="See `cdc move --help`.")
    if through is not None and meta is not None:
        raise UsageError(
            "--meta and --through contradict each other",
            remedy="Set meta.path in the configuration of the other machine.",
        )
    new: DestinationConfig | None = None
    if to is not None:
        new = at(config, as_named(to), None if meta is None else as_named(meta))
    sender = Sender(config, meta=through is not None or meta is not None)
    receiver: Receives = Link(through, dest) if through is not None else Receiver(_given(new), meta=meta is not None)
    console = err()
    try:
        with console.status("Copying …") as status:

            def show(done: int, total: int) -> None:
                status.update(f"Copying … {human_bytes(done)} of {human_bytes(total)}")

            moved = sender.run(receiver, show)
    finally:
        receiver.close()
    if as_json:
        print_json(_document(config, moved, new))
    else:
        _show(config, moved, new, meta)


def _given(config: DestinationConfig | None) -> DestinationConfig:
    assert config is not None
    return config


def _receiver(config: DestinationConfig) -> Receiver:
    if config.store.kind != "file" or config.store.standby.role == "standby" or config.server.ha.enabled:
        raise UsageError(
            "the configuration there must have store.kind: file, and neither server.ha nor store.standby.role: standby",
            place=str(config.file),
        )
    return Receiver(config, meta=True)


def _document(config: DestinationConfig, moved: Moved, new: DestinationConfig | None) -> dict[str, Any]:
    return {
        "destination": config.name,
        "from": str(config.store.path),
        "to": moved.to,
        "store_path": None if new is None else str(new.store.path),
        "meta_path": None if new is None else str(new.meta.path),
        **({} if moved.proof is None else describe(moved.proof)),
    }


def _show(config: DestinationConfig, moved: Moved, new: DestinationConfig | None, meta: Path | None) -> None:
    lines = [f"The store of {config.name} is {moved.to}."]
    if moved.proof is not None:
        lines += _proved(moved.proof)
    if new is not None:
        lines.append(f"Set in {config.file}:  store.path: {new.store.path}")
        if meta is not None:
            lines.append(f"Set in {config.file}:  meta.path: {new.meta.path}")
        lines.append(f"Then: cdc check {config.name} && cdc capture {config.name}")
    else:
        lines.append(f"There: cdc check {config.name} && cdc capture {config.name}. Disable its services here.")
    lines.append(f"{config.store.path} is out of use; remove it when the new store has been used for a while.")
    for line in lines:
        out().print(line, markup=False)


def _proved(proof: Proof) -> list[str]:
    size = human_bytes(sum(file.bytes for file in proof.files))
    counted = f"{proof.transactions:,} transactions in {proof.segments} segments"
    lines = [f"{len(proof.files)} files, {size}, are equal by SHA-256; {counted} are sound."]
    if proof.continues_at:
        lines.append(f"Capture goes on at {proof.continues_at} (seq {proof.last_seq}).")
    return lines
