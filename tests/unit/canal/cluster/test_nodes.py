"""The names and contents of a cluster's nodes."""

from __future__ import annotations

import json

import pytest

from cdc.base.addresses import check_host
from cdc.base.errors import ConfigError, DamagedError, NotLeaderError, UsageError, VersionError
from cdc.canal.cluster import nodes
from cdc.canal.cluster.nodes import LeaderRecord, ServerNode, Tree
from cdc.wire.protocol import error_document, error_of, status_of


def test_the_paths_are_those_of_canal() -> None:
    tree = Tree("/otter/canal")
    assert tree.running("shop") == "/otter/canal/destinations/shop/running"
    assert f"{tree.members('shop')}/10.0.0.7:11111" == "/otter/canal/destinations/shop/cluster/10.0.0.7:11111"
    assert tree.server("10.0.0.7:11111") == "/otter/canal/cluster/10.0.0.7:11111"
    assert tree.client_running("shop", 1001) == "/otter/canal/destinations/shop/1001/running"
    for name in ("", "a/b", ".."):
        with pytest.raises(UsageError):
            tree.running(name)


def test_the_documents_are_those_of_canal() -> None:
    assert nodes.render_running("10.0.0.7:11111", 3) == b'{"active":true,"address":"10.0.0.7:11111","cid":3}'
    assert nodes.render_client("10.0.0.9:1", 1001) == b'{"active":true,"address":"10.0.0.9:1","clientId":1001}'
    assert nodes.parse_running(b'{"active":true,"address":"10.0.0.7:11111","cid":2}', "p") == "10.0.0.7:11111"
    assert nodes.parse_running(b'{"active":false,"address":"10.0.0.7:11111"}', "p") is None
    for damaged in (b"", b"x", b"[]", b'{"active":true}', b'{"address":7}'):
        with pytest.raises(DamagedError):
            nodes.parse_running(damaged, "p")
    assert nodes.parse_member("h:1", b"") == ServerNode("h:1") == nodes.parse_member("h:1", b"{{")
    assert nodes.parse_member("h:1", nodes.render_member(ServerNode("h:1", "http://h:2"))) == ServerNode(
        "h:1", "http://h:2"
    )


def test_the_record_of_a_leadership() -> None:
    record = LeaderRecord(7, ServerNode("10.0.0.7:11111", "https://10.0.0.7:8040"), "n", 5)
    # The golden text: a node of this version has to be readable for ever.
    golden = b'{"version":1,"epoch":7,"address":"10.0.0.7:11111","http":"https://10.0.0.7:8040","nonce":"n","since":5}'
    assert record.render() == golden
    assert nodes.parse_leader(golden, "p") == record and nodes.parse_leader(b"", "p") is None
    with pytest.raises(VersionError, match="format version 2"):
        nodes.parse_leader(golden.replace(b'"version":1', b'"version":2'), "p")
    for key, value in (("epoch", 0), ("epoch", "7"), ("address", None), ("since", None), ("http", 3)):
        with pytest.raises(DamagedError, match="p: is not the record"):
            nodes.parse_leader(json.dumps({**json.loads(golden), key: value}).encode(), "p")


def test_addresses_are_those_that_canals_clients_can_read() -> None:
    assert nodes.address_of("10.0.0.7:11111") == ("10.0.0.7", 11111)
    for text in ("10.0.0.7", "[::1]:11111", "h:0", "h:99999", "a b:1"):
        with pytest.raises(ConfigError):
            nodes.address_of(text)
    assert check_host("db-1.example") == "db-1.example"
    for host in ("::1", "0.0.0.0", "a b", "-x"):
        with pytest.raises(ValueError, match=r"IPv|no address|neither"):
            check_host(host)


def test_a_refusal_names_the_leader_over_the_wire() -> None:
    error = NotLeaderError("does not lead", place="shop", leader="https://10.0.0.7:8040")
    received = error_of(json.loads(json.dumps(error_document(error))))
    assert isinstance(received, NotLeaderError) and received.leader == "https://10.0.0.7:8040" and received.retryable
    assert status_of(error) == 421
