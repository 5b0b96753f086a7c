"""``cdc capture``: read the source into the store."""

from __future__ import annotations

from typing import Annotated

import typer

from cdc.commands import common
from cdc.units import human_bytes


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("capture")(capture)


def capture(
    ctx: typer.Context,
    dest: common.Destination = None,
    until_current: Annotated[
        bool, typer.Option("--until-current", help="End once the store has what the server had at the start.")
    ] = False,
    for_s: Annotated[float | None, typer.Option("--for", metavar="SECONDS", min=0, help="End after so long.")] = None,
) -> None:
    """Read the source into the store until stopped."""
    config = common.load(ctx, dest)

    import signal
    import threading
    from types import FrameType

    from cdc.capture import Capture
    from cdc.commands.capture_view import View

    stop = threading.Event()

    def end(signum: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    with View(config.name, common.err()) as view:
        counters = Capture(config, view.show).run(stop, for_s, until_current)
    common.say(
        f"{config.name}: {counters.transactions:,} transactions, {counters.events:,} events, "
        f"{human_bytes(counters.bytes)} into {config.store.path}"
    )
