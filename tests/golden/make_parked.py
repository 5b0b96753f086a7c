"""Generates ``meta-v5.json`` and ``meta-zookeeper-v6.json``, with a parked table that waits for the values of columns. Run
it for a new version only."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

from cdc.base.addresses import Address
from cdc.meta import ParkedTable, UnknownColumns
from cdc.meta.file import parse, render
from cdc.meta.state import Subscription
from cdc.meta.zookeeper_nodes import render as render_nodes

HERE = Path(__file__).parent


def main() -> None:
    state = parse((HERE / "meta-v4.json").read_bytes(), "meta-v4.json")
    state.subscriptions["apply"].parked["shop.coupons"] = ParkedTable(
        due="snapshot",
        reason="Only the server knows the values.",
        since=datetime(2026, 11, 28, 12, 0, tzinfo=UTC),
        keep_seq=206158431024,
        columns=UnknownColumns(seq=206158431791, names=("code", "total")),
    )
    (HERE / "meta-v5.json").write_bytes(render(state))
    state.subscriptions["canal-1001"] = Subscription(filter=r"shop\..*", acked_seq=206158431791, next_batch=9)
    nodes = render_nodes(state, Address("db.example", 3306), "5f0c3a9be1d27460")
    text = {path: content.decode() for path, content in sorted(nodes.items())}
    (HERE / "meta-zookeeper-v6.json").write_text(json.dumps(text, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
