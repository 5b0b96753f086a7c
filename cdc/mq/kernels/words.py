"""The texts that messages share. They stand at the beginning of the constants of all definitions."""

from __future__ import annotations

_words = bytearray()


def _place(word: bytes) -> tuple[int, int]:
    _words.extend(word)
    return len(_words) - len(word), len(word)


DATA, DATA_SIZE = _place(b'{"data":[')
GTID, GTID_SIZE = _place(b',"gtid":"')
ID, ID_SIZE = _place(b'","id":')
INSERTED, INSERTED_SIZE = _place(b',"type":"INSERT"}')
UPDATED, UPDATED_SIZE = _place(b',"type":"UPDATE"}')
DELETED, DELETED_SIZE = _place(b',"type":"DELETE"}')
BEFORE, BEFORE_SIZE = _place(b'{"before":')
AFTER, AFTER_SIZE = _place(b',"after":')
NO_GTID, NO_GTID_SIZE = _place(b',"gtid":null,"file":"')
A_GTID, A_GTID_SIZE = _place(b',"gtid":"')
FILE, FILE_SIZE = _place(b'","file":"')
POS, POS_SIZE = _place(b'","pos":')
ROW, ROW_SIZE = _place(b',"row":')
THREAD, THREAD_SIZE = _place(b',"thread":')
CREATED, CREATED_SIZE = _place(b',"query":null},"transaction":null,"op":"c","ts_ms":')
CHANGED, CHANGED_SIZE = _place(b',"query":null},"transaction":null,"op":"u","ts_ms":')
REMOVED, REMOVED_SIZE = _place(b',"query":null},"transaction":null,"op":"d","ts_ms":')
TS_US, TS_US_SIZE = _place(b',"ts_us":')
TS_NS, TS_NS_SIZE = _place(b',"ts_ns":')
WORDS = bytes(_words)
MOST_WORDS = 600
"""Bytes that the texts, numbers and punctuation of a message take at most, without names and values."""
