"""The rules of get, ack and rollback hold through a server, over real HTTP: the tests of the local service run again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cdc.base.errors import LeaseHeldError, StoreIncompleteError, TokenError, UsageError
from cdc.batches.service import BatchService, limits_of
from cdc.client.batches import RemoteBatchService
from cdc.config import DestinationConfig
from cdc.server.destinations import ServedDestination
from cdc.wire.connection import Connection
from tests.support.server import OTHER_TOKEN, TOKEN, in_thread, with_tokens
from tests.support.unit_batches import TX_TIME_US, Clock, NumberStore, make_service
from tests.unit.batches import test_service as local
from tests.unit.batches.test_service import *  # noqa: F403 - the tests of the protocol, and their fixtures
from tests.unit.batches.test_service import A, B, bounds, get

_OF_FILES = (
    "test_the_manifest_on_disk_equals_the_leases_and_has_no_token",
    "test_a_lost_or_damaged_manifest_gives_a_new_batch_with_the_same_data",
    "test_files_of_a_killed_get_are_overwritten_and_a_lost_meta_does_not_reuse_ids",
    "test_kept_manifests_are_bounded",
)
"""About files that only the server sees."""
_OTHERWISE = (
    "test_limits_default_to_the_configuration",
    "test_nothing_is_handed_out_before_the_source_is_known",
    "test_subscribers_are_independent",
    "test_subscribing_stores_the_cursor_at_once",
)
"""About limits, which are the server's, about a service without a source, and about several subscribers, each of which
has a token of its own: below."""
for _name in _OF_FILES + _OTHERWISE:
    del globals()[_name]


class Served:
    """Servers in threads, one for each configuration."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._mutex = threading.Lock()
        self._known: dict[Path, tuple[ServedDestination, str]] = {}

    def make(self, config: DestinationConfig, store: NumberStore, clock: Clock | None = None) -> RemoteBatchService:
        """Makes a service like :func:`make_service` on a server, and returns its client."""
        store.folder = config.store.path
        local_service = make_service(config, store, clock)
        with self._mutex:
            if config.file not in self._known:
                served = ServedDestination(with_tokens(config))
                self._known[config.file] = (served, self._stack.enter_context(in_thread([served])))
            served, url = self._known[config.file]
            served.batches = local_service
        return RemoteBatchService(Connection(url, config.name, TOKEN, retry_for_s=5), config.batch)


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    with ExitStack() as stack:
        served = Served(stack)
        monkeypatch.setattr(local, "make_service", served.make)
        yield served


def as_other(service: RemoteBatchService) -> RemoteBatchService:
    """The client of the subscriber ``audit``."""
    return RemoteBatchService(replace(service.connection, token=OTHER_TOKEN), service._batch)


def test_each_subscriber_has_its_token_and_sees_its_own_subscription(service: RemoteBatchService) -> None:
    audit = as_other(service)
    mine, other = get(service), get(audit, B, subscriber="audit")
    assert bounds(mine) == bounds(other)
    service.ack(mine.batch, mine.token)
    assert audit.meta.cursor("audit") == 0
    assert list(service.meta.subscriptions()) == ["apply"]
    assert list(audit.meta.subscriptions()) == ["audit"]
    for action in (
        lambda: service.ack(other.batch, other.token, subscriber="audit"),
        lambda: service.get(A, subscriber="audit"),
        lambda: service.subscription("audit"),
        lambda: service.release(B, subscriber="audit"),
        lambda: service.unsubscribe("audit"),
    ):
        with pytest.raises(UsageError, match="the token belongs to subscriber apply, not to audit"):
            action()
    assert [lease.batch for lease in audit.outstanding("audit")] == [other.batch]


def test_a_subscription_is_added_changed_and_removed(service: RemoteBatchService) -> None:
    audit = as_other(service)
    assert audit.subscribe("audit", r"shop\.items").filter == r"shop\.items"
    assert audit.subscription("audit").filter == r"shop\.items"
    audit.unsubscribe("audit")
    assert audit.meta.subscriptions() == {}


def test_limits_are_the_servers(service: RemoteBatchService, config: DestinationConfig) -> None:
    with pytest.raises(UsageError, match="where the server runs"):
        service.get(A, limits=limits_of(config.batch))


@pytest.mark.parametrize("ahead", [False, True])
def test_a_get_repeated_with_its_token_returns_the_same_batch(service: RemoteBatchService, ahead: bool) -> None:
    """The answer of the first one was lost, perhaps with the server's process."""
    token = "ab" * 16
    first = service.get(A, ahead=ahead, token=token)
    repeated = service.get(A, ahead=ahead, token=token)
    assert first is not None
    assert repeated == first
    assert len(service.outstanding()) == 1
    service.ack(first.batch, token)


def test_a_get_following_repeated_with_its_token_returns_the_same_batch(service: RemoteBatchService) -> None:
    lease = get(service)
    service.ack(lease.batch, lease.token)
    arguments = {"owner": A, "acked": lease.batch, "acked_token": lease.token, "token": "cd" * 16}
    first, repeated = (service._call("get", "apply", arguments) for _ in range(2))
    assert first["manifest"] == repeated["manifest"]
    assert first["token"] == repeated["token"] == "cd" * 16
    with pytest.raises(TokenError, match="another process has taken"):
        service._call("get", "apply", {**arguments, "token": "ef" * 16})


def test_a_repeated_get_does_not_take_a_batch_back(config: DestinationConfig, servers: Served, clock: Clock) -> None:
    """Another owner took the batch over when the lease had expired; the first one's repetition comes late."""
    service = servers.make(config, NumberStore(last=10), clock)
    token = "ab" * 16
    assert service.get(A, token=token) is not None
    clock.forward(60)
    get(service, B)
    with pytest.raises(LeaseHeldError):
        service.get(A, token=token)


def test_until_waits_for_the_store_and_says_when_nothing_is_left(config: DestinationConfig, servers: Served) -> None:
    store = NumberStore(last=2)
    service = servers.make(config, store)
    until = datetime.fromtimestamp(4 * TX_TIME_US / 1e6, UTC)
    lease = service.get(A, until=until)
    assert lease is not None
    assert bounds(lease) == (0, 1, 2)
    service.ack(lease.batch, lease.token)
    with pytest.raises(StoreIncompleteError, match="may be missing"):
        service.get(A, until=until, wait_s=0.1)
    store.complete_us = 4 * TX_TIME_US
    assert service.get(A, until=until, wait_s=5) is None


def test_the_paths_of_a_batch_are_uris_of_the_server(service: RemoteBatchService, config: DestinationConfig) -> None:
    lease = get(service)
    place = service.connection.place
    assert [byte_range.path for byte_range in lease.manifest.ranges] == [
        f"towpath+{place}/000-0000000-00000000004.binlog"
    ]
    assert lease.manifest.schema_path == f"towpath+{place}/schemas/0.json"
    assert str(config.store.path) not in lease.manifest.model_dump_json()


def test_a_service_of_this_machine_and_a_client_share_the_batches(
    service: RemoteBatchService, config: DestinationConfig, clock: Clock
) -> None:
    lease = get(service)
    local_service = make_service(config, NumberStore(last=10, folder=config.store.path), clock)
    assert [outstanding.token for outstanding in local_service.outstanding()] == [lease.token]
    with pytest.raises(LeaseHeldError):
        local_service.get(B)
    assert isinstance(local_service, BatchService)
