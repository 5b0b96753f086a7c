"""The position where capture begins reading, and the checks before it does: the server still has the binlog that comes
next, and its history is the one that the store was captured from."""

from __future__ import annotations

from dataclasses import dataclass

from cdc.base.errors import CdcError, ConfigError, DamagedError, IdentityError, SourceRefusedError
from cdc.base.log import get_logger
from cdc.binlog.positions import MAX_OFFSET, BinlogPosition, make_file_name, make_seq, split_file_name, split_seq
from cdc.capture.failover import Overlap, begin_epoch, needs_failover, prove_failover
from cdc.capture.own_store import find_begin
from cdc.capture.proof import REMEDY, Proof, prove_acked, prove_mark, prove_store
from cdc.capture.sink import Sink
from cdc.config import DestinationConfig, StartGtid, StartOffsets, StartPosition, StartTime
from cdc.meta import Meta, SourceIdentity
from cdc.meta.base import require_same_source
from cdc.source.binlog_files import BinlogFiles
from cdc.source.connection import server_of
from cdc.source.locate import Located, after_gtid_position, after_gtid_set, at_time, in_transaction
from cdc.source.other_offsets import read_other_offset
from cdc.source.resume import Resume
from cdc.source.server import ServerInfo, Source, binlog_files, clock_and_position, current_position, describe

log = get_logger(__name__)

_CHOOSE_POSITION = "Write a position that SHOW BINARY LOGS and SHOW BINLOG EVENTS list, or start: earliest."


@dataclass(frozen=True)
class Start:
    """The position to read from, and the identity of the source."""

    position: BinlogPosition
    identity: SourceIdentity
    first: bool
    """Whether the store is empty."""
    named: bool = True
    """Whether the source's table maps name columns."""
    gtid: str | None = None
    """The source's GTID set at the position, if known."""
    overlap: Overlap | None = None
    """Transactions after the position that the store has already, after a failover."""

    @property
    def seq(self) -> int:
        """The seq of the position. Everything captured from here on has a larger one."""
        return make_seq(self.identity.epoch, self.position.file_number, min(self.position.pos, MAX_OFFSET))


@dataclass(frozen=True)
class _Candidate:
    """A start position, before the checks."""

    info: ServerInfo
    position: BinlogPosition
    base: str
    epoch: int
    sizes: dict[str, int]
    """Sizes in bytes of the server's binlog files, by name."""
    gtid: str | None = None
    """The GTID set before the position, if ``source.start`` has led to it."""

    @property
    def seq(self) -> int:
        return make_seq(self.epoch, self.position.file_number, min(self.position.pos, MAX_OFFSET))

    def identity(self, start_gtid: str | None) -> SourceIdentity:
        return SourceIdentity(
            server_uuid=self.info.server_uuid,
            flavor=self.info.flavor,
            base_name=self.base,
            epoch=self.epoch,
            start_gtid=start_gtid,
        )


