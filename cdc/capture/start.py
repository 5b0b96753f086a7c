"""Where capture begins, and whether the server is still the one that the store came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import pymysql

from cdc.capture.cursor_proof import prove_cursor
from cdc.capture.proof import WAY_OUT, Proof, prove_source
from cdc.config import DestinationConfig, StartPosition
from cdc.errors import CdcError, ConfigError, IdentityError, SourceRefusedError
from cdc.log import get_logger
from cdc.meta import Meta, SourceIdentity
from cdc.meta.base import require_same_source
from cdc.positions import MAX_OFFSET, BinlogPosition, make_file_name, make_seq, split_file_name, split_seq
from cdc.source.preflight import check_start
from cdc.source.server import ServerInfo, binlog_files, clock_and_position, current_position, describe

Connection: TypeAlias = "pymysql.connections.Connection[Any]"

log = get_logger(__name__)

_MEND = "Write a position that SHOW BINARY LOGS and SHOW BINLOG EVENTS name, or start: earliest."


@dataclass(frozen=True)
class Start:
    """From where to read, under which identity."""

    position: BinlogPosition
    identity: SourceIdentity
    first: bool
    """Nothing has been captured before."""
    named: bool = True
    """The source's table maps name columns."""
    gtid: str | None = None
    """The source's GTID set at the position, where it could tell."""

    @property
    def seq(self) -> int:
        """The seq of the position: everything captured from here on has a larger one."""
        return make_seq(self.identity.epoch, self.position.file_number, min(self.position.pos, MAX_OFFSET))


@dataclass(frozen=True)
class _Found:
    """Where to read from, before it is known whether the server still has it."""

    info: ServerInfo
    position: BinlogPosition
    base: str
    epoch: int
    sizes: dict[str, int]


def find_start(config: DestinationConfig, conn: Connection, meta: Meta, last_seq: int | None) -> Start:
    """Go on behind ``last_seq``, or begin where the configuration says. Binds the server's identity to the meta, and
    proves that the server has the history that the store was captured from.
    Raises IdentityError, ConfigError, SourceRefusedError."""
    found = _find(config, conn, meta.source(), last_seq)
    if last_seq is None:  # before the server is bound, which may be the wrong one as much as the position
        _still_there(found.position, found.sizes, f"{conn.host}:{conn.port}", first=True)
    # Of an earlier place than now the server does not tell the GTID set.
    start_gtid = clock_and_position(conn).gtid if config.source.start == "now" else None
    identity = meta.bind_source(_identity(found, start_gtid))
    if last_seq is None:
        sizes, flavor = found.sizes, found.info.flavor
        proof = prove_cursor(config.source, conn, meta.read(), flavor=flavor, base_name=found.base, sizes=sizes)
    else:
        proof = _prove_store(config, conn, found)
    if proof.doubt is not None:
        log.warning(proof.doubt, source=f"{conn.host}:{conn.port}")
    elif proof.proved:
        log.debug("the source has the history of the store", proved=proof.proved)
    return Start(found.position, identity, last_seq is None, found.info.has_row_metadata, start_gtid)


def prove_start(config: DestinationConfig, conn: Connection, meta: Meta, last_seq: int) -> Proof:
    """What :func:`find_start` would find when capture goes on behind ``last_seq``; nothing is bound or changed. Raises
    what it raises."""
    known = meta.source()
    found = _find(config, conn, known, last_seq)
    if known is not None:
        require_same_source(known, _identity(found, None), meta.place)
    return _prove_store(config, conn, found)


def _find(config: DestinationConfig, conn: Connection, known: SourceIdentity | None, last_seq: int | None) -> _Found:
    info = describe(conn)
    files = binlog_files(conn)
    base = split_file_name(files[-1].name)[0]
    if last_seq is None:
        refused = check_start(config.source, info)
        if refused is not None:
            raise ConfigError(refused.message, place=str(config.file), remedy=refused.remedy)
        position = _configured(config, conn, [f.name for f in files])
        epoch = known.epoch if known else 0
    else:
        parts = split_seq(last_seq)
        epoch = parts.epoch
        position = BinlogPosition(make_file_name(known.base_name if known else base, parts.file_number), parts.offset)
    return _Found(info, position, base, epoch, {f.name: f.size_bytes for f in files})


def _identity(found: _Found, start_gtid: str | None) -> SourceIdentity:
    return SourceIdentity(
        server_uuid=found.info.server_uuid,
        flavor=found.info.flavor,
        base_name=found.base,
        epoch=found.epoch,
        start_gtid=start_gtid,
    )


def _prove_store(config: DestinationConfig, conn: Connection, found: _Found) -> Proof:
    """Prove that the server still has the position behind the store's end, and the history before it."""
    _still_there(found.position, found.sizes, f"{conn.host}:{conn.port}", first=False)
    return prove_source(config, conn, flavor=found.info.flavor, base_name=found.base, files=set(found.sizes))


def _configured(config: DestinationConfig, conn: Connection, files: list[str]) -> BinlogPosition:
    start = config.source.start
    if start == "earliest":
        return BinlogPosition(files[0], 4)
    if start == "now":
        return current_position(conn)
    if isinstance(start, StartPosition):
        return BinlogPosition(start.file, start.pos)
    raise ConfigError(
        f"source.start: {start} is not there yet",
        place=str(config.file),
        remedy="Use start: now, earliest (all that the server's binlogs still hold) or {file: …, pos: …}; "
        "before MySQL 8.0 and MariaDB 10.5 only now is possible.",
    )


def no_event_there(config: DestinationConfig, error: CdcError) -> ConfigError:
    """What it means that the very first thing read makes no sense."""
    return ConfigError(f"no transaction begins at source.start: {error.message}", place=str(config.file), remedy=_MEND)


def _still_there(position: BinlogPosition, sizes: dict[str, int], server: str, *, first: bool) -> None:
    place = f"source {server}"
    size = sizes.get(position.file)
    newest = max(sizes, key=lambda name: split_file_name(name)[1])
    if size is None and position.file_number > split_file_name(newest)[1]:
        if first:
            raise ConfigError(
                f"source.start names {position}, and the server's newest binlog is {newest}", place=place, remedy=_MEND
            )
        raise IdentityError(
            f"the server's history is not the one that the store was captured from. The store ends at {position}; the "
            f"server's newest binlog is {newest}",
            place=place,
            remedy=WAY_OUT,
        )
    if size is None and first:
        raise ConfigError(
            f"source.start names {position}, and the server has {min(sizes)} to {newest}", place=place, remedy=_MEND
        )
    if size is None:
        raise SourceRefusedError(
            f"the server no longer has {position.file}, which capture needs next (it has "
            f"{', '.join(sorted(sizes)[:1])} to {newest}): what was in it behind {position.pos} was purged",
            place=place,
            remedy="These changes cannot be read any more: start a new destination, and keep binlogs longer "
            "(binlog_expire_logs_seconds).",
        )
    if position.pos > size:
        raise (
            IdentityError(
                "the server's history is not the one that the store was captured from. The store ends at "
                f"{position}; the server's {position.file} has only {size} bytes",
                place=place,
                remedy=WAY_OUT,
            )
            if not first
            else ConfigError(
                f"source.start names {position}, and that file has {size} bytes", place=place, remedy=_MEND
            )
        )
