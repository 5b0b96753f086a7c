"""The nodes of a meta in ZooKeeper: their form, golden nodes, and damage."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cdc.base.addresses import Address
from cdc.base.errors import DamagedError, IdentityError, VersionError
from cdc.meta import ParkedTable, State, TableRecord, UnknownColumns
from cdc.meta.state import Subscription
from cdc.meta.zookeeper_nodes import Nodes, parse, refuse_foreign, render

GOLDEN = Path(__file__).parents[2] / "golden"
ADDRESS = Address("db.example", 3306)


def golden(version: int = 7) -> Nodes:
    content = (GOLDEN / f"meta-zookeeper-v{version}.json").read_bytes()
    return {path: text.encode() for path, text in json.loads(content).items()}


def read(nodes: Nodes) -> State:
    return parse(nodes, "shop", lambda path: f"/{path}")


def test_version_6_is_read() -> None:
    state = read(golden(6))
    source, subscription = state.source, state.subscriptions["apply"]
    assert source is not None and source.began is not None
    assert (source.epoch, source.began.after_seq, len(source.former)) == (1, 206158431791, 1)
    assert (subscription.since_seq, subscription.position()) == (171798691844, 206158431791)
    assert [(gap.after_seq, gap.until_seq, gap.table) for gap in subscription.gaps] == [
        (171798699999, 206158430365, None),
        (0, 206158430365, "shop.orders"),
    ]
    assert subscription.table("shop.customers") == TableRecord(
        1, 3, 206158431024, "ee4dd11e-8353-45a3-bf88-237629c29f86"
    )
    assert subscription.table("shop.items") is None
    assert {name: (entry.due, entry.keep_seq) for name, entry in subscription.parked.items()} == {
        "shop.items": ("snapshot", None),
        "shop.orders": ("retry", 206158431791),
        "shop.coupons": ("snapshot", 206158431024),
    }
    assert subscription.parked["shop.coupons"].columns == UnknownColumns(seq=206158431791, names=("code", "total"))
    assert [(entry.batch, entry.owner, entry.mark) for entry in subscription.outstanding] == [
        (2, "airflow:shop_apply", None)
    ]
    assert read(render(state, ADDRESS, "c")) == state


def test_a_change_of_version_6_writes_no_node_anew_but_the_one_with_the_version() -> None:
    nodes = golden(6)
    written = render(read(nodes), ADDRESS, json.loads(nodes["towpath"])["change"])
    assert {path for path in nodes | written if nodes.get(path) != written.get(path)} == {"towpath"}
    assert json.loads(written["towpath"])["version"] == 7


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (5, "/towpath: has format version 5; this Towpath reads versions from 6 on"),
        (8, "/towpath: has format version 8; this Towpath knows 7"),
    ],
)
def test_another_version_is_refused(version: int, message: str) -> None:
    nodes = golden()
    nodes["towpath"] = nodes["towpath"].replace(b'"version":7', b'"version":%d' % version)
    with pytest.raises(VersionError, match=message):
        read(nodes)


def positions(nodes: Nodes) -> dict[str, dict[str, Any]]:
    """Returns what Canal's tools read of the subscriber ``apply``: the cursor, and both ends of batch 2."""
    batch = json.loads(nodes["apply/mark/0000000002"])
    assert batch["ack"] == batch["end"]
    return {
        "cursor": json.loads(nodes["apply/cursor"])["postion"],
        "start": batch["start"]["postion"],
        "end": batch["end"]["postion"],
    }


def test_positions_have_time_server_id_and_gtids() -> None:
    old = "6f5c1f0e-c5f4-11f0-9d0a-0242ac110002"
    file = {"included": False, "journalName": "binlog.000012", "position": 1583}
    assert positions(golden()) == {
        "cursor": {"gtid": f"{old}:1-7", **file, "serverId": 1, "timestamp": 1795430471123},
        "start": {"included": False, "journalName": "binlog.000012", "position": 2207},
        "end": {
            "gtid": f"{old}:1-900,81a3c8d4-e76c-11f1-9013-02fc00000001:1-4",
            "included": False,
            "journalName": "binlog.000013",
            "position": 907,
            "serverId": 2,
            "timestamp": 1795430475000,
        },
    }
    assert positions(golden(6))["cursor"] == file  # its mark has only what proves the history


def test_both_ends_of_a_batch_of_one_transaction_have_them() -> None:
    state = read(golden())
    entry = state.subscriptions["apply"].outstanding[0]
    entry.first_seq = entry.last_seq
    shown = positions(render(state, ADDRESS, "c"))
    assert shown["start"] == shown["end"] and shown["end"]["serverId"] == 2


def test_a_cursor_that_is_not_at_the_mark_has_a_position_alone() -> None:
    state = read(golden())
    state.subscriptions["apply"].acked_seq += 100
    nodes = render(state, ADDRESS, "c")
    assert positions(nodes)["cursor"] == {"included": False, "journalName": "binlog.000012", "position": 1683}
    assert read(nodes) == state


@pytest.mark.parametrize("key", ["timestamp", "serverId", "gtid", "position", "journalName"])
def test_a_position_that_contradicts_the_mark_is_damage(key: str) -> None:
    nodes = golden()
    cursor = json.loads(nodes["apply/cursor"])
    cursor["postion"][key] = 4711
    nodes["apply/cursor"] = json.dumps(cursor).encode()
    with pytest.raises(DamagedError, match=f"/apply/cursor: contradicts itself: .* but postion is .*'{key}': 4711"):
        read(nodes)


