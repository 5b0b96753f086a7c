"""Accepts that a failover has lost transactions: the former server had them, capture has read them, and the new one
never got them.

The lake may have changes that the source does not have any more. So the tables that the lost transactions changed are
parked until a snapshot of them is taken, and capture goes on with the new server in a new epoch.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from cdc.base.errors import CdcError, LostTransactionsError, UsageError
from cdc.base.log import get_logger
from cdc.batches.parking import park
from cdc.batches.service import BatchService
from cdc.binlog.gtids import GtidSet, show_state
from cdc.capture.failover import find_move, move, store_gtids
from cdc.config import DestinationConfig
from cdc.meta import Meta, ParkedTable, SourceIdentity, open_meta
from cdc.source.connection import connect
from cdc.source.resume import find_resume
from cdc.source.server import describe
from cdc.store.formats.gtids import GtidCheckpoint, entries_with, gtids_of, write_checkpoint
from cdc.store.formats.state import StoreLock, TableNumbers
from cdc.store.reader.reader import StoreReader

log = get_logger(__name__)

_SUBSCRIBER = "apply"


@dataclass(frozen=True)
class ServerState:
    """Whether capture could go on with a server."""

    server: str
    state: str
    """``captured``, ``ready``, ``lost`` (it lacks transactions) or ``unusable``."""
    message: str
    lost: str | None = None


@dataclass(frozen=True)
class AcceptedLoss:
    """A failover whose losses were accepted."""

    server: str
    epoch: int
    lost: str
    transactions: int
    tables: tuple[str, ...]
    """The tables that wait for a snapshot."""


def examine_servers(config: DestinationConfig) -> list[ServerState]:
    """Returns the state of each server of the source, in the order of the configuration. Changes
    nothing. Raises UsageError if nothing was captured yet."""
    identity, last_seq = _captured(config, open_meta(config))
    return [_examine(config.at_server(server.address), identity, last_seq)[0] for server in config.source.servers()]


def accept_loss(config: DestinationConfig) -> AcceptedLoss:
    """Begins a new epoch with the first server that answers and lacks transactions of the store, and parks the tables
    that these transactions changed. Capture must not run.

    Raises UsageError if no server lacks any, or one can be captured without a loss; LeaseHeldError if capture runs.
    """
    meta = open_meta(config)
    identity, last_seq = _captured(config, meta)
    lock = StoreLock(config.store.path)
    try:
        states = [
            (server, *_examine(config.at_server(server.address), identity, last_seq))
            for server in config.source.servers()
        ]
        for _, state, _ in states:
            if state.state in ("captured", "ready"):
                raise UsageError(
                    f"nothing is lost: {state.server} {state.message}",
                    place=config.name,
                    remedy=f"Start `cdc capture {config.name}`.",
                )
        lossy_server = next(((source, error) for source, _, error in states if error is not None), None)
        if lossy_server is None:
            raise UsageError(
                "no server answers that lacks transactions of the store: "
                + "; ".join(f"{state.server} {state.message}" for _, state, _ in states),
                place=config.name,
            )
        source, error = lossy_server
        return _accept(config.at_server(source.address), meta, identity, last_seq, GtidSet(error.lost))
    finally:
        lock.release()


def _captured(config: DestinationConfig, meta: Meta) -> tuple[SourceIdentity, int]:
    identity = meta.source()
    reader = StoreReader(config.store.path)
    last_seq = reader.last_seq() if reader.exists() else None
    if identity is None or last_seq is None:
        raise UsageError("nothing was captured yet", place=config.name, remedy=f"Start `cdc capture {config.name}`.")
    return identity, last_seq


def _examine(
    config: DestinationConfig, identity: SourceIdentity, last_seq: int
) -> tuple[ServerState, LostTransactionsError | None]:
    server = config.source.address
    try:
        with connect(config.source) as conn:
            info = describe(conn)
            if find_move(config, conn, info, identity, last_seq) is not None:
                return ServerState(server, "ready", "has everything, and capture can move to it"), None
            if info.flavor != identity.flavor:
                return ServerState(server, "unusable", "is another product"), None
            return ServerState(server, "captured", "answers, and is the server that is captured"), None
    except LostTransactionsError as error:
        return ServerState(server, "lost", error.message, show_state(GtidSet(error.lost), identity.flavor)), error
    except CdcError as error:
        return ServerState(server, "unusable", error.message), None


def _accept(
    config: DestinationConfig, meta: Meta, captured: SourceIdentity, last_seq: int, lost: GtidSet
) -> AcceptedLoss:
    kept = store_gtids(config, captured, last_seq) - lost
    tables = _changed_by(config, captured, lost)
    now = datetime.now(UTC).replace(microsecond=0)
    shown = show_state(lost, captured.flavor)
    if tables and _SUBSCRIBER not in meta.subscriptions():
        BatchService(config).subscribe(_SUBSCRIBER)
    for table in tables:
        reason = f"A failover to {config.source.address} lost transactions that had changed the table: {shown}."
        park(meta, _SUBSCRIBER, table, ParkedTable(due="snapshot", reason=reason, since=now))
    with connect(config.source) as conn:
        resume = find_resume(config.source, conn, captured.flavor, kept)
        identity = move(config, describe(conn), meta, last_seq, kept, resume, lost)
    write_checkpoint(config.store.path, captured.flavor, GtidCheckpoint(last_seq, kept))
    log.warning("the loss of transactions is accepted", lost=shown, tables=list(tables))
    return AcceptedLoss(config.source.address, identity.epoch, shown, lost.count, tables)


def _changed_by(config: DestinationConfig, identity: SourceIdentity, lost: GtidSet) -> tuple[str, ...]:
    """Returns the tables that transactions changed: of all tables those that may be meant, if the store does not have
    all of the transactions any more."""
    numbers = TableNumbers(config.store.path)
    mask, gtids = 0, GtidSet()
    for entries in StoreReader(config.store.path).all_entries():
        lost_entries = entries_with(entries, lost, identity.flavor)
        gtids |= gtids_of(lost_entries, identity.flavor)
        for entry in lost_entries[lost_entries["length"] > 0]:
            mask |= int(entry["table_mask"])
    names = numbers.in_mask(mask) if lost <= gtids else tuple(numbers.names)
    return tuple(name for name in names if config.tables.includes(*name.split(".", 1)))
