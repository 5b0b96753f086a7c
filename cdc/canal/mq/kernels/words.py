"""The texts that messages share."""

from __future__ import annotations

from cdc.kernels.memory import word

DATA = word(b'{"data":[')
GTID = word(b',"gtid":"')
ID = word(b'","id":')
INSERTED = word(b',"type":"INSERT"}')
UPDATED = word(b',"type":"UPDATE"}')
DELETED = word(b',"type":"DELETE"}')
BEFORE = word(b'{"before":')
AFTER = word(b',"after":')
NO_GTID = word(b',"gtid":null,"file":"')
A_GTID = word(b',"gtid":"')
FILE = word(b'","file":"')
POS = word(b'","pos":')
ROW = word(b',"row":')
THREAD = word(b',"thread":')
CREATED = word(b',"query":null},"transaction":null,"op":"c","ts_ms":')
CHANGED = word(b',"query":null},"transaction":null,"op":"u","ts_ms":')
REMOVED = word(b',"query":null},"transaction":null,"op":"d","ts_ms":')
TS_US = word(b',"ts_us":')
TS_NS = word(b',"ts_ns":')
TRUE, FALSE, NULL = word(b"true"), word(b"false"), word(b"null")
WKB, SRID = word(b'{"wkb":'), word(b',"srid":')
MOST_WORDS = 600
"""Bytes that the texts, numbers and punctuation of a message take at most, without names and values."""
