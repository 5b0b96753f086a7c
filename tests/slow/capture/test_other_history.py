"""The source continues with another history. Capture stops with an error before it stores anything of it, or at the
next connect if the history changed in the middle of a dump."""

from __future__ import annotations

import pytest

from cdc.base.errors import IdentityError
from cdc.capture import Capture
from cdc.store.reader.reader import StoreReader
from cdc.testing.source import FakeSource, History, SwitchHistory, sample_history
from cdc.testing.source.check import find_problems
from cdc.testing.source.history import random_history
from tests.slow.capture.support import Configure


def grown(history: History, transactions: int) -> History:
    for number in range(transactions):
        history.transaction([("orders", [number])])
    return history


@pytest.mark.parametrize("more", [0, 1, 50])
def test_another_history_of_the_same_shape(configure: Configure, more: int) -> None:
    """Files, offsets, GTIDs and times are equal; only the rows differ."""

    def history(value: int) -> History:
        history = History(value=value)
        grown(history, 3)
        history.rotate()
        return grown(history, 3)

    stored = history(0)
    with FakeSource(stored) as source:
        config = configure(source)
        Capture(config).run(until_current=True)
        source.history = grown(history(100), more)
        with pytest.raises(IdentityError, match="history is not the one") as caught:
            Capture(config).run(until_current=True)
    assert "GTID 01010101-0101-0101-0101-010101010101:6" in str(caught.value)
    assert find_problems(config.store.path, stored) == []


def test_another_history_of_another_shape(configure: Configure) -> None:
    stored = sample_history()
    for seed in range(3):
        with FakeSource(stored) as source:
            config = configure(source)
            Capture(config).run(until_current=True)
            source.history = random_history(seed)
            with pytest.raises(IdentityError):
                Capture(config).run(until_current=True)
        assert find_problems(config.store.path, stored) == []


def test_the_same_history_continues(configure: Configure) -> None:
    """The store ends with transactions of excluded tables only; everything stored is purged."""
    history = grown(History(), 2)
    with FakeSource(history) as source:
        config = configure(source)
        Capture(config).run(until_current=True)
        for _ in range(2):
            history.transaction([("noise", [1, 2])])
            Capture(config).run(until_current=True)
        history.rotate()
        grown(history, 1)
        Capture(config).run(until_current=True)
        source.purged = {"binlog.000001"}
        Capture(config).run(until_current=True)
        history.transaction([("noise", [1, 2])])
        Capture(config).run(until_current=True)
    assert find_problems(config.store.path, history) == []


def test_a_switch_in_the_middle_of_a_dump(configure: Configure) -> None:
    """Capture cannot notice the switch within a dump, so it stores the events; the next connect fails."""
    history, other = grown(History(), 4), grown(History(value=100), 4)
    with FakeSource(history) as source:
        config = configure(source)
        source.next_faults = [SwitchHistory(13, other)]
        Capture(config).run(until_current=True)
        last = StoreReader(config.store.path).last_seq()
        with pytest.raises(IdentityError, match="history is not the one"):
            Capture(config).run(until_current=True)
        assert StoreReader(config.store.path).last_seq() == last
