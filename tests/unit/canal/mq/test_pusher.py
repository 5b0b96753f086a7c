"""The loop of a push over a store on disk, with a producer that fails where a real one is not made to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import ConfigError, LeaseHeldError, MessageTooLargeError, PeerUnavailableError
from cdc.batches.service import BatchService
from cdc.canal.mq import pusher as pusher_module
from cdc.canal.mq.pusher import Pusher
from cdc.canal.mq.writer import QueueMessage
from cdc.config import DestinationConfig, parse
from cdc.watch.metrics import catalogue
from cdc.watch.metrics.mq import PushMonitor
from tests.support.configurations import FILE, document
from tests.support.unit_batches import IDENTITY, make_config, make_store


class FakeSender:
    """Keeps what was committed. ``fail``: called with the number of calls so far, may raise."""

    def __init__(self, log: list[str], sent: list[QueueMessage], fail: Callable[[str, int], None]) -> None:
        self._log, self._sent, self._fail = log, sent, fail
        self._open: list[QueueMessage] = []

    def _step(self, name: str) -> None:
        self._log.append(name)
        self._fail(name, self._log.count(name))

    def begin(self) -> None:
        self._step("begin")

    def send(self, messages: Sequence[QueueMessage]) -> None:
        self._step("send")
        self._open += messages

    def commit(self) -> None:
        self._step("commit")
        self._sent += self._open
        self._open = []

    def abort(self) -> None:
        self._log.append("abort")
        self._open = []

    def close(self) -> None:
        self._log.append("close")


class Site:
    """A destination whose store has the golden transactions of ``bat.o``."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **mq: Any) -> None:
        config = make_config(folder)
        make_store(config.store.path)
        values = {"servers": ["127.0.0.1:9"], "topic": "shop", **mq}
        self.config = config.model_copy(update={"mq": parse(document(mq=values), FILE).mq})
        self.service = BatchService(self.config)
        self.service.meta.bind_source(IDENTITY)
        self.log: list[str] = []
        self.sent: list[QueueMessage] = []
        self.fail: Callable[[str, int], None] = lambda name, count: None
        monkeypatch.setattr(pusher_module, "_FIRST_PAUSE_S", 0.001)
        self.pusher = Pusher(self.config, sender=self._sender)

    def _sender(self, config: DestinationConfig) -> FakeSender:
        return FakeSender(self.log, self.sent, lambda name, count: self.fail(name, count))

    def shown(self) -> list[tuple[str, list[str]]]:
        """The type and the keys of each message that was committed."""
        messages = [json.loads(message.value or b"") for message in self.sent]
        return [(message["type"], [row["id"] for row in message["data"] or ()]) for message in messages]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(tmp_path, monkeypatch)


EVERYTHING = [
    ("CREATE", []),
    ("INSERT", ["0"]),
    ("INSERT", ["1"]),
    ("INSERT", ["2"]),
    ("INSERT", ["3"]),
    ("UPDATE", ["0", "1"]),
    ("ALTER", []),
    ("DELETE", ["3"]),
]


def test_everything_is_sent_in_order_and_acked(site: Site) -> None:
    stats = site.pusher.run(until_empty=True)
    assert site.shown() == EVERYTHING
    assert stats.messages == len(EVERYTHING)
    assert stats.rows == 7
    assert stats.errors == 0 and stats.batches > 2
    subscription = site.service.subscription("mq")
    assert subscription.acked_seq == site.service.last_seq() == stats.acked_seq
    assert not subscription.outstanding
    status = site.pusher.status()
    assert status["behind"]["transactions"] == 0 and status["subscriber"] == "mq"
    assert site.log[-1] == "close"
    second_run = Pusher(site.config, sender=site._sender).run(until_empty=True)
    assert second_run.messages == 0


@pytest.mark.parametrize("step", ["begin", "send", "commit"])
@pytest.mark.parametrize("at", [1, 3])
def test_a_failure_rolls_back_and_the_batch_comes_again_from_its_begin(site: Site, step: str, at: int) -> None:
    def fail(name: str, count: int) -> None:
        if (name, count) == (step, at):
            assert site.service.outstanding("mq")
            raise PeerUnavailableError("the broker is gone")

    site.fail = fail
    stats = site.pusher.run(until_empty=True)
    assert stats.errors == 1 and stats.last_error is None
    assert site.shown() == EVERYTHING
    failed = [number for number, name in enumerate(site.log) if name == step][at - 1]
    assert site.log[failed + 1 : failed + 3] == ["abort", "close"]  # another producer sends it again
    assert site.service.subscription("mq").acked_seq == site.service.last_seq()