def find_start(
    config: DestinationConfig,
    conn: Source,
    meta: Meta,
    last_seq: int | None,
    resume: Resume | None = None,
    sink: Sink | None = None,
) -> Start:
    """Returns the position after ``last_seq``. If the store is empty (``last_seq`` is None), it is the configured one;
    that of the oldest reader, if the store is in memory, or one of several.

    Binds the server's identity to the meta, and checks that the server has the history that was captured and acked. If
    another server answers, begins a new epoch with it, at the position that GTIDs tell: ``resume``, if that is known.
    ``sink``: where a program's capture writes, which says where it begins, and how its end is recognised.

    Raises IdentityError, ConfigError, SourceRefusedError; after a failover also SourceUnavailableError (the server may
    still get transactions that it lacks) and LostTransactionsError.
    """
    info = describe(conn)
    captured = meta.source()
    has_others = config.server.ha.enabled
    if has_others:
        _require_same_server(info, captured)
    moved = None if last_seq is None else begin_epoch(config, conn, info, meta, last_seq, resume)
    if moved is not None and moved.began is not None:
        position = BinlogPosition(moved.began.file, moved.began.pos)
        return Start(position, moved, False, info.names_columns, moved.start_gtid, Overlap.of(moved))
    begin = None
    if last_seq is None and sink is not None:
        begin = sink.begin_seq
    elif last_seq is None and (has_others or config.store.in_memory):
        begin = find_begin(meta.read(), conn, in_memory=config.store.in_memory)
    candidate = _locate(config, conn, info, captured, last_seq if begin is None else begin)
    if last_seq is None:  # before the identity is bound: a wrong position may mean a wrong server
        _require_available(candidate.position, candidate.sizes, conn, first=begin is None)
    # Of other positions than the present one, the GTID set is known only if the start was found by GTIDs.
    is_now = begin is None and config.source.start in ("now", "snapshot")
    start_gtid = clock_and_position(conn).gtid if is_now else candidate.gtid
    bound = candidate.identity(start_gtid)
    if has_others and captured is None:
        bound = bound.model_copy(update={"begins_seq": candidate.seq})
    identity = meta.bind_source(bound)
    if last_seq is None:
        flavor = candidate.info.flavor
        proof = prove_acked(
            config.source, conn, meta.read(), flavor=flavor, base_name=candidate.base, sizes=candidate.sizes
        )
    elif sink is not None and (mark := sink.newest()) is not None:
        _require_available(candidate.position, candidate.sizes, conn, first=False)
        place = candidate.base, candidate.sizes
        proof = prove_mark(config.source, conn, mark, candidate.info.flavor, *place, epoch=candidate.epoch)
    else:
        proof = _prove_store(config, conn, candidate)
    if proof.doubt is not None:
        log.warning(proof.doubt, source=server_of(conn))
    elif proof.proved:
        log.debug("the source has the history of the store", proved=proof.proved)
    overlap = Overlap.of(identity)
    return Start(candidate.position, identity, last_seq is None, candidate.info.names_columns, start_gtid, overlap)


def _require_same_server(info: ServerInfo, identity: SourceIdentity | None) -> None:
    """Raises IdentityError if the source is another server than before: the stores of several servers (``server.ha``)
    would not agree on the transactions after which the new one takes its place."""
    if identity is None or info.server_uuid == identity.server_uuid:
        return
    raise IdentityError(
        f"another source answers (server_uuid {info.server_uuid}) than the one that was captured "
        f"({identity.server_uuid}), and with server.ha capture does not move to another one",
        remedy="Connect to the former one. If it is gone: stop all servers but the one whose store ends last, remove "
        "server.ha from its configuration, let `cdc capture` move, and let all readers ack up to the move. Then add "
        "server.ha again.",
    )


def prove_start(config: DestinationConfig, conn: Source, meta: Meta, last_seq: int) -> tuple[Proof, BinlogPosition]:
    """Makes the checks of :func:`find_start` for a store that ends at ``last_seq``, without changing anything.
    Returns the position behind the store too. Raises what :func:`find_start` raises."""
    identity = meta.source()
    info = describe(conn)
    if identity is not None and not isinstance(conn, BinlogFiles) and needs_failover(info, identity, last_seq):
        return prove_failover(config, conn, info, identity, last_seq)
    candidate = _locate(config, conn, info, identity, last_seq)
    if identity is not None:
        require_same_source(identity, candidate.identity(None), meta.place)
    return _prove_store(config, conn, candidate), candidate.position


def _locate(
    config: DestinationConfig, conn: Source, info: ServerInfo, identity: SourceIdentity | None, last_seq: int | None
) -> _Candidate:
    files = binlog_files(conn)
    base = split_file_name(files[-1].name)[0]
    if last_seq is None:
        located = _configured(config, conn, [f.name for f in files])
        position, gtid = located.position, located.gtid
        files = binlog_files(conn)  # again: the server may have written on, up to the end that was located
        epoch = identity.epoch if identity else 0
    else:
        gtid = None
        parts = split_seq(last_seq)
        epoch = parts.epoch
        position = BinlogPosition(
            make_file_name(identity.base_name if identity else base, parts.file_number), parts.offset
        )
    return _Candidate(info, position, base, epoch, {f.name: f.size_bytes for f in files}, gtid)


def _prove_store(config: DestinationConfig, conn: Source, candidate: _Candidate) -> Proof:
    """Checks that the server has the binlog after the store's end, and the history before it."""
    _require_available(candidate.position, candidate.sizes, conn, first=False)
    return prove_store(config, conn, flavor=candidate.info.flavor, base_name=candidate.base, files=set(candidate.sizes))


