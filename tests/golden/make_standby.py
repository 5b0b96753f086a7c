"""Generates ``standby-v1.frames``: one frame of each kind of the standby protocol, version 1.

Run it once for each protocol version: ``PYTHONPATH=. python tests/golden/make_standby.py FILE``. Never replace an existing file.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from cdc.copies.standby.protocol import (
    Compare,
    Compared,
    Fetch,
    Follow,
    Formats,
    Have,
    Hello,
    Kind,
    Refuse,
    Welcome,
    frame_header,
    sign_message,
)

SECRET = b"a secret of more than 16 bytes"
NAME = "000-0000001-00000000004.binlog"


def main(file: Path) -> None:
    """Writes the frames in the order of their kinds."""
    hello = Hello(
        destination="shop",
        nonce=bytes(range(16)).hex(),
        towpath="0.1.0",
        term=3,
        state="standby",
        mastership="ab" * 16,
        segment=NAME,
        size_bytes=4096,
        last_seq=17179869311,
        tail_crc=7,
        files={"tables.json": 1},
    )
    welcome = Welcome(
        term=3,
        mastership="ab" * 16,
        towpath="0.1.0",
        formats=Formats(store=1, index=1),
        heartbeat_s=1.0,
        segments=[NAME],
        removed_seq=0,
        given_up=False,
    )
    payloads = {
        Kind.CHALLENGE: bytes(range(16, 32)),
        Kind.HELLO: sign_message(hello, b"hello", bytes(range(16, 32)), SECRET),
        Kind.WELCOME: sign_message(welcome, b"welcome", bytes(range(16)), SECRET),
        Kind.REFUSE: Refuse(error="two stores have taken over", remedy="Decide.").model_dump_json().encode(),
        Kind.COMPARE: Compare(segment=NAME, start=0, stop=3, of="index").model_dump_json().encode(),
        Kind.COMPARED: Compared(count=3, head_crc=9, digest="cd" * 16, entries=3).model_dump_json().encode(),
        Kind.FOLLOW: Follow(have=[Have(segment=NAME, size_bytes=4096, entries=3)]).model_dump_json().encode(),
        Kind.SEGMENT: NAME.encode(),
        Kind.DATA: struct.pack("<Q", 4096) + b"events",
        Kind.ENTRIES: struct.pack("<Q", 3) + bytes(128),
        Kind.FILE: struct.pack("<H", 11) + b"tables.json" + b'{"version": 1, "tables": []}',
        Kind.FORGET: f"segments/{NAME}".encode(),
        Kind.HEARTBEAT: struct.pack("<QQ", 17179869311, 0),
        Kind.REPORT: struct.pack("<QQ", 17179869311, 4102) + NAME.encode(),
        Kind.FETCH: Fetch(segment=NAME, start=0, stop=3).model_dump_json().encode(),
        Kind.FILE_PART: struct.pack("<H", 11) + b"tables.json" + b'{"version": 1, ',
    }
    file.write_bytes(b"".join(frame_header(kind, payloads[kind]) + payloads[kind] for kind in Kind))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
