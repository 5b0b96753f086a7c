"""Generates ``gtids-v1.json``. Run it for a new version only."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from cdc.binlog.gtids import GtidSet
from cdc.store.formats.gtids import GTIDS_FILE, GtidCheckpoint, write_checkpoint

HERE = Path(__file__).parent
OLD, NEW = "6f5c1f0e-c5f4-11f0-9d0a-0242ac110002", "81a3c8d4-e76c-11f1-9013-02fc00000001"


def main() -> None:
    with TemporaryDirectory() as folder:
        for seq, last in ((206158431791, 900), (36028797018968687, 903)):
            write_checkpoint(Path(folder), "mysql", GtidCheckpoint(seq, GtidSet.parse(f"{OLD}:1-{last},{NEW}:7:tag:1")))
        (HERE / "gtids-v1.json").write_bytes((Path(folder) / GTIDS_FILE).read_bytes())


if __name__ == "__main__":
    main()
