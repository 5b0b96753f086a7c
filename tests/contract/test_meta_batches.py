"""The batch service behaves the same over every meta."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.base.errors import BatchOrderError, LeaseHeldError, TokenError
from cdc.batches import BatchService
from cdc.config import DestinationConfig, parse
from cdc.event_store.memory_meta import MemoryMeta
from cdc.meta import Meta, open_meta
from cdc.meta.file import FileMeta
from cdc.meta.mixed import MixedMeta
from cdc.meta.zookeeper import ZooKeeperMeta
from cdc.testing.servers import Server
from tests.contract.meta_support import maker
from tests.support.unit_batches import IDENTITY, NumberStore, make_config

A, B = "airflow:shop_apply", "cli:host:/conf/shop.yaml"
KINDS = ("memory", "file", "file-mixed", "zookeeper", "zookeeper-mixed")


@pytest.fixture(params=KINDS)
def meta(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Meta]:
    meta: Meta
    if request.param == "memory":
        meta = MemoryMeta("shop")
    else:
        durable = (
            FileMeta(tmp_path / "shop" / "meta", "shop")
            if request.param.startswith("file")
            else maker(request.getfixturevalue("zookeeper"))()
        )
        meta = durable
        if request.param.endswith("mixed"):
            meta = MixedMeta(FileMeta(tmp_path / "memory", "shop"), durable, period_s=0.05)
            meta.begin()
    with meta:
        yield meta


@pytest.fixture
def service(meta: Meta, tmp_path: Path) -> BatchService:
    meta.bind_source(IDENTITY)
    return BatchService(make_config(tmp_path), reader=NumberStore(last=10), meta=meta)


def get(service: BatchService, *, ahead: bool = False) -> tuple[int, str, tuple[int, int]]:
    lease = service.get(A, ahead=ahead)
    assert lease is not None
    return lease.batch, lease.token, (lease.manifest.first_seq, lease.manifest.last_seq)


@pytest.mark.rule("canal-meta-11")
def test_get_ack_to_the_end(service: BatchService) -> None:
    ranges = []
    while (lease := service.get(A)) is not None:
        ranges.append((lease.batch, lease.manifest.first_seq, lease.manifest.last_seq))
        service.ack(lease.batch, lease.token)
        service.ack(lease.batch, lease.token)  # repeating it does nothing
    assert ranges == [(1, 1, 3), (2, 4, 6), (3, 7, 9), (4, 10, 10)]
    assert service.meta.cursor("apply") == 10


@pytest.mark.rule("canal-meta-12")
def test_acks_are_in_order_and_name_both(service: BatchService) -> None:
    first, token, _ = get(service)
    second, later, _ = get(service, ahead=True)
    with pytest.raises(BatchOrderError, match=f"batch {second} cannot be acked: batch {first} is due first"):
        service.ack(second, later)
    service.ack(first, token)
    service.ack(second, later)
    assert service.meta.cursor("apply") == 6


@pytest.mark.rule("canal-meta-13")
def test_get_after_rollback_gives_the_same_transactions_in_a_new_batch(service: BatchService) -> None:
    _, _, range_1 = get(service)
    second, token, range_2 = get(service, ahead=True)
    third, _, range_3 = get(service, ahead=True)
    assert service.rollback(second, token) == [second, third]
    repeated = [get(service, ahead=True) for _ in range(2)]
    assert [bounds for _, _, bounds in repeated] == [range_2, range_3]
    assert [batch for batch, _, _ in repeated] == [third + 1, third + 2]
    first, token, bounds = get(service)
    assert (first, bounds) == (1, range_1)
    assert service.rollback(first, token) == [1, third + 1, third + 2]
    assert get(service)[2] == range_1


def test_leases_keep_others_out_and_old_tokens_are_dead(service: BatchService) -> None:
    batch, old, _ = get(service)
    with pytest.raises(LeaseHeldError, match=A):
        service.get(B)
    _, new, _ = get(service)
    with pytest.raises(TokenError, match="was replaced"):
        service.ack(batch, old)
    service.check(batch, new)
    service.renew(batch, new)
    service.ack(batch, new)


def test_the_configuration_opens_zookeeper(zookeeper: Server, tmp_path: Path) -> None:
    root = maker(zookeeper).keywords["root"]
    made = make_config(tmp_path)
    text = made.file.read_text() + "\n"
    text = text.replace("meta:\n", f"meta:\n  kind: zookeeper\n  hosts: {zookeeper.url}\n  root: {root}\n")
    config: DestinationConfig = parse(text, made.file)
    with open_meta(config) as meta:
        assert isinstance(meta, ZooKeeperMeta)
        meta.bind_source(IDENTITY)
        service = BatchService(config, reader=NumberStore(last=10), meta=meta)
        batch, token, _ = get(service)
        service.ack(batch, token)
    with open_meta(config) as meta:
        assert meta.cursor("apply") == 3
        assert meta.place == f"zookeeper://{zookeeper.url}{root}/destinations/shop"
