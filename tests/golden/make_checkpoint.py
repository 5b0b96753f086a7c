"""Generates ``checkpoint-v1``: the checkpoint of ``store-v1`` after a clean stop, in format version 1.

Run it once for each format version: ``PYTHONPATH=. python tests/golden/make_checkpoint.py FILE``. Never replace an existing file,
because it represents the files of users.
"""

from __future__ import annotations

import sys
from pathlib import Path

from cdc.store.formats.checkpoint import Checkpoint


def main(path: Path) -> None:
    note = Checkpoint(
        segment="000-0000002-00000000004.binlog",
        log_bytes=1064,
        index_bytes=896,
        seq=34359740429,
        time_us=1_795_260_000_000_000,
        tables=2,
        finished=False,
    )
    path.write_bytes(note.render())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
