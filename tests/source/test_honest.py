"""The fake source itself: honest, it is a server like another, and what is stored of it is what its history says."""

from __future__ import annotations

from cdc.capture import Capture
from cdc.testing.source import FakeSource, sample_history
from cdc.testing.source.check import broken_in
from cdc.testing.source.history import random_history
from tests.source.support import Configure


def test_an_honest_source_is_captured_whole(configure: Configure) -> None:
    history = sample_history()
    with FakeSource(history) as source:
        config = configure(source)
        Capture(config).run(until_current=True)
        assert broken_in(config.store.path, history) == []
        history.transaction([("orders", [9])])
        Capture(config).run(until_current=True)
    assert broken_in(config.store.path, history) == []
    assert source.dumps == [("binlog.000001", 4), ("binlog.000002", history.transactions[-2].end)]


def test_a_history_drawn_from_a_seed(configure: Configure) -> None:
    history = random_history(1)
    with FakeSource(history) as source:
        config = configure(source)
        Capture(config).run(until_current=True)
    assert broken_in(config.store.path, history) == []
