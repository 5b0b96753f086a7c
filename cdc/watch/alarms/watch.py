"""Watches one destination in a thread, and tells the handlers.

The thread never waits for anybody without a limit: the status is collected, and each message is sent, in a thread of
its own that is left alone when its time is over. One that hangs is not started a second time. So a disk that hangs is
an alarm, and a handler that hangs delays no other one, neither capture nor the end of the process.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from cdc.base.errors import CdcError, DamagedError, LeaseHeldError
from cdc.base.log import get_logger, hide_password
from cdc.base.units import human_seconds
from cdc.disk.durable import locked, make_folder
from cdc.meta import open_meta
from cdc.watch.alarms.book import AlarmBook
from cdc.watch.alarms.conditions import Facts, Findings, conditions, unreadable
from cdc.watch.alarms.handlers import Handler, explained, handlers
from cdc.watch.alarms.notice import Notice
from cdc.watch.status import collect

if TYPE_CHECKING:
    from cdc.config import DestinationConfig

_EVERY_S = 2.0
_STATUS_S = 20.0
"""The time that it may take to collect the status."""
_POLL_S = 0.05
_SPARE_S = 2.0
"""Time that a try may take beyond its limit until it is given up: handlers have limits of their own."""
_log = get_logger(__name__)


class Attempt:
    """Something that is done in a daemon thread, so that it can be left alone if it hangs."""

    def __init__(self, work: Callable[[], Any], name: str, wake: threading.Event | None = None) -> None:
        """``wake`` is set at the end."""
        self._work, self._wake = work, wake
        self._done = threading.Event()
        self.began = time.monotonic()
        self.result: Any = None
        self.error: BaseException | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def seconds(self) -> float:
        """The time since it began, in seconds."""
        return time.monotonic() - self.began

    def is_done(self, wait_s: float = 0.0) -> bool:
        """Whether it has ended, within ``wait_s``."""
        return self._done.wait(wait_s)

    def _run(self) -> None:
        try:
            self.result = self._work()
        except Exception as error:  # noqa: BLE001 - whoever started it looks at the error
            self.error = error
        finally:
            self._done.set()
            if self._wake is not None:
                self._wake.set()


class AlarmSender:
    """Sends the messages of one handler, one after the other."""

    def __init__(
        self, handler: Handler, limit_s: float, count: Callable[[str, bool], None], wake: threading.Event
    ) -> None:
        self._handler, self._limit_s, self._count, self._wake = handler, limit_s + _SPARE_S, count, wake
        self._attempt: Attempt | None = None
        self._notice: Notice | None = None
        self._is_given_up = False

    @property
    def is_busy(self) -> bool:
        """Whether a message is under way that may still arrive in time."""
        return self._attempt is not None and not self._is_given_up

    def advance(self, book: AlarmBook, now: datetime) -> None:
        """Takes note of what has become of the last message, and begins with the next one."""
        attempt, notice = self._attempt, self._notice
        if attempt is not None and notice is not None:
            if not attempt.is_done():
                if not self._is_given_up and attempt.seconds > self._limit_s:
                    self._is_given_up = True
                    self._failed(book, notice, now, f"no answer within {human_seconds(self._limit_s)}")
                return
            if not self._is_given_up:
                if attempt.error is None:
                    book.sent(self._handler.name, notice, now)
                    self._count(self._handler.name, True)
                else:
                    self._failed(book, notice, now, explained(attempt.error))
            elif attempt.error is None:  # late, and taken all the same
                book.sent(self._handler.name, notice, now)
            self._attempt = self._notice = None
            self._is_given_up = False
        for _, due in book.due(now, [self._handler.name]):
            self._notice = due
            book.sending(self._handler.name, due)
            self._attempt = Attempt(partial(self._handler.send, due), f"alarm-{self._handler.name}", self._wake)
            return

    def _failed(self, book: AlarmBook, notice: Notice, now: datetime, reason: str) -> None:
        pause_s = book.failed(self._handler.name, notice, now)
        self._count(self._handler.name, False)
        _log.warning(
            "an alarm was not sent",
            handler=self._handler.name,
            alarm=notice.alarm,
            destination=notice.destination,
            reason=hide_password(reason),
            again_in_s=pause_s,
        )


class AlarmWatch:
    """Raises the alarms of one destination while it is open. Of several processes on a machine one sends them; another
    one takes over when that one ends."""

    def __init__(
        self,
        config: DestinationConfig,
        facts: Callable[[], Facts] = Facts,
        *,
        every_s: float = _EVERY_S,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """``facts`` is asked at each look. ``every_s`` and ``clock`` are for tests."""
        self._config, self._facts, self._every_s, self._clock = config, facts, every_s, clock
        self.counts: Counter[tuple[str, bool]] = Counter()
        """The number of messages that each handler has taken (True) and not taken (False)."""
        self.raised: dict[str, int] = {}
        """The number of raised alarms of each kind."""
        self.is_sender = False
        """Whether this process sends the alarms."""
        self._failure: str | None = None
        self._book = AlarmBook(config)
        self._wake = threading.Event()
        """A message has ended, or the watch is to end."""
        self._senders = [
            AlarmSender(handler, config.alarms.timeout_s, self._counted, self._wake) for handler in handlers(config)
        ]
        self._status: Attempt | None = None
        self._meta = open_meta(config)
        self._lock = ExitStack()
        self._said = ""
        self._stop, self._ending = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"alarms-{config.name}", daemon=True)

    def start(self) -> None:
        """Begins to watch."""
        self._thread.start()

    def close(self, failure: str | None = None) -> None:
        """Ends the watch. ``failure``: the error with which capture has ended, which is told first, within the limit of
        one try."""
        self._failure = failure
        if failure is None:
            self._stop.set()
        self._ending.set()
        self._wake.set()
        self._thread.join(_SPARE_S if failure is None else self._config.alarms.timeout_s + 2 * _SPARE_S)
        self._stop.set()

    def _counted(self, handler: str, ok: bool) -> None:
        self.counts[handler, ok] += 1

    # --- the thread

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                is_last = self._ending.is_set()
                try:
                    if self._take_lock():
                        self.look(self._findings())
                        self._wait(is_last=is_last)
                    elif not is_last:
                        self._ending.wait(self._every_s)
                except CdcError as error:
                    self._tell(str(error))
                    self._ending.wait(self._every_s)
                except Exception:  # noqa: BLE001 - capture goes on, and so does the watch
                    _log.exception("the watch for alarms failed", destination=self._config.name)
                    self._ending.wait(self._every_s)
                if is_last:
                    return
        finally:
            self._lock.close()
            self._meta.close()

    def _take_lock(self) -> bool:
        """Whether this process sends the alarms. Takes the lock if nobody has it."""
        if self.is_sender:
            return True
        path = self._config.alarms_path
        make_folder(path.parent)
        try:
            self._lock.enter_context(locked(path.with_name(f"{path.name}.lock"), "another process"))
        except LeaseHeldError:
            return False
        try:
            self._book.load()
        except DamagedError as error:
            kept = self._book.set_aside()
            _log.error("the file of alarms is damaged; a new one begins", error=str(error), kept=str(kept))
        except CdcError:
            self._lock.close()
            raise
        self.is_sender = True
        return True

    def _findings(self) -> Findings:
        facts = self._facts()
        if self._failure is not None:
            facts = Facts(failure=self._failure)
        attempt = self._status
        if attempt is None:
            attempt = self._status = Attempt(self._collect, f"alarm-status-{self._config.name}")
        limit_s = attempt.began + _STATUS_S - time.monotonic()
        while not attempt.is_done(_POLL_S) and limit_s > 0 and not self._stop.is_set():
            limit_s = attempt.began + _STATUS_S - time.monotonic()
            self._advance()
        if not attempt.is_done():
            hangs = f"There is no answer for {human_seconds(attempt.seconds)}: a disk or the meta hangs."
            return unreadable(self._config, hangs, facts)
        self._status = None
        if isinstance(attempt.error, CdcError):
            return unreadable(self._config, hide_password(str(attempt.error)), facts)
        if attempt.error is not None:
            raise attempt.error
        return conditions(self._config, attempt.result, self._clock().timestamp(), facts)

    def _collect(self) -> dict[str, Any]:
        return collect(self._config, meta=self._meta, lake=False)

    def look(self, findings: Findings) -> None:
        """Takes note of what is wrong, and begins to tell the handlers."""
        self._book.update(findings, self._clock())
        self._advance()
        raised = Counter(
            record.alarm for record in self._book.records if record.raised is not None and record.resolved is None
        )
        self.raised = dict(raised)

    def _advance(self) -> None:
        now = self._clock()
        for sender in self._senders:
            sender.advance(self._book, now)
        try:
            self._book.save()
            self._said = ""
        except CdcError as error:  # a full disk: alarms are sent all the same
            self._tell(str(error))

    def _wait(self, *, is_last: bool) -> None:
        """Waits for the next look, and goes on to send meanwhile. The last look waits until all messages have ended."""
        until = time.monotonic() + self._every_s
        while not self._stop.is_set():
            busy = any(sender.is_busy for sender in self._senders)
            if is_last and not busy:
                return
            if not is_last and time.monotonic() >= until:
                return
            self._wake.wait(_POLL_S if busy else max(0.0, until - time.monotonic()))
            self._wake.clear()
            if busy:  # what was sent is recorded at once, so that a kill sends little twice
                self._advance()
            elif self._ending.is_set():
                return

    def _tell(self, error: str) -> None:
        """Logs an error once, and not at each look."""
        if error != self._said:
            self._said = error
            _log.error("alarms cannot be recorded", destination=self._config.name, error=error)


@contextmanager
def watching(config: DestinationConfig, facts: Callable[[], Facts] = Facts) -> Iterator[AlarmWatch]:
    """Watches a destination while the context lasts. An error that leaves the context is told as that of capture."""
    watch = AlarmWatch(config, facts)
    watch.start()
    failure: str | None = None
    try:
        yield watch
    except LeaseHeldError:  # another capture runs
        raise
    except Exception as error:
        failure = hide_password(str(error) if isinstance(error, CdcError) else f"{type(error).__name__}: {error}")
        raise
    finally:
        watch.close(failure)


def send_all(config: DestinationConfig, notice: Notice) -> dict[str, str | None]:
    """Sends a message once through every handler, all at once. Returns for each why it has not taken it; None: it
    has."""
    attempts = {
        handler.name: Attempt(partial(handler.send, notice), f"alarm-{handler.name}") for handler in handlers(config)
    }
    limit_s = config.alarms.timeout_s + _SPARE_S
    errors: dict[str, str | None] = {}
    for name, attempt in attempts.items():
        if not attempt.is_done(max(0.0, attempt.began + limit_s - time.monotonic())):
            errors[name] = f"no answer within {human_seconds(limit_s)}"
        else:
            errors[name] = None if attempt.error is None else explained(attempt.error)
    return errors
