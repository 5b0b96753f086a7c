"""The fake source goes on with another history: capture stops with a sentence before it stores anything of it, or at
the next connect where the change came in the middle of a dump."""

from __future__ import annotations

import pytest

from cdc.capture import Capture
from cdc.errors import IdentityError
from cdc.store.reader.reader import StoreReader
from cdc.testing.source import FakeSource, History, Jump, sample_history
from cdc.testing.source.check import broken_in
from cdc.testing.source.history import random_history
from tests.source.support import Configure


def grown(history: History, transactions: int) -> History:
    for number in range(transactions):
        history.transaction([("orders", [number])])
    return history


@pytest.mark.parametrize("more", [0, 1, 50])
def test_another_history_of_the_same_shape(configure: Configure, more: int) -> None:
    """Same files, offsets, GTIDs and times: only the rows differ."""

    def history(value: int) -> History:
        found = History(value=value)
        grown(found, 3)
        found.rotate()
        return grown(found, 3)

    stored = history(0)
    with FakeSource(stored) as source:
        config = configure(source)
        Capture(config).run(until_current=True)
        source.history = grown(history(100), more)
        with pytest.raises(IdentityError, match="history is not the one") as caught:
            Capture(config).run(until_current=True)
    assert "GTID 01010101-0101-0101-0101-010101010101:6" in str(caught.value)
    assert broken_in(config.store.path, stored) == []


def test_another_history_of_another_shape(configure: Configure) -> None:
    stored = sample_history()
    for seed in range(3):
        with FakeSource(stored) as source:
            config = configure(source)
            Capture(config).run(until_current=True)
            source.history = random_history(seed)
            with pytest.raises(IdentityError):
                Capture(config).run(until_current=True)
        assert broken_in(config.store.path, stored) == []


def test_the_same_history_goes_on(configure: Configure) -> None:
    """A position behind transactions of other tables only; a purge of all that is stored."""
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
    assert broken_in(config.store.path, history) == []


def test_a_jump_in_the_middle_of_a_dump(configure: Configure) -> None:
    """Nothing tells the one dump from the other, so what came is stored; the next connect notices."""
    history, other = grown(History(), 4), grown(History(value=100), 4)
    with FakeSource(history) as source:
        config = configure(source)
        source.next_dumps = [Jump(13, other)]
        Capture(config).run(until_current=True)
        last = StoreReader(config.store.path).last_seq()
        with pytest.raises(IdentityError, match="history is not the one"):
            Capture(config).run(until_current=True)
        assert StoreReader(config.store.path).last_seq() == last
