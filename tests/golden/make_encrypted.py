"""Generates ``encrypted-v1``, two encrypted files with the key of the bytes 0 to 31. Run it for a new version only."""

from __future__ import annotations

import os
from pathlib import Path

from cdc.disk.encryption import append
from cdc.disk.encryption.append import WholeFile
from tests.support.encryption import encrypted

FOLDER = Path(__file__).parent / "encrypted-v1"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with encrypted(FOLDER) as key:
        log = append.create(FOLDER / "log", os.open(FOLDER / "log", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        for start in range(0, 20_000, 1000):
            log.append(memoryview(b"".join(b"%07d\n" % n for n in range(start, start + 1000))))
        log.append(memoryview(b"the end\nnot this"))
        log.truncate(160_008)  # inside a frame
        log.close()
        content = b"".join(b"%07d\n" % n for n in range(10_000))
        (FOLDER / "whole.sealed").write_bytes(b"".join(WholeFile(key).bytes_of([content])))


if __name__ == "__main__":
    main()
