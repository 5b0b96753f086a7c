"""The nodes of a meta in ZooKeeper: their form, its fixture, and that no damage passes for a state."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdc.errors import DamagedError, IdentityError, VersionError
from cdc.meta import State
from cdc.meta.nodes import Address, Nodes, parse, render

GOLDEN = Path(__file__).parents[1] / "golden" / "meta-zookeeper-v1.json"
ADDRESS = Address("db.example", 3306)


def golden() -> Nodes:
    return {path: content.encode() for path, content in json.loads(GOLDEN.read_bytes()).items()}


def read(nodes: Nodes) -> State:
    return parse(nodes, "shop", lambda path: f"/{path}")


def test_version_1_is_read_for_ever() -> None:
    state = read(golden())
    assert state.destination == "shop"
    assert state.source is not None
    assert state.source.server_uuid == "6f5c1f0e-c5f4-11f0-9d0a-0242ac110002"
    assert sorted(state.subscriptions) == ["1001", "apply"]
    assert state.subscriptions["1001"].model_dump() == {
        "filter": r"shop\..*",
        "acked_seq": 0,
        "next_batch": 1,
        "outstanding": [],
        "finished": [],
    }
    known = state.subscriptions["apply"]
    assert (known.filter, known.acked_seq, known.next_batch, known.finished[0].outcome) == (
        None,
        206158431791,
        4,
        "acked",
    )
    assert [(e.batch, e.owner) for e in known.outstanding] == [
        (2, "airflow:shop_apply"),
        (3, "airflow:shop_apply"),
    ]


def test_what_is_written_is_the_same_for_ever() -> None:
    nodes = golden()
    assert render(read(nodes), ADDRESS, json.loads(nodes["towpath"])["change"]) == nodes


def test_no_nodes_are_an_empty_state() -> None:
    assert read({}) == State(destination="shop")
    assert read({"towpath": b""}) == State(destination="shop")  # made by the first who locked


def test_each_flipped_or_missing_byte_is_found_or_means_nothing() -> None:
    good = golden()
    state = read(good)
    damaged = 0
    for path, content in good.items():
        for at in range(len(content)):
            for bad in (content[:at], content[:at] + bytes([content[at] ^ 0x15]) + content[at + 1 :]):
                try:
                    found = read({**good, path: bad})
                except (DamagedError, VersionError) as error:
                    damaged += f"/{path.split('/')[0]}" in str(error)
                else:  # what only Canal's tools read: the state is not made from it
                    assert found == state, (path, at)
    assert damaged > 3000


@pytest.mark.parametrize("path", sorted(path for path, content in golden().items() if content))
def test_a_lost_node_is_found(path: str) -> None:
    nodes = golden()
    state = read(nodes)
    del nodes[path]
    if path.endswith("/towpath"):  # looks like a client of Canal's now; nobody may subscribe as it
        name = path.removesuffix("/towpath")
        assert name not in read(nodes).subscriptions
        assert len(read(nodes).subscriptions) == len(state.subscriptions) - 1
    else:
        with pytest.raises(DamagedError):
            read(nodes)


def test_another_destinations_nodes_are_refused() -> None:
    with pytest.raises(IdentityError, match="belongs to destination 'shop', not to 'crm'"):
        parse(golden(), "crm", lambda path: path)


def test_the_address_is_left_out_where_it_is_not_known() -> None:
    nodes = render(read(golden()), None, "c")
    assert json.loads(nodes["apply/cursor"])["identity"] == {"slaveId": -1}
    assert read(nodes) == read(golden())
