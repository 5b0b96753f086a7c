"""Triggers: what waits in Airflow's triggerer instead of in a slot of a worker.

Each reads its configuration file itself. It reads files of the store and the meta in threads, so the triggerer has to
see them where the workers do; or it asks the server of the store. What a trigger says is a hint: the task or the run
that it starts looks for itself.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseEventTrigger, BaseTrigger, TriggerEvent

from cdc.airflow.configuration import read_config
from cdc.airflow.watching import STORES
from cdc.base.errors import CdcError
from cdc.client import connect, find_obstacle

_RETRY_S = 30.0
"""Pause after a store or a meta could not be read."""
_LONGEST_PAUSE_S = 5.0


class TowpathStoreTrigger(BaseEventTrigger):
    """Fires when the store of a destination has got transactions that no batch has yet. For the watcher of an asset.

    It fires once for what came, not again while that waits: a run that failed is repeated by the schedule.

    ``conf_file``: the path of ``DEST.yaml``. ``store``: the folder of the store, or the URL of its server. ``pause_s``:
    the shortest time between two events.
    """

    def __init__(self, *, conf_file: str, store: str, pause_s: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.conf_file, self.store, self.pause_s = conf_file, store, pause_s
        self._complaint = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return _path(self), {"conf_file": self.conf_file, "store": self.store, "pause_s": self.pause_s}

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Yields events with the destination and the seq up to which its store has been filled."""
        async with aclosing(self._at_server() if "://" in self.store else self._on_disk()) as filled:
            async for filled_seq in filled:
                yield _event({"destination": Path(self.conf_file).stem, "seq": filled_seq})
                await asyncio.sleep(self.pause_s)

    async def _on_disk(self) -> AsyncGenerator[int, None]:
        loop, grown = asyncio.get_running_loop(), asyncio.Event()
        end = STORES.watch(Path(self.store), lambda: loop.call_soon_threadsafe(grown.set))
        told = 0
        try:
            while True:
                await grown.wait()
                grown.clear()
                try:
                    filled_seq = await asyncio.to_thread(self._waiting, told)
                except CdcError as error:
                    self._complain(error)
                    loop.call_later(_RETRY_S, grown.set)
                    continue
                if filled_seq is not None:
                    told = filled_seq
                    yield filled_seq
        finally:
            end()

    async def _at_server(self) -> AsyncGenerator[int, None]:
        from cdc.client.changes import SERVERS

        told = 0
        while True:
            answers: asyncio.Queue[int | CdcError] = asyncio.Queue()
            try:
                connection = await asyncio.to_thread(lambda: connect(read_config(self.conf_file)))
                end = SERVERS.watch(connection, told, answers.put_nowait)
            except CdcError as error:
                self._complain(error)
                await asyncio.sleep(_RETRY_S)
                continue
            try:
                while True:
                    answer = await answers.get()
                    while not answers.empty():  # what came in the pause
                        answer = answers.get_nowait()
                    if isinstance(answer, CdcError):
                        self._complain(answer)
                        break
                    told = answer
                    yield answer
            finally:
                end()
            await asyncio.sleep(_RETRY_S)

    def _waiting(self, told: int) -> int | None:
        from cdc.batches.waiting import waiting_seq  # loads NumPy, which files of DAGs do without

        return waiting_seq(read_config(self.conf_file), told)

    def _complain(self, error: CdcError) -> None:
        """Logs a failure once."""
        text = str(error)
        if text != self._complaint:
            self.log.warning("It cannot be told whether changes wait in %s: %s", self.store, text)
        self._complaint = text


class TowpathBatchTrigger(BaseTrigger):
    """Waits until nothing is in the way of a fetch, or until ``deadline``: no other owner holds the batch that is due,
    and the store is complete up to ``until``. Both times are ISO texts with a time zone."""

    def __init__(self, *, conf_file: str, owner: str, until: str | None, deadline: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.conf_file, self.owner, self.until, self.deadline = conf_file, owner, until, deadline

    def serialize(self) -> tuple[str, dict[str, Any]]:
        arguments = {"conf_file": self.conf_file, "owner": self.owner, "until": self.until, "deadline": self.deadline}
        return _path(self), arguments

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Yields one event with the deadline. The task looks again, and raises what it finds."""
        ends, pause_s = datetime.fromisoformat(self.deadline), 0.5
        while datetime.now(ends.tzinfo) < ends and await asyncio.to_thread(self._is_blocked):
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        yield _event({"deadline": self.deadline})

    def _is_blocked(self) -> bool:
        """A configuration, store or meta that cannot be read blocks nothing: the task says what is wrong."""
        until = None if self.until is None else datetime.fromisoformat(self.until)
        try:
            return find_obstacle(read_config(self.conf_file), self.owner, until) is not None
        except CdcError:
            return False


class TowpathCaptureTrigger(BaseTrigger):
    """Watches a capture that runs outside Airflow, for ``watch_for_s`` seconds or until it is dead or stuck.

    ``poll_s``: how often it looks.
    """

    def __init__(self, *, conf_file: str, watch_for_s: float, poll_s: float = 5.0) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.conf_file, self.watch_for_s, self.poll_s = conf_file, watch_for_s, poll_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return _path(self), {"conf_file": self.conf_file, "watch_for_s": self.watch_for_s, "poll_s": self.poll_s}

    async def run(self) -> AsyncGenerator[TriggerEvent, None]:
        """Yields one event: whether the capture was healthy to the end, and a sentence."""
        from cdc.watch.metrics.liveness import CaptureWatch  # loads NumPy

        try:
            config = await asyncio.to_thread(read_config, self.conf_file)
        except CdcError as error:
            yield _event({"ok": False, "text": str(error)})
            return
        watch = CaptureWatch(
            config.name, config.store.path, config.metrics.unhealthy_after, idles=config.source.folder is not None
        )
        ends = time.monotonic() + self.watch_for_s
        health = await asyncio.to_thread(watch.health)
        while health.ok and (left_s := ends - time.monotonic()) > 0:
            await asyncio.sleep(min(self.poll_s, left_s))
            health = await asyncio.to_thread(watch.health)
        yield _event({"ok": health.ok, "text": health.text})


def _event(payload: dict[str, Any]) -> TriggerEvent:
    return TriggerEvent(payload)  # type: ignore[no-untyped-call]


def _path(trigger: BaseTrigger) -> str:
    return f"{type(trigger).__module__}.{type(trigger).__qualname__}"
