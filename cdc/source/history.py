"""Reading a little of the source's history again, beside the capture: short dumps, and the GTIDs that it has.

The dumps are anonymous, so that they do not disturb a running capture, and end where the binlog ends.
"""

from __future__ import annotations

import re
import socket
from types import TracebackType
from typing import Self

from cdc.binlog.constants import MAGIC, EventType
from cdc.binlog.events import Header, parse_header
from cdc.config import SourceConfig
from cdc.errors import CdcError, SourceUnavailableError
from cdc.positions import BinlogPosition
from cdc.source.connection import explain, place_of, query
from cdc.source.dump import open_short_dump
from cdc.source.server import Connection, Flavor, parse_version, server_version, variables

_SILENCE_S = 60.0
_MARIADB_GTID = re.compile(r"(\d+)-(\d+)-(\d+)")


class ShortDump:
    """A dump from ``position`` to the end of what the server has now. ``recv_into`` gives its packets as they come."""

    def __init__(self, source: SourceConfig, position: BinlogPosition) -> None:
        """Connect and ask for the dump. Raises SourceUnavailableError, SourceRefusedError, ConfigError."""
        self._source = source
        self._connection = open_short_dump(source, position)
        self._socket: socket.socket = self._connection._sock
        self._socket.settimeout(_SILENCE_S)

    def recv_into(self, buffer: memoryview) -> int:
        """Read what is there, at least one byte. Raises SourceUnavailableError."""
        try:
            n = self._socket.recv_into(buffer)
        except OSError as error:
            raise explain(error, place_of(self._source), self._source.user) from error
        if n == 0:
            raise SourceUnavailableError("the server closed the connection", place=f"source {place_of(self._source)}")
        return n

    def close(self) -> None:
        """Cut the connection."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class NoBorderError(CdcError):
    """No event begins at a position, or the server does not send anything from there; the message says why."""


def meaning(text: str) -> str:
    """What the text of a server's error 1236 means. Of an offset inside an event servers say that the binlog was
    truncated, and that the disk may be full."""
    text = text.split("; the first event", 1)[0]  # what follows are positions as the server counts them
    if is_inside_event(text):
        return "no event begins at this position of the server's file"
    return f"the server answers: {text}"


def is_inside_event(text: str) -> bool:
    """Whether a server's error text is what it says of an offset at which no event begins."""
    low = text.lower()
    return any(words in low for words in ("truncated in the middle", "bogus data", "exceeded max_allowed_packet"))


def file_created(source: SourceConfig, position: BinlogPosition) -> int:
    """When the binlog file of ``position`` was created (the second in its format description), after a check that an
    event begins at the position, or that the file ends there.

    Raises NoBorderError where neither holds, SourceUnavailableError where the connection fails.
    """
    created = 0
    with ShortDump(source, position) as dump:
        for _ in range(8):  # rotate and format description come first, each perhaps followed by an artificial one
            head, size = _packet(dump)
            if head[:1] == b"\xff":
                text = head[3:].removeprefix(b"#HY000").decode("utf-8", "replace")
                raise NoBorderError(f"{meaning(text)} (error {int.from_bytes(head[1:3], 'little')})")
            if head[:1] == b"\xfe" and size < 9:
                return created  # nothing comes behind the position yet
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
                raise NoBorderError(
                    f"what the server sends from there is no event that begins there (type {header.type}, "
                    f"{header.length} bytes, up to position {header.end_log_pos})"
                )
    return created


def _begins_at(header: Header, sent: int, pos: int) -> bool:
    # MySQL's own dump of a file without checksums sends none, and one with checksums sends them: lengths agree.
    return header.length == sent and (header.end_log_pos - header.length) & 0xFFFFFFFF == pos & 0xFFFFFFFF


def _packet(dump: ShortDump) -> tuple[bytes, int]:
    """The beginning of the next packet's payload, and the payload's size; the rest of it is read and dropped."""
    head = _exactly(dump, 4)
    size = int.from_bytes(head[:3], "little")
    payload = _exactly(dump, min(size, 1024))
    left = size - len(payload)
    while left:
        left -= len(_exactly(dump, min(left, 1 << 16)))
    return payload, size


def _exactly(dump: ShortDump, size: int) -> bytes:
    found = bytearray(size)
    view, at = memoryview(found), 0
    while at < size:
        at += dump.recv_into(view[at:])
    return bytes(found)


def executed_gtids(conn: Connection, flavor: Flavor) -> str | None:
    """All that the server says it has executed, as its binlog knows it; None where it does not use GTIDs.

    MySQL: ``gtid_executed``. MariaDB: ``gtid_binlog_state``, the last number of each pair of domain and server id; it
    does not tell whether all numbers before that were there, nor what a session with ``sql_log_bin=0`` did.
    """
    if flavor == "mariadb":
        return variables(conn, ("gtid_binlog_state",)).get("gtid_binlog_state")
    found = variables(conn, ("gtid_mode", "gtid_executed"))
    if not found.get("gtid_mode", "OFF").upper().startswith("ON") and parse_version(server_version(conn)) < (5, 7):
        return None  # MySQL 5.6 knows its own set only while gtid_mode is on
    return "".join(found["gtid_executed"].split()) if "gtid_executed" in found else None


def has_executed(conn: Connection, flavor: Flavor, gtid: str, executed: str) -> bool:
    """Whether ``gtid`` is in the set ``executed`` of :func:`executed_gtids`."""
    if flavor == "mysql":
        return bool(query(conn, "SELECT GTID_SUBSET(%s, %s) AS there", (gtid, executed))[0]["there"])
    match = _MARIADB_GTID.fullmatch(gtid)
    if match is None:
        return False
    domain, server, number = match.groups()
    state = (_MARIADB_GTID.fullmatch(one.strip()) for one in executed.split(","))
    return any(m is not None and m[1] == domain and m[2] == server and int(m[3]) >= int(number) for m in state)
