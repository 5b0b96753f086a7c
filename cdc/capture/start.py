"""Where capture begins, and whether the server is still the one that the store came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import pymysql

from cdc.config import DestinationConfig, StartPosition
from cdc.errors import CdcError, ConfigError, IdentityError, SourceRefusedError
from cdc.meta import Meta, SourceIdentity
from cdc.positions import MAX_OFFSET, BinlogPosition, make_file_name, make_seq, split_file_name, split_seq
from cdc.source.preflight import check_start
from cdc.source.server import binlog_files, clock_and_position, current_position, describe

Connection: TypeAlias = "pymysql.connections.Connection[Any]"

_MAX_DUMP_POS = 2**32 - 1
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


def find_start(config: DestinationConfig, conn: Connection, meta: Meta, last_seq: int | None) -> Start:
    """Go on behind ``last_seq``, or begin where the configuration says. Binds the server's identity to the meta.
    Raises IdentityError, ConfigError, SourceRefusedError."""
    info = describe(conn)
    files = binlog_files(conn)
    base = split_file_name(files[-1].name)[0]
    known = meta.source()
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
    sizes = {f.name: f.size_bytes for f in files}
    place = f"{conn.host}:{conn.port}"
    if last_seq is None:  # before the server is bound, which may be the wrong one as much as the position
        _still_there(position, sizes, place, first=True)
    # Of an earlier place than now the server does not tell the GTID set.
    start_gtid = clock_and_position(conn).gtid if config.source.start == "now" else None
    identity = meta.bind_source(
        SourceIdentity(
            server_uuid=info.server_uuid, flavor=info.flavor, base_name=base, epoch=epoch, start_gtid=start_gtid
        )
    )
    if position.pos > _MAX_DUMP_POS:
        # A dump request has 32 bits for the offset. Such a file ends with the transaction that made it so large.
        following = make_file_name(base, position.file_number + 1)
        position = BinlogPosition(following if following in sizes else position.file, 4)
    _still_there(position, sizes, place, first=last_seq is None)
    return Start(position, identity, last_seq is None, info.has_row_metadata, start_gtid)


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
            f"the server's binlogs end with {newest}, before {position}, which was read already: its history was reset",
            place=place,
            remedy="Start a new destination; going on with another history is not there yet.",
        )
    if size is None and first:
        raise ConfigError(
            f"source.start names {position}, and the server has {min(sizes)} to {newest}", place=place, remedy=_MEND
        )
    if size is None:
        raise SourceRefusedError(
            f"the server no longer has {position.file} (it has {', '.join(sorted(sizes)[:1])} to {newest})",
            place=place,
            remedy="What was in it cannot be read any more: start a new destination, and keep binlogs longer "
            "(binlog_expire_logs_seconds).",
        )
    if position.pos > size:
        raise (
            IdentityError(
                f"{position.file} has {size} bytes, and {position.pos} were read already:"
                " the server's history was reset",
                place=place,
                remedy="Start a new destination; going on with another history is not there yet.",
            )
            if not first
            else ConfigError(
                f"source.start names {position}, and that file has {size} bytes", place=place, remedy=_MEND
            )
        )
