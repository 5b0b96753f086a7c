"""The fake source without faults: the store holds exactly its history."""

from __future__ import annotations

from cdc.capture import Capture
from cdc.testing.source import FakeSource, sample_history
from cdc.testing.source.check import find_problems
from cdc.testing.source.history import random_history
from tests.slow.capture.support import Configure


def test_a_healthy_source_is_captured_completely(configure: Configure) -> None:
    history = sample_history()
    with FakeSource(history) as source:
        config = configure(source)
        Capture(config).run(until_current=True)
        assert find_problems(config.store.path, history) == []
        history.transaction([("orders", [9])])
        Capture(config).run(until_current=True)
    assert find_problems(config.store.path, history) == []
    assert source.dumps == [("binlog.000001", 4), ("binlog.000002", history.transactions[-2].end)]


def test_a_random_history_is_captured_completely(configure: Configure) -> None:
    history = random_history(1)
    with FakeSource(history) as source:
        config = configure(source)
        Capture(config).run(until_current=True)
    assert find_problems(config.store.path, history) == []
