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
    FrameKind,
    Have,
    Hello,
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
        FrameKind.CHALLENGE: bytes(range(16, 32)),
        FrameKind.HELLO: sign_message(hello, b"hello", bytes(range(16, 32)), SECRET),
        FrameKind.WELCOME: sign_message(welcome, b"welcome", bytes(range(16)), SECRET),
        FrameKind.REFUSE: Refuse(error="two stores have taken over", remedy="Decide.").model_dump_json().encode(),
        FrameKind.COMPARE: Compare(segment=NAME, start=0, stop=3, of="index").model_dump_json().encode(),
        FrameKind.COMPARED: Compared(count=3, head_crc=9, digest="cd" * 16, entries=3).model_dump_json().encode(),
        FrameKind.FOLLOW: Follow(have=[Have(segment=NAME, size_bytes=4096, entries=3)]).model_dump_json().encode(),
        FrameKind.SEGMENT: NAME.encode(),
        FrameKind.DATA: struct.pack("<Q", 4096) + b"events",
        FrameKind.ENTRIES: struct.pack("<Q", 3) + bytes(128),
        FrameKind.FILE: struct.pack("<H", 11) + b"tables.json" + b'{"version": 1, "tables": []}',
        FrameKind.FORGET: f"segments/{NAME}".encode(),
        FrameKind.HEARTBEAT: struct.pack("<QQ", 17179869311, 0),
        FrameKind.REPORT: struct.pack("<QQ", 17179869311, 4102) + NAME.encode(),
        FrameKind.FETCH: Fetch(segment=NAME, start=0, stop=3).model_dump_json().encode(),
        FrameKind.FILE_PART: struct.pack("<H", 11) + b"tables.json" + b'{"version": 1, ',
    }
    file.write_bytes(b"".join(frame_header(kind, payloads[kind]) + payloads[kind] for kind in FrameKind))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
