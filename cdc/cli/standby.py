"""``cdc standby``: follow the store of a master on another machine."""

from __future__ import annotations

import typer

from cdc.base.addresses import parse_address
from cdc.base.errors import ConfigError
from cdc.cli.common import Destination, load, say
from cdc.config.secrets import standby_secret
from cdc.copies.standby.follower import Follower


def standby(ctx: typer.Context, dest: Destination = None) -> None:
    """Follow a master's store until stopped, so that this machine can take over."""
    config = load(ctx, dest)
    settings = config.store.standby
    if settings.role != "standby" or settings.master is None:
        raise ConfigError(
            f"store.standby.role is {settings.role}: this machine follows no master",
            place=str(config.file),
            remedy="Set role: standby and master: host:port (the master's standby.listen) there.",
        )

    import signal
    import threading
    from types import FrameType

    stop = threading.Event()

    def end(signum: int, frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    follower = Follower(
        config.store.path,
        destination=config.name,
        master=parse_address(settings.master),
        secret=standby_secret(settings),
        segment_bytes=config.store.segment_bytes,
        permissions=config.store.permissions,
    )
    follower.run(stop)
    say(f"{config.name}: the standby has everything up to {follower.last_seq}")
