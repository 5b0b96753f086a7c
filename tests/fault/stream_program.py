"""A program that reads a stream, writes down what it sees, and is killed: see ``test_stream_kills.py``.

    python -m tests.fault.stream_program URL PASSWORD TABLES STORE STATE JOURNAL START

A line of the journal is ``seen ID`` for each row, and ``acked ID`` once its transaction was acked.
"""

from __future__ import annotations

import json
import os
import random
import sys

import cdc


def main() -> None:
    url, password, tables, store, state, journal, begin = sys.argv[1:]
    start = json.loads(begin)
    choose = random.Random(os.getpid())
    fd = os.open(journal, os.O_WRONLY | os.O_APPEND)
    with cdc.stream(url, password=password, tables=tables, store=store, state=state, start=start) as stream:
        os.write(fd, b"open\n")
        for transaction in stream:
            rows = [change.after["id"] for change in transaction.changes if change.after is not None]
            os.write(fd, "".join(f"seen {row}\n" for row in rows).encode())
            if choose.random() < 0.05:
                stream.rollback()
                continue
            if choose.random() < 0.7:
                transaction.ack()
                os.write(fd, "".join(f"acked {row}\n" for row in rows).encode())


if __name__ == "__main__":
    main()
