"""Waiting batches of a subscriber, and obstacles of a get, on a real store and a real meta."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cdc.base.errors import LeaseHeldError, StoreIncompleteError
from cdc.base.units import time_us
from cdc.batches.service import BatchService
from cdc.batches.waiting import obstacle, waiting_seq
from cdc.config import DestinationConfig
from cdc.meta import open_meta
from cdc.store.formats.state import CaptureState, StoreLock, write_capture_state
from cdc.testing.binlog import BinlogBuilder
from cdc.testing.stores import Filler
from tests.support.unit_batches import IDENTITY, make_config

OWNER = "airflow:apply_shop"


@pytest.fixture
def config(tmp_path: Path) -> DestinationConfig:
    return make_config(tmp_path)


@pytest.fixture
def put(config: DestinationConfig) -> Callable[[int], None]:
    """Appends transactions to the store."""
    log = BinlogBuilder()

    def append(transactions: int) -> None:
        for number in range(transactions):
            log.transaction("shop", "orders", [number])
        filler = Filler(config.store.path)
        filler.put(log)
        filler.close()
        open_meta(config).bind_source(IDENTITY)

    return append


def test_what_waits(config: DestinationConfig, put: Callable[[int], None]) -> None:
    assert waiting_seq(config) is None, "there is no store"
    put(2)
    service = BatchService(config)
    last = waiting_seq(config)
    assert last == service.last_seq()
    assert waiting_seq(config, last) is None, "nothing behind that"
    lease = service.get(OWNER)
    assert lease is not None
    assert waiting_seq(config) is None, "a batch has all of it"
    put(1)
    assert waiting_seq(config, last) == service.last_seq() > last
    service.rollback(lease.batch, lease.token)
    assert waiting_seq(config) == service.last_seq()


def test_tables_that_the_subscriber_does_not_want_do_not_count(
    config: DestinationConfig, put: Callable[[int], None]
) -> None:
    put(2)
    BatchService(config).subscribe("apply", r"shop\.other")
    assert waiting_seq(config) is None
    BatchService(config).subscribe("apply", r"shop\.orders")
    assert waiting_seq(config) is not None


def test_a_batch_of_another_owner_is_in_the_way(config: DestinationConfig, put: Callable[[int], None]) -> None:
    assert obstacle(config, OWNER) is None
    put(2)
    service = BatchService(config)
    lease = service.get("cli:elsewhere:x")
    assert lease is not None
    error = obstacle(config, OWNER)
    assert isinstance(error, LeaseHeldError)
    assert "held by cli:elsewhere:x until" in str(error)
    assert obstacle(config, "cli:elsewhere:x") is None
    service.rollback(lease.batch, lease.token)
    assert obstacle(config, OWNER) is None
    assert service.get("cli:elsewhere:x", lease_s=-1) is not None
    assert obstacle(config, OWNER) is None, "its lease has expired"


def test_an_incomplete_store_is_in_the_way(config: DestinationConfig, put: Callable[[int], None]) -> None:
    until = datetime(2026, 11, 21, 10, tzinfo=UTC)
    assert isinstance(obstacle(config, OWNER, until), StoreIncompleteError), "there is no store"
    put(2)
    lock = StoreLock(config.store.path)
    try:
        for late_s, blocked in ((-1, True), (0, False), (1, False)):
            complete_us = time_us(until + timedelta(seconds=late_s))
            state = CaptureState(os.getpid(), True, "binlog.000001", 4, None, 0, complete_us)
            write_capture_state(config.store.path, state)
            assert isinstance(obstacle(config, OWNER, until), StoreIncompleteError) is blocked
    finally:
        lock.release()
