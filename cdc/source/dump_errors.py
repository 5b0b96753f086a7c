"""The errors that a server sends instead of events: error 1236 in all its texts, and a few others.

A server has one number for nearly everything that can go wrong in a dump, and only the text tells what it is. The
texts in :data:`REFUSALS` are parts of those in the programs of MySQL 5.6 to 9 and MariaDB 10 and 11.
``docs/reference/dump-errors.md`` is made from this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from cdc.base.errors import CdcError, IdentityError, SourceRefusedError, SourceUnavailableError
from cdc.binlog.positions import BinlogPosition
from cdc.config import SourceConfig
from cdc.config.secrets import source_user
from cdc.source.connection import place_of

FATAL_READING_BINLOG = 1236


@dataclass(frozen=True)
class Refusal:
    """One cause for which a server ends a dump, or does not begin it."""

    title: str
    summary: str
    """The beginning of the message; ``{position}`` and ``{server_id}`` are filled in."""
    texts: tuple[str, ...]
    """Parts of the servers' texts, one of which identifies the cause. Upper and lower case are the same."""
    cause: str
    """A sentence or two for the reference."""
    remedy: str
    error: type[CdcError] = SourceRefusedError
    any_code: bool = False
    """Whether servers send the text with other numbers than 1236 too."""

    def fits(self, code: int, text: str) -> bool:
        """Whether an error packet with this code and text has this cause."""
        low = text.lower()
        return (self.any_code or code == FATAL_READING_BINLOG) and any(part.lower() in low for part in self.texts)


_INSIDE_EVENT = Refusal(
    "No event begins at the position",
    "no whole event begins at {position}: the server's binlog file is cut off or damaged there, or no event ever "
    "began at this position",
    ("binlog truncated in the middle of event", "bogus data in log event", "exceeded max_allowed_packet"),
    "The server reads the bytes at the position as an event, and they are none. Its texts guess at a full disk or "
    "at max_allowed_packet; a position between two events is more likely if source.start names it.",
    "If source.start names the position, use one that SHOW BINLOG EVENTS lists. Otherwise check the server's error "
    "log and its disk. If the file is damaged, start a new destination after the damage.",
)

