"""Queries about the source's history: when a binlog file was created, whether an event begins at a position, and which
GTIDs were executed.

Binlog files are read by anonymous short dumps, which do not disturb a running capture.
"""

from __future__ import annotations

import re

from cdc.base.errors import CdcError
from cdc.binlog.constants import MAGIC, EventType
from cdc.binlog.events import Header, parse_header
from cdc.binlog.gtids import GtidSet, format_state, parse_state, state_name
from cdc.binlog.positions import BinlogPosition
from cdc.config import SourceConfig
from cdc.source.binlog_files import BinlogFiles
from cdc.source.connection import query
from cdc.source.dump import DumpBytes, short_dump
from cdc.source.dump_errors import describe_dump_error
from cdc.source.server import Flavor, Source, parse_version, server_version, variables

_MARIADB_GTID = re.compile(r"(\d+)-(\d+)-(\d+)")


class NoEventAtPositionError(CdcError):
    """No event begins at a position, or the server refuses to send from it; the message says why."""


def file_created(source: SourceConfig, position: BinlogPosition) -> int:
    """Returns the Unix time in seconds at which the binlog file of ``position`` was created, as its format description
    says. Also checks that an event begins at the position or the file ends there.

    Raises NoEventAtPositionError if neither holds, SourceUnavailableError if the connection fails.
    """
    created = 0
    with short_dump(source, position) as dump:
        for _ in range(8):  # first come rotate and format description, each possibly followed by an artificial event
            head, size = _packet(dump)
            if head[:1] == b"\xff":
                text = head[3:].removeprefix(b"#HY000").decode("utf-8", "replace")
                raise NoEventAtPositionError(
                    f"{describe_dump_error(text)} (error {int.from_bytes(head[1:3], 'little')})"
                )
            if head[:1] == b"\xfe" and size < 9:
                return created  # the binlog ends at the position
            header = parse_header(head[1:])
            if header.type == EventType.FORMAT_DESCRIPTION:
                created = header.timestamp
                if position.pos <= len(MAGIC):
                    return created  # the format description is the event that begins there
            elif header.type == EventType.ROTATE and header.artificial:
                if created:
                    return created  # the file ends at the position, and the next one follows
            elif header.artificial or header.end_log_pos == 0 or header.type == EventType.HEARTBEAT:
                continue
            elif _begins_at(header, size - 1, position.pos):
                return created
            else:
                raise NoEventAtPositionError(
                    f"the first event that the server sends from there begins elsewhere (type {header.type}, "
                    f"{header.length} bytes, end position {header.end_log_pos})"
                )
    return created


def _begins_at(header: Header, sent: int, pos: int) -> bool:
    # A dump sends checksums if and only if the file has them, so the lengths agree.
    return header.length == sent and (header.end_log_pos - header.length) & 0xFFFFFFFF == pos & 0xFFFFFFFF


def _packet(dump: DumpBytes) -> tuple[bytes, int]:
    """Reads one packet. Returns the first 1024 bytes of its payload, and the payload's size."""
    head = _exactly(dump, 4)
    size = int.from_bytes(head[:3], "little")
    payload = _exactly(dump, min(size, 1024))
    left = size - len(payload)
    while left:
        left -= len(_exactly(dump, min(left, 1 << 16)))
    return payload, size


def _exactly(dump: DumpBytes, size: int) -> bytes:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        at += dump.recv_into(view[at:])
    return bytes(data)


def executed_gtids(conn: Source, flavor: Flavor) -> str | None:
    """Returns the GTIDs that the server has executed and logged; None if it does not use GTIDs.

    MySQL: ``gtid_executed``. MariaDB: ``gtid_binlog_state``, the last number of each pair of domain and server id. It
    does not show whether all earlier numbers existed, or what sessions with ``sql_log_bin=0`` did.
    """
    if isinstance(conn, BinlogFiles):
        executed = conn.executed_gtids(flavor)
        return None if executed is None else format_state(executed, flavor)
    if flavor == "mariadb":
        return variables(conn, ("gtid_binlog_state",)).get("gtid_binlog_state")
    values = variables(conn, ("gtid_mode", "gtid_executed"))
    if not values.get("gtid_mode", "OFF").upper().startswith("ON") and parse_version(server_version(conn)) < (5, 7):
        return None  # MySQL 5.6 maintains gtid_executed only while gtid_mode is on
    return "".join(values["gtid_executed"].split()) if "gtid_executed" in values else None


def purged_gtids(conn: Source) -> GtidSet:
    """Returns the GTIDs that MySQL has executed and its binlog does not have. Files in a folder name those of earlier
    files themselves."""
    if isinstance(conn, BinlogFiles):
        return GtidSet()
    return parse_state(variables(conn, ("gtid_purged",)).get("gtid_purged", ""), "mysql")


def has_executed(conn: Source, flavor: Flavor, gtid: str, executed: str) -> bool:
    """Whether ``gtid`` is in ``executed``, a set that :func:`executed_gtids` returned."""
    if isinstance(conn, BinlogFiles):
        return state_name(gtid, flavor) in parse_state(executed, flavor)
    if flavor == "mysql":
        return bool(query(conn, "SELECT GTID_SUBSET(%s, %s) AS there", (gtid, executed))[0]["there"])
    match = _MARIADB_GTID.fullmatch(gtid)
    if match is None:
        return False
    domain, server, number = match.groups()
    state = (_MARIADB_GTID.fullmatch(part.strip()) for part in executed.split(","))
    return any(m is not None and m[1] == domain and m[2] == server and int(m[3]) >= int(number) for m in state)