def test_a_permanent_error_ends_the_push_and_acks_nothing_of_the_batch(site: Site) -> None:
    def fail(name: str, count: int) -> None:
        if (name, count) == ("send", 2):
            raise MessageTooLargeError("a message is too large")

    site.fail = fail
    with pytest.raises(MessageTooLargeError):
        site.pusher.run(until_empty=True)
    assert site.shown() == EVERYTHING[:1]
    assert not site.service.outstanding("mq")
    site.fail = lambda name, count: None
    Pusher(site.config, sender=site._sender).run(until_empty=True)
    assert site.shown() == EVERYTHING


def test_brokers_that_do_not_answer_end_a_bounded_push(site: Site) -> None:
    def fail(name: str, count: int) -> None:
        raise PeerUnavailableError("no broker")

    site.fail = fail
    with pytest.raises(PeerUnavailableError):
        site.pusher.run(until_empty=True)
    assert site.pusher.stats.errors == 5
    assert site.pusher.stats.last_error == "no broker"
    assert site.service.subscription("mq").acked_seq == 0


def test_a_stop_in_the_middle_rolls_the_batch_back(site: Site) -> None:
    stop = threading.Event()

    def fail(name: str, count: int) -> None:
        if name == "begin" and count == 2:
            stop.set()

    site.fail = fail
    site.pusher.run(stop)
    assert site.shown() == EVERYTHING[: len(site.sent)]
    assert not site.service.outstanding("mq")
    Pusher(site.config, sender=site._sender).run(until_empty=True)
    assert site.shown() == EVERYTHING


def test_an_ack_that_fails_makes_the_batch_come_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([True])
    ack = BatchService.ack

    def once(self: BatchService, *args: Any, **kwargs: Any) -> None:
        if next(failures, False):
            raise PeerUnavailableError("the meta is gone")
        ack(self, *args, **kwargs)

    monkeypatch.setattr(BatchService, "ack", once)
    stats = site.pusher.run(until_empty=True)
    assert stats.errors == 1
    assert site.shown() == EVERYTHING[:1] + EVERYTHING


def test_a_filter_chooses_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, monkeypatch, filter=r"shop\..*", subscriber="other")
    site.pusher.run(until_empty=True)
    assert site.sent == []
    assert site.service.subscription("other").filter == r"shop\..*"
    assert site.service.next_seq("other") is None


def test_statements_are_left_out_if_so_configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path, monkeypatch, ddl=False)
    site.pusher.run(until_empty=True)
    assert site.shown() == [message for message in EVERYTHING if message[1]]


def test_only_one_push_of_a_subscription_runs(site: Site) -> None:
    def fail(name: str, count: int) -> None:
        if (name, count) == ("begin", 1):
            with pytest.raises(LeaseHeldError, match="another `cdc push`"):
                Pusher(site.config, sender=site._sender).run(until_empty=True)

    site.fail = fail
    site.pusher.run(until_empty=True)
    assert site.shown() == EVERYTHING


def test_metrics_and_health(site: Site) -> None:
    from prometheus_client.core import CollectorRegistry
    from prometheus_client.exposition import generate_latest

    monitor = PushMonitor(site.pusher, unhealthy_after_s=0.0)
    assert monitor.health().ok
    site.pusher.run(until_empty=True)
    registry = CollectorRegistry()
    registry.register(monitor)
    text = generate_latest(registry).decode()
    for metric in catalogue.PUSH:
        assert f'{metric.name}{{destination="shop"' in text
    assert f'towpath_push_messages_total{{destination="shop"}} {len(EVERYTHING)}.0' in text
    assert 'towpath_push_lag_seconds{destination="shop"} 0.0' in text

    def fail(name: str, count: int) -> None:
        raise PeerUnavailableError("no broker")

    site.fail = fail
    site.service.unsubscribe("mq")  # everything comes again
    site.pusher = Pusher(site.config, sender=site._sender)
    monitor = PushMonitor(site.pusher, unhealthy_after_s=0.0)
    with pytest.raises(PeerUnavailableError):
        site.pusher.run(until_empty=True)
    assert not monitor.health().ok and "no broker" in monitor.health().text


def test_a_destination_without_brokers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no brokers.*mq: \{servers"):
        Pusher(make_config(tmp_path))
