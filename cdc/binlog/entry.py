"""The index entry: 128 bytes for each transaction, in a file beside the segment that holds it.

The offset table is in ``docs/formats/index.md``. All numbers are little-endian.
"""

from __future__ import annotations

import enum
import uuid

import numpy as np
import numpy.typing as npt

MAGIC = b"TPIX"
VERSION = 1
HEADER_SIZE = 128
ENTRY_SIZE = 128

ENTRY = np.dtype(
    [
        ("seq", "<u8"),  # 0    see cdc.binlog.positions
        ("offset", "<u8"),  # 8    where the transaction begins in the segment
        ("length", "<u8"),  # 16   its bytes; 0 in a position entry
        ("commit_time_us", "<i8"),  # 24   since 1970, UTC
        ("store_time_us", "<i8"),  # 32   when it was appended, this machine's clock
        ("events", "<u4"),  # 40
        ("row_events", "<u4"),  # 44
        ("flags", "<u4"),  # 48   EntryFlag
        ("checksum", "<u4"),  # 52   sum of (2 i + 1) * crc32 of event i, modulo 2**32
        ("gtid_source", "V16"),  # 56   MySQL: the UUID; MariaDB: domain, server id (4 bytes each), zeros
        ("gtid_number", "<u8"),  # 72   the last one's
        ("table_mask", "<u8"),  # 80   bit (table number % 64) of each table with rows, or named by the DDL
        ("gtid_count", "<u4"),  # 88   consecutive GTIDs that end at gtid_number; 0: none
        ("gtid_tag", "S32"),  # 92   MySQL 8.3+ tag, without NUL
        ("crc", "<u4"),  # 124  CRC32 of the 124 bytes before
    ]
)
assert ENTRY.itemsize == ENTRY_SIZE

Entries = npt.NDArray[np.void]
"""Array of ENTRY."""


class EntryFlag(enum.IntFlag):
    """The kind of a transaction."""

    DDL = 1
    """It holds a DDL statement, and is never in one batch with rows of other transactions."""
    POSITION = 2
    """It has no bytes: the source's position moved over transactions without captured changes."""
    GTID_MARIADB = 4
    """``gtid_source`` is a MariaDB domain and server id."""
    XA_PREPARED = 8
    """Never written; readers ignore such an entry. Prepared transactions are kept beside the log."""
    LOST = 16
    """With POSITION: in the place of a transaction whose bytes are damaged, and whose loss was accepted."""


def format_gtid(entry: np.void) -> str | None:
    """The (last) GTID of an entry as the server prints it; None for an entry without one."""
    if not int(entry["gtid_count"]):
        return None
    source, number = bytes(entry["gtid_source"]), int(entry["gtid_number"])
    if int(entry["flags"]) & EntryFlag.GTID_MARIADB:
        domain, server = int.from_bytes(source[:4], "little"), int.from_bytes(source[4:8], "little")
        return f"{domain}-{server}-{number}"
    tag = bytes(entry["gtid_tag"]).decode("ascii")
    return f"{uuid.UUID(bytes=source)}:{tag + ':' if tag else ''}{number}"
