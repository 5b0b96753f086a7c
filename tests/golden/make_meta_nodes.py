"""Generates ``meta-zookeeper-v1.json``: the nodes of a meta in ZooKeeper, by path. Run it for a new version only."""

from __future__ import annotations

import json
from pathlib import Path

from cdc.base.addresses import Address
from cdc.meta import Outstanding
from cdc.meta.file import parse
from cdc.meta.state import Subscription
from cdc.meta.zookeeper_nodes import render

HERE = Path(__file__).parent


def main() -> None:
    state = parse((HERE / "meta-v1.json").read_bytes(), "meta-v1.json")
    known = state.subscriptions["apply"]
    second = known.outstanding[0]
    known.add(
        Outstanding.model_validate(
            {**second.model_dump(), "batch": 3, "after_seq": second.last_seq, "first_seq": second.last_seq + 310}
            | {"last_seq": second.last_seq + 620, "token": "0123456789abcdef0123456789abcdef", "replaced": []}
        )
    )
    state.subscriptions["1001"] = Subscription(filter=r"shop\..*")
    nodes = render(state, Address("db.example", 3306), "5f0c3a9be1d27460")
    text = {path: content.decode() for path, content in sorted(nodes.items())}
    (HERE / "meta-zookeeper-v1.json").write_text(json.dumps(text, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