def test_canals_own_cursor_is_not_taken_for_a_subscribers() -> None:
    nodes = golden()
    cursor = json.loads(nodes["apply/cursor"])
    del cursor["towpath"]
    nodes["apply/cursor"] = json.dumps(cursor).encode()
    with pytest.raises(DamagedError, match=r"/apply/cursor: is not a cursor of Towpath: it has no towpath\.acked_seq"):
        read(nodes)
    nodes["1002/cursor"] = json.dumps(cursor).encode()
    del nodes["apply/towpath"]  # now both nodes are a client's of Canal
    assert set(read(nodes).subscriptions) == {"canal-1001"}


def test_a_client_id_of_canal_has_the_node_where_canals_tools_look() -> None:
    nodes = golden()
    assert read(nodes).subscriptions["canal-1001"].acked_seq == 206158431791
    assert {path for path in nodes if path.partition("/")[0] == "1001"} == {
        "1001",
        "1001/cursor",
        "1001/filter",
        "1001/mark",
        "1001/towpath",
    }
    assert json.loads(nodes["1001/cursor"])["postion"]["journalName"] == "binlog.000012"
    assert nodes["1001/filter"] == rb"shop\..*"


def test_a_client_id_leaves_its_node_to_a_subscriber_of_that_name() -> None:
    state = read(golden())
    state.subscriptions["1001"] = Subscription(filter="crm")
    nodes = render(state, ADDRESS, "c")
    assert nodes["1001/filter"] == b"crm" and nodes["canal-1001/filter"] == rb"shop\..*"
    assert read(nodes) == state
    del state.subscriptions["1001"]
    assert read(render(state, ADDRESS, "c")) == state == read(golden())


def test_nodes_of_one_client_id_twice_are_damage() -> None:
    nodes = golden()
    twice = {path.replace("1001", "canal-1001"): content for path, content in nodes.items() if path.startswith("1001")}
    ours = json.loads(twice["canal-1001/towpath"])
    del ours["subscriber"]
    twice["canal-1001/towpath"] = json.dumps(ours).encode()
    with pytest.raises(DamagedError, match="is a second node of the subscriber 'canal-1001'"):
        read({**nodes, **twice})
    nodes["1001/towpath"] = nodes["1001/towpath"].replace(b"canal-1001", b"canal-1002")
    with pytest.raises(DamagedError, match="is not the node of a subscriber 'canal-1002'"):
        read(nodes)


def test_a_client_id_takes_no_cursor_of_canals_own_server() -> None:
    with pytest.raises(IdentityError, match="/1001: has cursor of a client that is not Towpath's"):
        refuse_foreign(read(golden()), {"1001": frozenset({"cursor", "running"})}, lambda path: f"/{path}")
    refuse_foreign(read(golden()), {"1001": frozenset({"cluster", "running"})}, lambda path: f"/{path}")


def test_many_tables_stay_below_zookeepers_limit() -> None:
    state = read(golden())
    state.subscriptions["apply"].tables = {
        f"a_database.a_table_with_a_long_name_{i}": TableRecord(0, 100_000, 2**62, "e" * 36).text for i in range(5000)
    }
    parked = ParkedTable(due="snapshot", reason="r" * 160, since=datetime(2026, 11, 22, tzinfo=UTC))
    state.subscriptions["apply"].parked = dict.fromkeys(state.subscriptions["apply"].tables, parked)
    nodes = render(state, ADDRESS, "c")
    assert read(nodes) == state
    assert max(map(len, nodes.values())) < 100_000


def test_the_written_nodes_equal_the_golden_ones() -> None:
    nodes = golden()
    assert render(read(nodes), ADDRESS, json.loads(nodes["towpath"])["change"]) == nodes


def test_no_nodes_give_an_empty_state() -> None:
    assert read({}) == State(destination="shop")
    assert read({"towpath": b""}) == State(destination="shop")  # the first lock creates it


def test_each_flipped_or_missing_byte_is_found_or_has_no_meaning() -> None:
    good = golden()
    state = read(good)
    damaged = 0
    for path, content in good.items():
        for at in range(len(content)):
            for bad in (content[:at], content[:at] + bytes([content[at] ^ 0x15]) + content[at + 1 :]):
                try:
                    parsed = read({**good, path: bad})
                except (DamagedError, VersionError) as error:
                    damaged += f"/{path.split('/')[0]}" in str(error)
                else:  # only Canal's tools read it: it is not part of the state
                    assert parsed == state, (path, at)
    assert damaged > 2000


@pytest.mark.parametrize("path", sorted(path for path, content in golden().items() if content))
def test_a_lost_node_is_found(path: str) -> None:
    nodes = golden()
    state = read(nodes)
    del nodes[path]
    if path.endswith("/towpath"):  # it looks like a client of Canal now, and nobody may subscribe with its name
        name = path.removesuffix("/towpath")
        assert name not in read(nodes).subscriptions
        assert len(read(nodes).subscriptions) == len(state.subscriptions) - 1
    else:
        with pytest.raises(DamagedError):
            read(nodes)


def test_another_destinations_nodes_are_refused() -> None:
    with pytest.raises(IdentityError, match="belongs to destination 'shop', not to 'crm'"):
        parse(golden(), "crm", lambda path: path)


def test_an_unknown_address_is_left_out() -> None:
    nodes = render(read(golden()), None, "c")
    assert json.loads(nodes["apply/cursor"])["identity"] == {"slaveId": -1}
    assert read(nodes) == read(golden())
