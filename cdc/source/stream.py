"""The replication connection as a stream of raw bytes.

The packets are not taken apart here: an object for each event would be what makes reading slow.
"""

from __future__ import annotations

import socket
from typing import Any

from cdc.config import SourceConfig
from cdc.errors import CdcError, IdentityError, SourceRefusedError, SourceUnavailableError
from cdc.positions import BinlogPosition
from cdc.source.connection import explain, place_of
from cdc.source.dump import MAX_POSITION, open_dump
from cdc.source.history import is_inside_event

_MISSED_HEARTBEATS = 3


class DumpStream:
    """The packets of COM_BINLOG_DUMP, from a position on.

    :meth:`recv_into` returns 0 when nothing came within ``poll_s``; three missed heartbeats raise
    SourceUnavailableError.
    """

    def __init__(self, source: SourceConfig, position: BinlogPosition, label: str, *, poll_s: float = 0.5) -> None:
        """Connect and ask for the dump; ``label`` is what the server lists the replica as. Raises
        SourceUnavailableError, SourceRefusedError, ConfigError."""
        self._source = source
        self._poll_s = poll_s
        self._silent_s = 0.0
        # Behind 4 GiB the request cannot name the offset: begin at the file's start; what is there already is skipped.
        pos = position.pos if position.pos <= MAX_POSITION else 4
        self.position = BinlogPosition(position.file, pos)
        self._connection: Any = open_dump(source, self.position, label)
        self._socket: socket.socket = self._connection._sock
        self._socket.settimeout(poll_s)
        self.thread_id = int(self._connection.thread_id())

    def recv_into(self, buffer: memoryview) -> int:
        """Read what is there, up to the buffer's size; 0: nothing came for a moment."""
        try:
            n = self._socket.recv_into(buffer)
        except TimeoutError:
            self._silent_s += self._poll_s
            if self._silent_s > _MISSED_HEARTBEATS * self._source.heartbeat_s:
                raise SourceUnavailableError(
                    f"{_MISSED_HEARTBEATS} heartbeats of {self._source.heartbeat_s:g} s were missed:"
                    " the connection is dead",
                    place=f"source {place_of(self._source)}",
                ) from None
            return 0
        except OSError as error:
            raise explain(error, place_of(self._source), self._source.user) from error
        if n == 0:
            raise SourceUnavailableError(
                "the server closed the connection",
                place=f"source {place_of(self._source)}",
                remedy="The server went down, or another replica came with the same source.server_id.",
            )
        self._silent_s = 0.0
        return n

    def close(self) -> None:
        """Cut the connection; the server ends its dump thread."""
        self._socket.close()


def explain_dump_error(code: int, text: str, source: SourceConfig, position: BinlogPosition) -> CdcError:
    """What an error packet in the stream means (``docs/operating``; the texts are the servers')."""
    place = f"source {place_of(source)}"
    text = text.split("; the first event", 1)[0]  # what follows are positions as the server counts them
    low = text.lower()
    if code == 1236 and ("could not find first log file" in low or "purged" in low):
        return SourceRefusedError(
            f"the server no longer has the binlog at {position}: {text}",
            place=place,
            remedy="Changes between there and its oldest binlog cannot be read any more; the tables have to be rebuilt "
            "from another start position. Keep binlogs longer (binlog_expire_logs_seconds).",
        )
    if code == 1236 and ("> file size" in low or "position > file size" in low or "impossible position" in low):
        return IdentityError(
            f"the server's history is shorter than {position}: {text}",
            place=place,
            remedy="It was reset, or it is another server: start a new destination.",
        )
    if code == 1236 and is_inside_event(text):
        return SourceRefusedError(
            f"no whole event begins at {position}: the server's binlog file is cut off or damaged there, or no event "
            f"ever began at this position (the server's words: {text})",
            place=place,
            remedy="If source.start names the position, take one that SHOW BINLOG EVENTS lists. Else look into the "
            "server's error log and at its disk; if the file is damaged, start a new destination behind it.",
        )
    if "same server_uuid/server_id" in low or "same server_id" in low:  # 1236; MariaDB also 4052
        return SourceRefusedError(
            f"another replica uses source.server_id {source.server_id}: {text}",
            place=place,
            remedy="Give each replica of this source a server_id of its own.",
        )
    if code in (1227, 1045):
        return SourceRefusedError(
            f"the user {source.user!r} may not read the binlog: {text}",
            place=place,
            remedy="GRANT REPLICATION SLAVE ON *.* to it.",
        )
    if code == 1236 and "binary log is not open" in low:
        return SourceRefusedError(f"the server writes no binlog: {text}", place=place, remedy="Set log_bin.")
    if code == 1236:
        return SourceRefusedError(f"the server cannot send its binlog from {position}: {text}", place=place)
    return SourceUnavailableError(f"the server ended the stream: {text} (error {code})", place=place)
