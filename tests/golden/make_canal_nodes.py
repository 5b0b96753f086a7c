"""Generates ``meta-zookeeper-v5.json``, with a client id of Canal. Run it for a new version only."""

from __future__ import annotations

import json
from pathlib import Path

from cdc.base.addresses import Address
from cdc.meta.file import parse
from cdc.meta.state import Subscription
from cdc.meta.zookeeper_nodes import render

HERE = Path(__file__).parent


def main() -> None:
    state = parse((HERE / "meta-v4.json").read_bytes(), "meta-v4.json")
    state.subscriptions["canal-1001"] = Subscription(filter=r"shop\..*", acked_seq=206158431791, next_batch=9)
    nodes = render(state, Address("db.example", 3306), "5f0c3a9be1d27460")
    text = {path: content.decode() for path, content in sorted(nodes.items())}
    (HERE / "meta-zookeeper-v5.json").write_text(json.dumps(text, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
