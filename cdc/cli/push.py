"""``cdc push``: sends the changes of a destination to Kafka until it is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cdc.base.errors import CdcError
from cdc.base.units import human_bytes
from cdc.canal.mq.pusher import Pusher
from cdc.cli import common
from cdc.watch.metrics.mq import served

if TYPE_CHECKING:
    from types import FrameType


def push(
    ctx: typer.Context,
    dest: common.Destination = None,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End once everything in the store is sent and acknowledged.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="Serve /metrics for Prometheus, and /health, at this port; 0: at any free one, which the log names.",
            show_default="mq.metrics_port",
        ),
    ] = None,
    json: common.Json = False,
) -> None:
    """Send the changes in the store to Kafka until stopped.

    SIGUSR1 prints the status as one line of JSON on standard output: how much was sent, how far the messages are
    acknowledged, and what is left.
    """
    config = common.load(ctx, dest)

    import signal
    import threading

    stop = threading.Event()

    def end(signum: int, frame: FrameType | None) -> None:
        stop.set()

    pusher = Pusher(config)
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    signal.signal(signal.SIGUSR1, lambda _signum, _frame: threading.Thread(target=_show, args=(pusher,)).start())
    with served(config, pusher, metrics_port):
        stats = pusher.run(stop, until_empty=until_empty)
    if json:
        common.print_json(pusher.status())
        return
    common.say(
        f"{config.name}: {stats.messages:,} messages with {stats.rows:,} rows, {human_bytes(stats.bytes)}, in "
        f"{stats.batches:,} batches"
    )


def _show(pusher: Pusher) -> None:
    """Prints the status of a push that goes on."""
    import sys

    try:
        common.print_json_line(pusher.status())
    except CdcError as error:
        common.say(f"no status: {error}")
    sys.stdout.flush()
