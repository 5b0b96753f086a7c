"""An alarm is raised once, repeated, and resolved once, whatever a handler does and however often the process begins."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

import pytest

from cdc.base.errors import CdcError, DamagedError, VersionError
from cdc.config import DestinationConfig
from cdc.watch.alarms.book import AlarmBook, read_records
from cdc.watch.alarms.conditions import Condition, Findings
from cdc.watch.alarms.notice import Notice
from tests.support.alarms import with_alarms
from tests.support.unit_batches import Clock, make_config

GOLDEN = Path(__file__).parents[3] / "golden" / "alarms-v1.json"
LAG = Condition("subscriber_lag", "warning", "apply is behind.", "", "apply")
FAILED = Condition("capture_failed", "critical", "It has ended.", at_once=True)
NOTHING = Findings([])


class Book:
    """A book, a clock, and what its handlers were told."""

    def __init__(self, config: DestinationConfig) -> None:
        self.config, self.clock = config, Clock()
        self.told: list[str] = []
        self.broken: set[str] = set()
        self.open()

    def open(self) -> None:
        """Begins anew from the file, as another process would."""
        self.book = AlarmBook(self.config)
        self.book.load()

    def look(self, *conditions: Condition, after_s: float = 0, unknown: frozenset[str] = frozenset()) -> list[str]:
        """Looks after some time, and sends what is due. Returns ``HANDLER EVENT NUMBER`` of what was taken."""
        self.clock.forward(after_s)
        self.book.update(Findings(conditions, unknown), self.clock())
        before = len(self.told)
        for handler in self.config.alarms.handlers:
            for _, notice in list(self.book.due(self.clock(), [handler])):
                self.send(handler, notice)
        self.book.save()
        return self.told[before:]

    def send(self, handler: str, notice: Notice) -> None:
        self.book.sending(handler, notice)
        if handler in self.broken:
            self.book.failed(handler, notice, self.clock())
        else:
            self.told.append(f"{handler} {notice.event} {notice.number}")
            self.book.sent(handler, notice, self.clock())


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(
        with_alarms(make_config(tmp_path), command=["x"], webhook={"url": "http://h.example"}, for_s=60, repeat_s=3600)
    )


def test_once_when_it_begins_again_while_it_lasts_once_when_it_ends(book: Book) -> None:
    assert book.look(LAG) == book.look(LAG, after_s=59) == [], "it may pass"
    assert book.look(LAG, after_s=1) == ["webhook raised 1", "command raised 1"]
    assert book.look(LAG, after_s=60) == book.look(LAG, after_s=3000) == []
    assert book.look(LAG, after_s=540) == ["webhook repeated 2", "command repeated 2"]
    assert book.look() == book.look(after_s=59) == [], "it may come back"
    assert book.look(after_s=1) == ["webhook resolved 3", "command resolved 3"]
    assert book.look(after_s=9999) == []
    assert book.book.records == []


def test_what_passes_raises_nothing(book: Book) -> None:
    for _ in range(10):
        assert book.look(LAG, after_s=30) == book.look(after_s=30) == []


def test_what_comes_back_at_once_stays_one_alarm(book: Book) -> None:
    book.look(LAG)
    book.look(LAG, after_s=60)
    for _ in range(10):
        assert book.look(after_s=30) == book.look(LAG, after_s=29) == []


def test_an_end_with_an_error_is_told_at_once_and_once(book: Book) -> None:
    assert book.look(FAILED) == ["webhook raised 1", "command raised 1"]
    for _ in range(5):
        book.open()
        assert book.look(FAILED, after_s=5) == [], "a capture that begins and fails again and again is one alarm"


def test_a_restart_sends_nothing_twice(book: Book) -> None:
    book.look(LAG)
    book.open()
    assert book.look(LAG, after_s=60) == ["webhook raised 1", "command raised 1"]
    book.open()
    assert book.look(LAG, after_s=10) == []
    book.open()
    book.look()
    book.open()
    assert book.look(after_s=60) == ["webhook resolved 2", "command resolved 2"]
    book.open()
    assert book.look(after_s=60) == []


def test_a_handler_that_fails_is_asked_again_with_pauses_and_holds_up_nobody(book: Book) -> None:
    book.broken = {"webhook"}
    book.look(FAILED)
    assert book.told == ["command raised 1"]
    tries = 0
    for _ in range(3600):
        book.clock.forward(1)
        for _, notice in list(book.book.due(book.clock(), ["webhook"])):
            tries += 1
            book.book.failed("webhook", notice, book.clock())
    assert 9 <= tries <= 13, "after 5, 10, 20 … 600 seconds"
    book.broken = set()
    assert "webhook raised 1" in book.look(FAILED, after_s=600)


def test_an_end_that_could_not_be_told_is_told_later(book: Book) -> None:
    book.look(FAILED)
    book.broken = {"webhook"}
    book.look()
    assert book.look(after_s=60) == ["command resolved 2"]
    book.broken = set()
    book.open()
    assert book.look(after_s=60) == ["webhook resolved 2"]


def test_an_alarm_that_nobody_took_ends_without_a_word(book: Book) -> None:
    book.broken = {"webhook", "command"}
    book.look(FAILED)
    book.look()
    book.broken = set()
    assert book.look(after_s=61) == []
    assert book.book.records == []


def test_an_alarm_that_ends_while_it_is_sent_is_resolved(book: Book) -> None:
    """The message arrives after the condition has passed."""
    book.broken = {"command"}
    book.book.update(Findings([FAILED]), book.clock())
    (notice,) = [due for _, due in book.book.due(book.clock(), ["webhook"])]
    book.book.sending("webhook", notice)
    book.look()
    book.clock.forward(61)
    book.book.update(NOTHING, book.clock())
    book.book.sent("webhook", notice, book.clock())
    assert book.look() == ["webhook resolved 2"]


def test_what_nobody_can_tell_stays_as_it_is(book: Book) -> None:
    book.look(FAILED)
    unknown = frozenset({"capture_failed"})
    assert book.look(after_s=600, unknown=unknown) == book.look(after_s=600, unknown=unknown) == []
    book.look()
    assert book.look(after_s=60) == ["webhook resolved 2", "command resolved 2"]


def test_two_subjects_are_two_alarms(book: Book) -> None:
    first, other = (Condition("table_parked", "warning", "x", "", "apply", f"shop.{name}") for name in "ab")
    book.look(first)
    assert book.look(first, other, after_s=60) == ["webhook raised 1", "command raised 1"]
    assert book.look(other, after_s=60) == ["webhook raised 1", "command raised 1"]
    assert book.look(other, after_s=60) == ["webhook resolved 2", "command resolved 2"]


def test_repeating_can_be_left_out(tmp_path: Path) -> None:
    book = Book(with_alarms(make_config(tmp_path), command=["x"], repeat_s=None))
    assert book.look(FAILED) == ["command raised 1"]
    assert book.look(FAILED, after_s=timedelta(days=30).total_seconds()) == []


# --- the file


def test_the_golden_file_is_read() -> None:
    """It was written by format version 1: of an alarm that is raised, one that waits, and one that has ended."""
    raised, waits, ended = read_records(GOLDEN)
    assert (raised.alarm, raised.handlers["webhook"].messages, raised.handlers["mail"].failures) == (
        "table_parked",
        2,
        3,
    )
    assert (waits.alarm, waits.raised) == ("subscriber_lag", None)
    assert ended.resolved is not None and ended.handlers["command"].knows_end


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"version": 2}, VersionError, "has format version 2; this Towpath knows 1"),
        ({"alarms": [{"id": "x"}]}, DamagedError, "is not a file of alarms: alarms.0.alarm"),
        ({"alarms": 7}, DamagedError, "is not a file of alarms: alarms"),
    ],
)
def test_a_newer_or_damaged_file_is_named(
    tmp_path: Path, change: dict[str, object], error: type[CdcError], says: str
) -> None:
    file = tmp_path / "shop.alarms.json"
    file.write_text(json.dumps({**json.loads(GOLDEN.read_text()), **change}))
    with pytest.raises(error, match=says) as caught:
        read_records(file)
    assert str(file) in str(caught.value) and "sent once more" in str(caught.value)
    file.write_text("{")
    with pytest.raises(DamagedError, match="is not whole JSON"):
        read_records(file)
