"""Generates ``store-v2.json``. Run it for a new version only."""

from __future__ import annotations

import tempfile
from pathlib import Path

from cdc.store.formats import layout
from cdc.store.formats.state import Beginning, record_beginning

HERE = Path(__file__).parent


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder)
        layout.create(store, "shop")
        gtid = "6f5c1f0e-c5f4-11f0-9d0a-0242ac110002:1-3"
        beginning = Beginning(206158430365, "binlog.000012", 157, gtid, 1_795_327_144_603_000, "started again")
        record_beginning(store, beginning)
        (HERE / "store-v2.json").write_bytes((store / "store.json").read_bytes())


if __name__ == "__main__":
    main()
