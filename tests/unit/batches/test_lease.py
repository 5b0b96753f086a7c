"""Leases: their renewal during a merge, and the owner that commands act as."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import pytest

import cdc.lake.runtime.spark_settings
from cdc.base.errors import CdcError, LeaseHeldError, MergeFailedError, StorageError, TokenError, UsageError
from cdc.batches.lease import Lease, cli_owner, exclusive, renewed
from cdc.batches.manifest import TableResult
from cdc.batches.service import BatchService
from cdc.config import DestinationConfig
from cdc.lake import pipeline
from cdc.lake.jobs import merge
from tests.support.unit_batches import NumberStore, make_config, make_service

MINE, OTHER = "airflow:apply_shop", "cli:elsewhere:/conf/shop.yaml"
LEASE_S = 0.6


@pytest.fixture
def config(tmp_path: Path) -> DestinationConfig:
    config = make_config(tmp_path)
    return config.model_copy(update={"batch": config.batch.model_copy(update={"lease_s": LEASE_S})})


@pytest.fixture
def service(config: DestinationConfig) -> BatchService:
    return make_service(config, NumberStore(last=9))


@pytest.fixture
def lease(service: BatchService) -> Lease:
    leased = service.get(MINE)
    assert leased is not None
    return leased


class SlowMerge:
    """A merge that runs until a test ends it, or that fails like a killed driver when it is stopped."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.end, self.stopped = threading.Event(), threading.Event(), threading.Event()
        monkeypatch.setattr(cdc.lake.runtime.spark_settings, "in_process", lambda spark: True)
        monkeypatch.setattr(merge, "merge", self)
        monkeypatch.setattr(pipeline, "stop", self.stop)

    def __call__(self, config: DestinationConfig, lease: Lease) -> Sequence[TableResult]:
        self.began.set()
        assert self.end.wait(30)
        if self.stopped.is_set():
            raise MergeFailedError("the Spark driver ended while the batch was merged")
        return [TableResult(table="shop.orders", inserted=1)]

    def stop(self) -> None:
        self.stopped.set()
        self.end.set()


def in_thread(config: DestinationConfig, lease: Lease) -> tuple[threading.Thread, list[Any]]:
    """Starts a merge in the background; returns its thread and its results."""
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append(pipeline.merge(config, lease))
        except CdcError as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, outcome


