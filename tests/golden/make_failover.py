"""Generates ``meta-v4.json``, ``meta-zookeeper-v4.json`` and ``gtids-v1.json``. Run it for a new version only."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from cdc.base.addresses import Address
from cdc.binlog.gtids import GtidSet
from cdc.meta.file import parse, render
from cdc.meta.state import EpochStart
from cdc.meta.zookeeper_nodes import render as render_nodes
from cdc.store.formats.gtids import GTIDS_FILE, GtidCheckpoint, write_checkpoint

HERE = Path(__file__).parent
OLD, NEW = "6f5c1f0e-c5f4-11f0-9d0a-0242ac110002", "81a3c8d4-e76c-11f1-9013-02fc00000001"


def main() -> None:
    state = parse((HERE / "meta-v3.json").read_bytes(), "meta-v3.json")
    former = state.source
    assert former is not None
    began = EpochStart(
        file="binlog.000003",
        pos=4711,
        after_seq=206158431791,
        time=datetime(2026, 11, 23, 10, 0, 7, tzinfo=UTC),
        overlap=f"{OLD}:880:882",
        overlap_file="binlog.000003",
        overlap_pos=6021,
        lost=f"{OLD}:901-903",
    )
    state.source = former.model_copy(
        update={
            "server_uuid": NEW,
            "epoch": former.epoch + 1,
            "start_gtid": f"{OLD}:1-900",
            "address": "db2.example:3306",
            "began": began,
            "former": (former,),
        }
    )
    (HERE / "meta-v4.json").write_bytes(render(state))
    nodes = render_nodes(state, Address("db.example", 3306), "5f0c3a9be1d27460")
    text = {path: content.decode() for path, content in sorted(nodes.items())}
    (HERE / "meta-zookeeper-v4.json").write_text(json.dumps(text, indent=1, ensure_ascii=False) + "\n")
    with TemporaryDirectory() as folder:
        for seq, last in ((206158431791, 900), (36028797018968687, 903)):
            write_checkpoint(Path(folder), "mysql", GtidCheckpoint(seq, GtidSet.parse(f"{OLD}:1-{last},{NEW}:7:tag:1")))
        (HERE / "gtids-v1.json").write_bytes((Path(folder) / GTIDS_FILE).read_bytes())


if __name__ == "__main__":
    main()
