"""The state of the framing kernel: the indexes of its numbers, the statuses it returns, the columns of its rows.

The kernel keeps everything in one int64 array, so that it can stop anywhere and continue: ``frame_kernel`` and
``frame_transactions`` read and write it, ``framer`` answers by it. Kernels see these numbers as constants at compile
time.
"""

from __future__ import annotations

# --- indexes of the state st -------------------------------------------------------------------------------------
PACKETS = 0  # 1: src holds MySQL packets; 0: plain events
SCAN = 1  # 1: nothing is copied; offsets in rows are those of the input
HAS_CRC = 2  # 1: events of the source end with a checksum
VERIFY = 3  # 1: checksums are verified
IN_POS, IN_END = 4, 5  # unread bytes of src
IN_BASE = 6  # offset in the input of src[0]
OUT_POS = 7  # kept bytes in out
OUT_BASE = 8  # offset in the segment of out[0]
HOLD = 9  # absolute offset from which the output is provisional, or -1
N_ROWS = 10  # rows filled
PACKET_LEFT, PACKET_MORE = 11, 12  # payload left of the current packet; 1: the next one continues it
# the current event
EVENT_LEFT = 13  # its unread bytes; 0: between events
EVENT_KEEP = 14
EVENT_TYPE = 15
EVENT_END_POS = 16
EVENT_CRC, EVENT_WANT, EVENT_TAIL = 17, 18, 19  # running CRC; the expected one; how many bytes of it were read
EVENT_OUT = 20  # absolute offset of its first byte in the output
EVENT_ENDS = 21  # 1: it ends its transaction; 2: its statement
EVENT_LENGTH = 22
EVENT_TIME = 23
EVENT_IN = 24  # absolute offset of its first byte in the input
# the current statement
STMT_OPEN, STMT_START, STMT_ROWS = 25, 26, 27  # 1: open; its first byte in the output; kept row events
STMT_EVENTS, STMT_SUM = 28, 29  # events and checksum sum at its start
LAST_ROW, LAST_ROW_LENGTH, LAST_ROW_ORDINAL, LAST_ROW_CRC = 30, 31, 32, 33  # the last kept row event
# the current transaction
TX_OPEN, TX_START, TX_BEGIN = 34, 35, 36  # 1: open; its first byte; 1: it ends with XID or COMMIT
TX_EVENTS, TX_ROW_EVENTS, TX_SUM, TX_FLAGS, TX_TIME, TX_KEPT = 37, 38, 39, 40, 41, 42
TX_MASK = 43
GTID_A, GTID_B, GTID_NUMBER, GTID_COUNT, GTID_MARIADB = 44, 45, 46, 47, 48
# the current file
FILE_POS = 49  # end of the last transaction in the source's file, beyond 32 bits too
SEQ_BASE = 50  # epoch and file number, shifted
DECISION = 51  # Python's answer to NEED_STATEMENT / NEED_EVENT / NEED_TABLE
DECISION_MASK = 52
LAST_TX_END = 53  # absolute offset of the end of the last finished transaction
N_EVENTS = 54  # events seen
STMT_MASK = 55
TX_BYTES = 56  # size of the transaction's events in the source
ROLL_AT = 57  # stop at the first transaction boundary with this much in the segment; 0: never
SEEN_POS = 58  # largest end_log_pos (32 bits) in the source's file
SKIP_UNTIL = 59  # transactions that begin before this position of the source's file are stored already
TX_SKIP = 60  # 1: the current transaction is one of them; 2: nothing of it is kept, because its GTID is stored already
TX_OVERRUN = 61  # 1: it ended behind SKIP_UNTIL
LAST_END = 62  # end_log_pos (32 bits) of the newest event of a transaction; -1: unknown
WHOLE = 63  # length of the event at IN_POS if all of it is needed and has not arrived; else 0
JOINED = 64  # payload of the packet at IN_POS if Python joined it from several; else 0
PACKET_NUMBER = 65  # number of the packet that is due (8 bits); -1: numbers are not looked at
TX_REFUSED = 80  # 1: the transaction changes captured tables in an unsupported way; its end stops capture
PAYLOAD = 81  # TRANSACTION_PAYLOAD event: 1: its bytes are being handed over; 2: all were, with the right checksum
PIECE_AT, PIECE_LENGTH = 82, 83  # its bytes that are handed over
GTID_TAG = 84  # four numbers: the tag's 32 bytes
ASK_GTID = 88  # 1: Python decides about each transaction by its GTID
INNER = 89  # 1: the input is what was in a compressed transaction: plain events without checksums
INNER_END_POS = 90  # end_log_pos of the TRANSACTION_PAYLOAD event, which its events get
INNER_ENDED = 91  # 1: the event that ends the transaction was among them
UNZSTD, UNZSTD_CONTEXT = 92, 93  # addresses of ZSTD_decompressDCtx and of its context; 0: Python unpacks
UNPACKED = 94  # 1: the second input is a compressed transaction that the kernel has unpacked, and not Python
PREPARING = 95  # 1: Python has to put the XA transaction aside at the end of the compressed one
SAVED = 96  # the numbers of the other input at the indexes of INPUT_STATE, while one of the two is read
STATE_SIZE = 128

INPUT_STATE = (
    PACKETS, HAS_CRC, IN_POS, IN_END, IN_BASE, PACKET_LEFT, PACKET_MORE, EVENT_LEFT, EVENT_KEEP, EVENT_TYPE,
    EVENT_END_POS, EVENT_CRC, EVENT_WANT, EVENT_TAIL, EVENT_OUT, EVENT_ENDS, EVENT_LENGTH, EVENT_TIME, EVENT_IN, WHOLE,
    JOINED, PAYLOAD, INNER,
)  # fmt: skip
"""The indexes of the numbers that belong to one input, and to the event that is being read from it."""

# --- statuses that frame returns ------------------------------------------------------------------------------
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

PREFIX_MAX = 1 << 18  # bytes of a large QUERY event that are looked at