def test_a_merge_longer_than_its_lease_keeps_the_batch(
    config: DestinationConfig, service: BatchService, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowMerge(monkeypatch)
    thread, outcome = in_thread(config, lease)
    assert slow.began.wait(10)
    over = time.monotonic() + 3 * LEASE_S
    while time.monotonic() < over:
        with pytest.raises(LeaseHeldError, match=f"batch 1 is held by {MINE}"):
            service.get(OTHER)
        time.sleep(0.05)
    slow.end.set()
    thread.join()
    assert outcome == [[TableResult(table="shop.orders", inserted=1)]]
    assert not slow.stopped.is_set()
    expires = service.outstanding()[0].expires
    assert expires > datetime.now(UTC) + timedelta(seconds=LEASE_S / 2), "finalize has the whole lease, not its rest"
    service.ack(lease.batch, lease.token)


def test_a_merge_whose_token_was_replaced_is_stopped(
    config: DestinationConfig, service: BatchService, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowMerge(monkeypatch)
    thread, outcome = in_thread(config, lease)
    assert slow.began.wait(10)
    fresh = service.get(MINE)  # the same owner, started again, need not wait
    assert fresh is not None
    thread.join(10)
    assert slow.stopped.is_set()
    (error,) = outcome
    assert isinstance(error, TokenError)
    assert "the token given for batch 1 was replaced" in str(error)
    assert isinstance(error.__cause__, MergeFailedError)
    service.ack(fresh.batch, fresh.token)


def test_a_lease_that_expired_before_the_merge_began_merges_nothing(
    config: DestinationConfig, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowMerge(monkeypatch)
    time.sleep(LEASE_S + 0.1)
    with pytest.raises(TokenError, match="the lease of batch 1 expired at"):
        pipeline.merge(config, lease)
    assert not slow.began.is_set()


def test_after_the_end_of_its_owner_a_batch_is_taken_over(service: BatchService, lease: Lease) -> None:
    with pytest.raises(LeaseHeldError):
        service.get(OTHER)
    time.sleep(LEASE_S + 0.1)
    taken = service.get(OTHER)
    assert taken is not None
    assert taken.manifest == lease.manifest
    with pytest.raises(TokenError, match=f"was replaced: the batch was handed out again, to {OTHER}"):
        service.ack(lease.batch, lease.token)
    service.ack(taken.batch, taken.token)


class FailingRenewal:
    """Renews once, then fails with a full disk for a number of times."""

    def __init__(self, failures: int) -> None:
        self.failures, self.calls = failures, 0

    def renew(self, batch: int, token: str, *, subscriber: str = "apply", lease_s: float | None = None) -> datetime:
        self.calls += 1
        if 1 < self.calls <= 1 + self.failures:
            raise StorageError("no space left on device")
        assert lease_s is not None
        return datetime.now(UTC) + timedelta(seconds=lease_s)


def test_a_renewal_that_fails_is_tried_again_while_the_lease_lasts(lease: Lease) -> None:
    renewing, stopped = FailingRenewal(failures=3), threading.Event()
    with renewed(renewing, lease, LEASE_S, stopped.set, lambda: datetime.now(UTC)):
        deadline = time.monotonic() + 10
        while renewing.calls < 6 and time.monotonic() < deadline:
            assert not stopped.wait(0.02)
    assert renewing.calls >= 6


def test_a_renewal_that_never_succeeds_stops_the_merge_when_the_lease_is_over(lease: Lease) -> None:
    renewing, stopped = FailingRenewal(failures=1 << 30), threading.Event()
    began = time.monotonic()
    with (
        pytest.raises(TokenError, match=r"expired at .*: it could not be renewed \(no space left on device\)"),
        renewed(renewing, lease, LEASE_S, stopped.set, lambda: datetime.now(UTC)),
    ):
        assert stopped.wait(10)
    assert time.monotonic() - began >= LEASE_S
    assert 2 < renewing.calls < 30, "not in a tight loop"


def test_an_error_of_the_merge_is_raised_unchanged(service: BatchService, lease: Lease) -> None:
    def never() -> None:
        raise AssertionError("the lease is not lost")

    with pytest.raises(MergeFailedError, match="as it was"), renewed(service, lease, LEASE_S, never, _now):
        raise MergeFailedError("as it was")
    service.rollback(lease.batch, lease.token)


def _now() -> datetime:
    return datetime.now(UTC)


def test_a_lease_is_found_again_by_its_fingerprint(service: BatchService, lease: Lease) -> None:
    assert lease.token not in lease.fingerprint
    assert service.resume(lease.batch, lease.fingerprint) == lease
    for batch, fingerprint in ((lease.batch, "0" * 32), (lease.batch + 1, lease.fingerprint)):
        with pytest.raises(TokenError, match="has no such lease"):
            service.resume(batch, fingerprint)


def test_a_process_of_an_earlier_try_does_not_get_a_later_lease(service: BatchService, lease: Lease) -> None:
    later = service.get("airflow:apply_shop")
    assert later is not None and (later.batch, later.token != lease.token) == (lease.batch, True)
    zombie = service.resume(lease.batch, lease.fingerprint)
    assert zombie.token == lease.token
    with pytest.raises(TokenError, match="was replaced"):
        service.check(zombie.batch, zombie.token)
    with pytest.raises(TokenError, match="was replaced"):
        service.ack(zombie.batch, zombie.token)
    service.ack(later.batch, service.resume(later.batch, later.fingerprint).token)
    # Repeating finalize after the ack does nothing; the ack of an earlier try is refused.
    service.ack(later.batch, service.resume(later.batch, later.fingerprint).token)
    with pytest.raises(TokenError, match="has no such lease"):
        service.resume(lease.batch, lease.fingerprint)


def hold(config: DestinationConfig, ready: Event) -> None:
    with exclusive(config):
        ready.set()
        signal.pause()


def test_owner_names_host_and_file(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    assert cli_owner(config) == f"cli:{socket.gethostname()}:{tmp_path}/conf/shop.yaml"
    assert cli_owner(config, "airflow:own.lake") == "airflow:own.lake"
    with pytest.raises(UsageError, match="--owner is empty"):
        cli_owner(config, " ")


def test_exclusive_names_the_other_process_and_ends_with_it(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    fork = get_context("fork")
    ready = fork.Event()
    process = fork.Process(target=hold, args=(config, ready))
    process.start()
    assert ready.wait(10)
    with pytest.raises(LeaseHeldError, match=f"process {process.pid}"), exclusive(config):
        pass
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with exclusive(config):
        assert (config.meta.path / "apply.lock").read_text() == f"{os.getpid()}\n"


def test_destinations_do_not_disturb_one_another(tmp_path: Path) -> None:
    other = make_config(tmp_path, "other")
    with exclusive(make_config(tmp_path)), exclusive(other):
        assert (other.meta.path / "apply.lock").exists()
