"""Capture as the master of a standby: connects the configuration and the relay log with ``cdc.copies.standby``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.base.addresses import parse_address
from cdc.base.errors import UsageError
from cdc.base.log import get_logger
from cdc.config import DestinationConfig
from cdc.config.secrets import standby_secret
from cdc.copies.standby.master import Master
from cdc.copies.standby.role import become_master
from cdc.copies.standby.settings import MasterSettings
from cdc.store.writer.log import LogWriter

if TYPE_CHECKING:
    from cdc.copies.standby.master import Master

log = get_logger(__name__)


def require_no_standby(config: DestinationConfig) -> None:
    """Raises UsageError if this machine's store is a standby."""
    if config.store.standby.role == "standby":
        raise UsageError(
            "this store follows another one (store.standby.role: standby)",
            place=str(config.file),
            remedy="Run `cdc standby` on this machine. To take over after the master's capture has ended, stop "
            "`cdc standby`, set role to none, sync_master or async_master, and start `cdc capture`.",
        )


def start_master(config: DestinationConfig, store: LogWriter) -> Master | None:
    """Takes over the store if it was a standby, whatever the role says, and starts to listen for standbys if the role
    is a master's. Returns the running master, if any. Raises ConfigError, DamagedError."""
    standby = config.store.standby
    if standby.role not in ("sync_master", "async_master"):
        become_master(store.path, store.last_seq, always=False)
        return None
    # Imported here because it takes a while, and most captures have no standby.

    assert standby.listen is not None
    secret = standby_secret(standby)
    epoch = become_master(store.path, store.last_seq)
    assert epoch is not None
    master = Master(
        store.path,
        destination=config.name,
        epoch=epoch,
        settings=MasterSettings(
            listen=parse_address(standby.listen), role=standby.role, timeout_s=standby.timeout_s, secret=secret
        ),
    )
    store.on_moved.append(master.moved)
    return master


def finish_master(config: DestinationConfig, store: LogWriter, master: Master | None) -> None:
    """Waits at the end of capture until the standby of a synchronous master has everything, for at most
    ``standby.timeout_s``. Capture never waits while it reads, because what only the master has is still at the source.
    """
    if master is None or config.store.standby.role != "sync_master" or store.last_seq is None:
        return
    if not master.wait_until(store.flushed.seq, config.store.standby.timeout_s):
        log.warning(
            "capture ended before the standby had everything",
            last_seq=store.flushed.seq,
            waited_s=config.store.standby.timeout_s,
        )
