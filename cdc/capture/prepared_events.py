"""Reads the events of a prepared XA transaction, for capture and for its search."""

from __future__ import annotations

import zlib
from hashlib import blake2b

from cdc.binlog.framer import Framer
from cdc.binlog.rare_events import parse_xa_prepare
from cdc.config import TablesConfig
from cdc.store.formats.prepared import PreparedTransaction


def seq_at(framer: Framer) -> int:
    """Returns the seq of the transaction that the current event ends."""
    return int(framer.st.seq_base) | framer.event_end


def choice_of(tables: TablesConfig) -> str:
    """Returns a hash of the choice of captured tables."""
    return blake2b(repr((tables.include, tables.exclude)).encode(), digest_size=8).hexdigest()


def prepared_transaction(framer: Framer, event: bytes, captured: str) -> PreparedTransaction:
    """Describes the open transaction, which ``event`` (XA_PREPARE without checksum) ends. ``captured`` is the
    :func:`choice_of` tables."""
    return PreparedTransaction(
        xid=parse_xa_prepare(event),
        seq=seq_at(framer),
        time_us=int(framer.st.tx_time) or int(framer.st.event_time) * 1_000_000,
        gtid=framer.gtid,
        tables=tuple(framer.changed_tables) if framer.st.tx_kept else (),
        captured=captured,
    )


def with_crc(event: bytes) -> bytes:
    """Adds the checksum to an event without one."""
    body = event[:9] + (len(event) + 4).to_bytes(4, "little") + event[13:]
    return body + zlib.crc32(body).to_bytes(4, "little")
