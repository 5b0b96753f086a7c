"""Generates ``meta-v6.json`` and ``meta-zookeeper-v7.json``, whose marks have what Canal's tools are shown. Run it for a
new version only."""

from __future__ import annotations

import json
from pathlib import Path

from cdc.base.addresses import Address
from cdc.meta import HistoryMark
from cdc.meta.file import parse, render
from cdc.meta.state import Subscription
from cdc.meta.zookeeper_nodes import render as render_nodes

HERE = Path(__file__).parent
OLD, NEW = "6f5c1f0e-c5f4-11f0-9d0a-0242ac110002", "81a3c8d4-e76c-11f1-9013-02fc00000001"


def main() -> None:
    state = parse((HERE / "meta-v5.json").read_bytes(), "meta-v5.json")
    subscription = state.subscriptions["apply"]
    assert subscription.mark is not None
    subscription.mark = subscription.mark.model_copy(
        update={"commit_time_us": 1795430471123456, "server_id": 1, "gtids": f"{OLD}:1-7"}
    )
    subscription.outstanding[0].mark = HistoryMark(
        seq=subscription.outstanding[0].last_seq,
        gtid=f"{NEW}:4",
        file_created_s=1795430400,
        commit_time_us=1795430475000000,
        server_id=2,
        gtids=f"{OLD}:1-900,{NEW}:1-4",
    )
    (HERE / "meta-v6.json").write_bytes(render(state))
    state.subscriptions["canal-1001"] = Subscription(filter=r"shop\..*", acked_seq=206158431791, next_batch=9)
    nodes = render_nodes(state, Address("db.example", 3306), "5f0c3a9be1d27460")
    text = {path: content.decode() for path, content in sorted(nodes.items())}
    (HERE / "meta-zookeeper-v7.json").write_text(json.dumps(text, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
