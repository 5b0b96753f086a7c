"""Capture as the master of a standby: the hook between the configuration, the relay log and ``cdc.replication``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.config import DestinationConfig
from cdc.errors import UsageError
from cdc.log import get_logger
from cdc.replication.epoch import become_master
from cdc.store.writer.log import LogWriter

if TYPE_CHECKING:
    from cdc.replication.master import Master

log = get_logger(__name__)


def require_no_standby(config: DestinationConfig) -> None:
    """Raises UsageError where this machine's store follows another one."""
    if config.store.standby.role == "standby":
        raise UsageError(
            "the store here follows another one (store.standby.role: standby)",
            place=str(config.file),
            remedy="Run `cdc standby` here. To take over, once the master's capture has ended: stop `cdc standby`, set"
            " role to none, sync_master or async_master, and start `cdc capture`.",
        )


def start(config: DestinationConfig, store: LogWriter) -> Master | None:
    """Whoever opens the store of a standby for writing has taken over, whatever its role; a master listens from here
    on. Raises ConfigError, DamagedError."""
    standby = config.store.standby
    if standby.role not in ("sync_master", "async_master"):
        become_master(store.path, store.last_seq, always=False)
        return None
    # Its protocol takes a while to import, and most captures have no standby.
    from cdc.replication.master import Master
    from cdc.replication.settings import parse_address, read_secret

    assert standby.listen is not None
    secret = read_secret(standby.secret_env, standby.secret_file)
    term = become_master(store.path, store.last_seq)
    assert term is not None
    master = Master(
        store.path,
        destination=config.name,
        term=term,
        listen=parse_address(standby.listen),
        role="sync_master" if standby.role == "sync_master" else "async_master",
        timeout_s=standby.timeout_s,
        secret=secret,
    )
    store.on_moved.append(master.moved)
    return master


def finish(config: DestinationConfig, store: LogWriter, master: Master | None) -> None:
    """Capture ends in order: a synchronous master gives the standby its time to have everything, and says where it has
    not. Capture itself never waits while it reads: what only the master has is still at the source."""
    if master is None or config.store.standby.role != "sync_master" or store.last_seq is None:
        return
    if not master.wait_until(store.flushed.seq, config.store.standby.timeout_s):
        log.warning("capture ends before the standby has everything", last_seq=store.flushed.seq)
