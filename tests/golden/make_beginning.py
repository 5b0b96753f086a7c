"""Generates ``store-v2.json``, ``meta-v2.json`` and ``meta-zookeeper-v2.json``. Run it for a new version only."""

from __future__ import annotations

import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from cdc.base.addresses import Address
from cdc.meta import Gap, HistoryMark
from cdc.meta.file import parse, render
from cdc.meta.zookeeper_nodes import render as render_nodes
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
    state = parse((HERE / "meta-v1.json").read_bytes(), "meta-v1.json")
    known = state.subscriptions["apply"]
    known.since_seq = 171798691844
    accepted = datetime(2026, 11, 22, 5, 45, 11, tzinfo=UTC)
    known.gaps = [
        Gap(
            after_seq=171798699999,
            until_seq=206158430365,
            reason="the store begins behind the cursor",
            accepted=accepted,
        ),
        Gap(
            after_seq=0,
            until_seq=206158430365,
            table="shop.orders",
            reason="the Delta table is taken as it is",
            accepted=accepted,
        ),
    ]
    known.tables = {
        "shop.orders": "0 17 206158431791 4ebdf555-4bdd-4ff7-b4aa-f7d0204d24b3",
        "shop.customers": "1 3 206158431024 ee4dd11e-8353-45a3-bf88-237629c29f86",
    }
    known.mark = HistoryMark(
        seq=206158431791, gtid="6f5c1f0e-c5f4-11f0-9d0a-0242ac110002:7", file_created_s=1_795_327_100
    )
    (HERE / "meta-v2.json").write_bytes(render(state))
    nodes = render_nodes(state, Address("db.example", 3306), "5f0c3a9be1d27460")
    text = {path: content.decode() for path, content in sorted(nodes.items())}
    (HERE / "meta-zookeeper-v2.json").write_text(json.dumps(text, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
