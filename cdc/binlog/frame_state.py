"""The state of the framing kernel, the statuses that it returns, the columns of its rows.

The kernel keeps everything in one record, so that it can stop anywhere and continue: ``frame_kernel``, ``frame_events``
and ``frame_transactions`` read and write it, ``framer`` answers by it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cdc.binlog.constants import ROW_EVENTS, EventType
from cdc.binlog.event_types import SKIPPED
from cdc.kernels.records import Record

Longs = npt.NDArray[np.int64]


class InputState(Record):
    """The input that is being read, and the current event. A compressed transaction is an input inside the input: while
    it is read, the numbers of the other one are in ``saved``."""

    packets: int  # 1: src holds MySQL packets; 0: plain events
    has_crc: int  # 1: events of the source end with a checksum
    in_pos: int  # unread bytes of src: from here …
    in_end: int  # … up to here
    in_base: int  # offset in the input of src[0]
    packet_left: int  # payload left of the current packet
    packet_more: int  # 1: the next packet continues the current one
    event_left: int  # unread bytes of the event; 0: between events
    event_keep: int  # 1: it is copied to out
    event_type: int
    event_end_pos: int  # its end_log_pos (32 bits)
    event_crc: int  # running CRC
    event_want: int  # the expected one
    event_tail: int  # how many bytes of that were read
    event_out: int  # offset of the event's first byte in the output
    event_ends: int  # ENDS_NOTHING, ENDS_TRANSACTION, ENDS_STATEMENT
    event_length: int
    event_time: int
    event_in: int  # offset of its first byte in the input
    whole: int  # length of the event at in_pos if all of it is needed and has not arrived; else 0
    joined: int  # payload of the packet at in_pos if Python joined it from several; else 0
    payload: int  # of a TRANSACTION_PAYLOAD event: NO_PAYLOAD, PAYLOAD_BEGUN, PAYLOAD_READ
    inner: int  # 1: the input is what was in a compressed transaction: plain events without checksums


INPUT_FIELDS = InputState.number_count()
"""The numbers that belong to an input: the first ones of the state."""


class FrameState(InputState, gtid_tag=4, saved=INPUT_FIELDS):
    """The state. Offsets are absolute unless they are those of ``src`` or ``out``."""

    # --- the run
    scan: int  # 1: nothing is copied; offsets in rows are those of the input
    verify: int  # 1: checksums are verified
    ask_gtid: int  # 1: Python decides about each transaction by its GTID
    roll_at: int  # stop at the first transaction boundary with this much in the segment; 0: never
    skip_until: int  # transactions that begin before this position of the source's file are stored already
    unzstd: int  # address of ZSTD_decompressDCtx; 0: Python unpacks
    unzstd_context: int  # address of its context
    packet_number: int  # number of the packet that is due (8 bits); -1: numbers are not looked at
    n_rows: int  # rows filled
    decision: int  # Python's answer to NEED_STATEMENT, NEED_EVENT, NEED_GTID or PATCH_STORED
    decision_mask: int  # bits of the captured tables that the statement changes
    # --- the output
    out_pos: int  # kept bytes in out
    out_base: int  # offset in the segment of out[0]
    hold: int  # offset from which the output is provisional, or -1
    # --- the source's file
    file_pos: int  # end of its last transaction, beyond 32 bits too
    seq_base: int  # epoch and file number, shifted
    seen_pos: int  # largest end_log_pos (32 bits)
    last_end: int  # end_log_pos (32 bits) of the newest event of a transaction; -1: unknown
    last_tx_end: int  # offset of the end of the last finished transaction
    # --- the current transaction
    tx_open: int  # 1: open
    tx_start: int  # offset of its first byte
    tx_begin: int  # 1: it ends with XID or COMMIT
    tx_events: int  # kept events
    tx_row_events: int
    tx_sum: int  # weighted sum of their checksums
    tx_flags: int
    tx_time: int  # commit time in µs; 0: not known yet
    tx_kept: int  # 1: something of it is kept
    tx_mask: int  # bits of its captured tables
    tx_bytes: int  # size of its events in the source
    tx_skip: int  # NOT_SKIPPED, SKIPPED_BY_POSITION, SKIPPED_BY_GTID
    tx_overrun: int  # 1: it ended behind skip_until
    tx_refused: int  # 1: it changes captured tables in an unsupported way; its end stops capture
    gtid_a: int  # the UUID, or MariaDB's domain and server
    gtid_b: int
    gtid_number: int
    gtid_count: int
    gtid_mariadb: int
    gtid_tag: Longs  # (4,): the tag's 32 bytes
    # --- the current statement
    stmt_open: int  # 1: open
    stmt_start: int  # offset of its first byte in the output
    stmt_rows: int  # kept row events
    stmt_events: int  # tx_events at its start; so below
    stmt_sum: int
    stmt_mask: int
    # --- the last kept row event
    last_row: int  # offset of its first byte in the output; -1: none
    last_row_length: int
    last_row_ordinal: int
    last_row_crc: int
    # --- the compressed transaction
    piece_at: int  # its bytes that are handed over: from here in src …
    piece_length: int  # … so many
    inner_end_pos: int  # end_log_pos of the TRANSACTION_PAYLOAD event, which its events get
    inner_ended: int  # 1: the event that ends the transaction was among them
    unpacked: int  # 1: the second input is a compressed transaction that the kernel has unpacked, and not Python
    preparing: int  # 1: Python has to put the XA transaction aside at the end of the compressed one
    saved: Longs  # (INPUT_FIELDS,): the other input


# --- states of event_ends, payload and tx_skip --------------------------------------------------------------------
ENDS_NOTHING, ENDS_TRANSACTION, ENDS_STATEMENT = 0, 1, 2
NO_PAYLOAD = 0
PAYLOAD_BEGUN = 1  # its bytes are being handed over
PAYLOAD_READ = 2  # all were, with the right checksum
NOT_SKIPPED = 0
SKIPPED_BY_POSITION = 1  # it begins before skip_until
SKIPPED_BY_GTID = 2  # its GTID is stored already

# --- statuses that frame returns ------------------------------------------------------------------------------
CONTINUE = -1  # only of the functions that frame calls: they need nothing
NEED_INPUT = 0
OUT_FULL = 1
ROWS_FULL = 2
NEED_TABLE = 3  # the TABLE_MAP event at EVENT_IN has a table id that is not known yet
NEED_STATEMENT = 4  # Python decides about the QUERY event at EVENT_IN
NEED_EVENT = 5  # Python reads the ROTATE, FORMAT_DESCRIPTION, tagged GTID, INCIDENT or XA_PREPARE at EVENT_IN
SERVER_ERROR = 6
END_OF_STREAM = 7
BAD_CHECKSUM = 8
BAD_LENGTH = 9
REFUSED = 10
NO_TABLE_MAP = 11
NESTED = 12
XA = 13
PATCH_STORED = 14  # STMT_END_F has to be set on a row event that Python has taken from out already
BAD_PACKET = 15
AT_BOUNDARY = 17  # ROLL_AT is reached
NO_POSITION = 16  # an event that ends a transaction has no position
PART_IMAGE = 18  # a row event that would be kept has rows that lack columns
PAYLOAD_WHOLE = 19  # all of a compressed transaction is there, with the right checksum
REFUSED_END = 20  # the end of a transaction with TX_REFUSED
PAYLOAD_PIECE = 21  # Python unpacks some bytes of a compressed transaction
PAYLOAD_END = 22  # all of a compressed transaction has been handed over
OUT_OF_ORDER = 23  # the position of an event of a transaction lies before that of the previous event
OVERRUN = 24  # a transaction that is stored already ends behind the stored ones
OUT_OF_STEP = 26  # a packet has another number than the one that is due
NEED_GTID = 25  # Python decides about the transaction that begins at EVENT_IN, whose GTID has been read

# --- DECISION ---------------------------------------------------------------------------------------------------
UNDECIDED, KEEP, DROP, KEEP_DDL = 0, 1, 2, 3
OPENS = 4  # the statement begins the transaction, as BEGIN does (XA START)
ALONG = 5  # the statement is kept if the transaction is, and does not end it (XA END)

# --- columns of rows ----------------------------------------------------------------------------------------------
(R_SEQ, R_OFFSET, R_LENGTH, R_TIME, R_EVENTS, R_ROW_EVENTS, R_FLAGS, R_SUM, R_GTID_A, R_GTID_B, R_GTID_NUMBER) = range(
    11
)
R_GTID_COUNT, R_MASK, R_END_POS = 11, 12, 13
R_GTID_TAG = 14  # four columns: 32 bytes
ROW_WIDTH = 18

FLAG_DDL, FLAG_POSITION, FLAG_GTID_MARIADB = 1, 2, 4

# --- kinds of event types ---------------------------------------------------------------------------------------------
T_UNKNOWN, T_SKIP, T_REFUSE, T_ROWS, T_TABLE_MAP, T_QUERY, T_XID, T_GTID, T_MARIADB_GTID, T_PYTHON = range(10)
T_COMPRESSED_QUERY, T_XA_PREPARE, T_GTID_TAGGED, T_PAYLOAD = range(10, 14)

_KINDS = {
    **dict.fromkeys(ROW_EVENTS, T_ROWS),
    EventType.TABLE_MAP: T_TABLE_MAP,
    EventType.QUERY: T_QUERY,
    EventType.EXECUTE_LOAD_QUERY: T_QUERY,
    EventType.MARIADB_QUERY_COMPRESSED: T_COMPRESSED_QUERY,
    EventType.XA_PREPARE: T_XA_PREPARE,
    EventType.TRANSACTION_PAYLOAD: T_PAYLOAD,
    EventType.XID: T_XID,
    EventType.GTID: T_GTID,
    EventType.ANONYMOUS_GTID: T_GTID,
    EventType.MARIADB_GTID: T_MARIADB_GTID,
    EventType.GTID_TAGGED: T_GTID_TAGGED,
    EventType.ROTATE: T_PYTHON,
    EventType.FORMAT_DESCRIPTION: T_PYTHON,
    EventType.INCIDENT: T_PYTHON,
}
"""The kind of each event type that is neither skipped nor refused at once."""


def _event_kinds() -> Longs:
    """Returns the kind of each of the 256 event types; a type without an entry is refused."""
    kinds = np.full(256, T_REFUSE, dtype=np.int64)
    kinds[list(SKIPPED)] = T_SKIP
    for number, kind in _KINDS.items():
        kinds[number] = kind
    return kinds


EVENT_KINDS = _event_kinds()

PREFIX_MAX = 1 << 18  # bytes of a large QUERY event that are looked at