def _configured(config: DestinationConfig, conn: Source, files: list[str]) -> Located:
    source = config.source
    start = source.start
    if start == "earliest":
        return Located(BinlogPosition(files[0], 4))
    if isinstance(start, StartPosition):
        return Located(BinlogPosition(start.file, start.pos))
    if isinstance(start, StartTime):
        return _logged(start, at_time(source, conn, files, start.time))
    if isinstance(start, StartOffsets):
        offset = read_other_offset(start.offsets)
        log.info("capture begins where another tool has stopped", tool=offset.tool, file=offset.file, pos=offset.pos)
        if offset.gtids is None:
            return _logged(start, in_transaction(source, conn, files, BinlogPosition(offset.file, offset.pos)))
        start = _of_gtids(offset.gtids, describe(conn).flavor, str(start.offsets))
    if isinstance(start, StartGtid) and describe(conn).flavor == "mariadb":
        return _logged(start, after_gtid_position(source, conn, files, start.mariadb))
    if isinstance(start, StartGtid):
        return _logged(start, after_gtid_set(source, conn, files, start.mysql))
    return Located(current_position(conn))  # now; and snapshot, which reads the tables once capture runs


def _of_gtids(gtids: str, flavor: str, place: str) -> StartGtid:
    """Returns the start at another tool's GTIDs. Raises ConfigError if they are not of such a server."""
    start = StartGtid(gtid=gtids)
    try:
        _ = start.mariadb if flavor == "mariadb" else start.mysql
    except DamagedError as error:
        raise ConfigError(
            f"source.start.offsets has GTIDs of another server: {error.message}",
            place=place,
            remedy="Take the offsets of a connector of this server, or write file and position.",
        ) from error
    return start


def _logged(start: StartGtid | StartTime | StartOffsets, located: Located) -> Located:
    match start:
        case StartGtid():
            configured = start.gtid
        case StartTime():
            configured = start.time.isoformat()
        case StartOffsets():
            configured = str(start.offsets)
    log.info("found the position of source.start", start=configured, position=str(located.position))
    return located


def no_event_at_start(config: DestinationConfig, error: CdcError) -> ConfigError:
    """Returns the error for a configured start position at which the server's stream is not a sequence of events."""
    return ConfigError(
        f"no transaction begins at source.start: {error.message}", place=str(config.file), remedy=_CHOOSE_POSITION
    )


def _require_available(position: BinlogPosition, sizes: dict[str, int], conn: Source, *, first: bool) -> None:
    """Raises ConfigError (if ``first``), IdentityError or SourceRefusedError unless the server's files contain the
    position. ``sizes`` are those of its files."""
    place = f"source {server_of(conn)}"
    if isinstance(conn, BinlogFiles):
        conn.require(position, first=first)
        return
    size = sizes.get(position.file)
    newest = max(sizes, key=lambda name: split_file_name(name)[1])
    if size is not None and position.pos <= size:
        return
    is_ahead = size is None and position.file_number > split_file_name(newest)[1]
    if first:
        if is_ahead:
            server_has = f"the server's newest binlog is {newest}"
        elif size is None:
            server_has = f"the server has {min(sizes)} to {newest}"
        else:
            server_has = f"that file has {size} bytes"
        raise ConfigError(
            f"source.start names {position}, and {server_has}",
            place=place,
            remedy=_CHOOSE_POSITION,
        )
    if size is None and not is_ahead:
        raise SourceRefusedError(
            f"the server no longer has {position.file}, which capture needs next from position {position.pos} on: it "
            f"was purged (the server has {', '.join(sorted(sizes)[:1])} to {newest})",
            place=place,
            remedy="The changes in it are lost to this destination. Start a new destination, and keep binlogs longer "
            "(binlog_expire_logs_seconds).",
        )
    server_has = f"newest binlog is {newest}" if size is None else f"{position.file} has only {size} bytes"
    raise IdentityError(
        "the server's history is not the one that the store was captured from. The store ends at "
        f"{position}; the server's {server_has}",
        place=place,
        remedy=REMEDY,
    )