REFUSALS = (
    Refusal(
        "The binlog is purged",
        "the server no longer has the binlog at {position}",
        (
            "Could not find first log file name in binary log index file",
            "purged required binary logs",
            "the master has purged binary logs containing GTIDs that the slave requires",
            "required binlog files have been purged",
        ),
        "The file that capture needs next was purged, by age, by size or by hand, or it never existed on this server. "
        "Capture was down or behind for longer than the server keeps its binlogs.",
        "The changes between this position and the server's oldest binlog are lost. Rebuild the tables from another "
        "start position, and keep binlogs longer (binlog_expire_logs_seconds).",
    ),
    Refusal(
        "The position lies behind the end of the file",
        "the server's history is shorter than {position}",
        ("position > file size", "from impossible position"),
        "The file is shorter than at the last connection: the binlog was reset, the server was restored from a backup, "
        "it crashed and lost its last writes, or another server answers at the address.",
        "The server's binlog was reset, or this is another server. Start a new destination.",
        IdentityError,
    ),
    _INSIDE_EVENT,
    Refusal(
        "The checksum of an event is wrong on the server",
        "the server's binlog is damaged at {position}",
        ("did not pass crc check", "corrupted data in log event"),
        "The server verifies its own file while it sends it (source_verify_checksum, master_verify_checksum), and an "
        "event does not pass: the file is damaged on the server's disk.",
        "Check the file on the server with mysqlbinlog --verify-binlog-checksum. If another server has the same "
        "history, restore the file from there; else start a new destination after the event.",
    ),
    Refusal(
        "The beginning of the file is damaged",
        "the server's binlog file of {position} does not begin as a binlog does",
        (
            "Binlog has bad magic number",
            "Could not find format_description_event in binlog file",
            "Found invalid Format description event",
            "Found invalid event in binary log",
            "Failed to find format descriptor event",
            "Corrupt Format_description event found",
        ),
        "The first bytes of the file, or its first event, are not those of a binlog: the disk has damaged it, or "
        "another file was put in its place.",
        "Compare the file with a copy, or with mysqlbinlog. If another server has the same history, restore the file "
        "from there; else start a new destination after it.",
    ),
    Refusal(
        "The server cannot read its file",
        "the server cannot read its binlog at {position}",
        (
            "I/O error reading log event",
            "I/O error reading the header from the binary log",
            "unknown error reading log event",
            "Failed to decrypt content",
            "Cannot get file password for encrypted replication log file",
            "Found invalid binary log encryption header",
            "event decryption failure",
            "Could not decrypt binlog",
            "decryption of binlog",
        ),
        "The server's disk fails, the file was changed under it, or the key of an encrypted binlog is missing.",
        "Look into the server's error log, and repair its disk or its keyring. Then start capture again.",
    ),
    Refusal(
        "The server is out of memory",
        "the server has no memory to read its binlog at {position}",
        ("memory allocation failed reading log event", "Out of memory"),
        "The server could not allocate the event's size.",
        "Capture tries again. If it stays, give the server more memory.",
        SourceUnavailableError,
    ),
    Refusal(
        "The next file is missing",
        "the server cannot continue behind {position}",
        ("could not find next log", "Could not open log file", "' not found (Errcode"),
        "The file after this one is in the server's index and not on its disk, or the other way round: somebody "
        "removed files by hand, or the disk lost them.",
        "Restore the file, or correct the server's index file. If the file is lost, start a new destination with the "
        "oldest one that is whole.",
        any_code=True,  # 29 on MariaDB
    ),
    Refusal(
        "The server writes no binlog",
        "the server writes no binlog",
        ("Binary log is not open",),
        "The server was started without log_bin since capture began, or never had it.",
        "Start the server with log_bin=binlog.",
    ),
    Refusal(
        "Another replica has the same server_id",
        "another replica uses source.server_id {server_id}",
        ("same server_uuid/server_id", "same server_id"),
        "Another replica, or a second capture with a copied configuration, has connected with the same id; the server "
        "ends the older connection.",
        "Give each replica of this source its own server_id.",
        any_code=True,
    ),
    Refusal(
        "The server has no server_id",
        "the server accepts no replica",
        ("server_id is 0", "server_id was not set"),
        "The server's own server_id is 0.",
        "SET GLOBAL server_id=1; or another number that no replica uses, and in the server's configuration.",
    ),
    Refusal(
        "Transactions without GTIDs on a server with gtid_mode=ON",
        "the server does not send the transactions at {position}",
        ("Cannot replicate anonymous transaction",),
        "The binlog has transactions from before gtid_mode was ON, and MySQL does not send them while it is.",
        "Start behind them, at a later file; or SET GLOBAL gtid_mode=ON_PERMISSIVE; until capture has passed them.",
    ),
    Refusal(
        "Transactions with GTIDs on a server with gtid_mode=OFF",
        "the server does not send the transactions at {position}",
        ("Cannot replicate GTID-transaction",),
        "The binlog has transactions from before gtid_mode was OFF, and MySQL does not send them while it is.",
        "Start behind them, at a later file; or SET GLOBAL gtid_mode=OFF_PERMISSIVE; until capture has passed them.",
    ),
    Refusal(
        "Checksums were not agreed on",
        "the server does not send its binlog",
        (
            "can not handle replication events with the checksum",
            "Failed to replace GTID event",
            "Failed to replace binlog checkpoint",
        ),
        "The server believes that the reader does not know checksums, or MariaDB's GTIDs. Capture says so at every "
        "connect, so a proxy between the two may have dropped the session's variables.",
        "Connect to the server itself, without a proxy that shares or resets sessions.",
    ),
    Refusal(
        "The connection broke while the server was writing",
        "the server could not send its binlog at {position}",
        ("my_net_write", "net_flush", "send_file", "before_send_event", "Failed to run hook"),
        "The network, a proxy or a plugin of the server ended the connection.",
        "Capture connects again. If it happens often, look at the network and at net_write_timeout.",
        SourceUnavailableError,
    ),
)  # fmt: skip
"""Every cause that is known, in the order in which they are tried."""


def explain_dump_error(code: int, text: str, source: SourceConfig, position: BinlogPosition) -> CdcError:
    """Translates an error packet of a dump that was requested from ``position``."""
    place = f"source {place_of(source)}"
    text = _without_positions(text)
    for refusal in REFUSALS:
        if refusal.fits(code, text):
            summary = refusal.summary.format(position=position, server_id=source.server_id)
            return refusal.error(f"{summary} (the server says: {text})", place=place, remedy=refusal.remedy)
    if code in (1227, 1045):
        return SourceRefusedError(
            f"the user {source_user(source)!r} may not read the binlog: {text}",
            place=place,
            remedy="GRANT REPLICATION SLAVE ON *.* to the user.",
        )
    if code == FATAL_READING_BINLOG:
        return SourceRefusedError(
            f"the server cannot send its binlog from {position}: {text}",
            place=place,
            remedy="Towpath does not know this text of error 1236. Look into the server's error log.",
        )
    return SourceUnavailableError(
        f"the server ended the dump at {position}: {text}{f' (error {code})' if code else ''}", place=place
    )


def describe_dump_error(text: str) -> str:
    """Describes the text of a server's error 1236 in a clause for a message."""
    text = _without_positions(text)
    if _INSIDE_EVENT.fits(FATAL_READING_BINLOG, text):
        return "no event begins at this position of the server's file"
    return f"the server answers: {text}"


def _without_positions(text: str) -> str:
    """Removes the positions that a server appends, which it counts in its own way."""
    return text.split("; the first event", 1)[0]
