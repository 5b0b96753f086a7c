"""Starts child processes for the event loop, and tells it when they end and what they write.

A child is started by a thread that lasts as long as the server: the kernel kills the child when the thread that has
started it ends (:mod:`cdc.server.child`). The loop itself waits for no child.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from cdc.base.errors import StorageError

MOST_LINES = 400
"""Lines of a log that are kept."""
_MOST_LINE_BYTES = 4096
_READ_BYTES = 64 * 1024


@dataclass(frozen=True)
class LogLine:
    """A line that a child has written."""

    time: datetime
    text: str


class Log:
    """The last lines that the children of one destination have written, one after the other."""

    def __init__(self, tell: Callable[[str], object] = lambda line: None) -> None:
        """``tell`` is called with each line."""
        self._tell = tell
        self._lines: deque[LogLine] = deque(maxlen=MOST_LINES)

    def add(self, line: bytes) -> None:
        """Adds a line; what is longer than 4 KiB is cut."""
        text = line[:_MOST_LINE_BYTES].decode(errors="replace").rstrip()
        if text:
            self._lines.append(LogLine(datetime.now(UTC), text))
            self._tell(text)

    def last(self, count: int) -> list[LogLine]:
        """Returns the newest lines, oldest first."""
        return list(self._lines)[-count:] if count > 0 else []


class Child:
    """A running child. Its methods are called in the event loop."""

    def __init__(self, process: subprocess.Popen[bytes], log: Log) -> None:
        self._process, self._log = process, log
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._pidfd = os.pidfd_open(process.pid)
        self._loop.add_reader(self._pidfd, self._reap)
        assert process.stderr is not None
        self._pipe = process.stderr.fileno()
        os.set_blocking(self._pipe, False)
        self._loop.add_reader(self._pipe, self._read)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def wait(self) -> int:
        """Waits for the end, and returns the exit code; a signal counts as its negative number."""
        return await asyncio.shield(self._ended)

    async def stop(self, patience_s: float) -> int:
        """Asks the child to end, and kills it if it has not after so long. Returns its exit code."""
        self.send(signal.SIGTERM)
        with suppress(TimeoutError):
            return await asyncio.wait_for(self.wait(), patience_s)
        self.send(signal.SIGKILL)
        return await self.wait()

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    def begin(self) -> None:
        """Lets a child begin that was started to wait for this."""
        stdin = self._process.stdin
        assert stdin is not None
        with suppress(BrokenPipeError):  # it has ended, as wait tells
            stdin.write(b"\n")
            stdin.close()

    def send(self, what: signal.Signals) -> None:
        """Sends a signal; nothing happens if the child has ended."""
        self._process.send_signal(what)

    def _read(self) -> bool:
        """Reads what was written. Returns whether there may be more."""
        try:
            data = os.read(self._pipe, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._pipe)
            return False
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._log.add(line)
        if len(self._rest) > _MOST_LINE_BYTES:
            self._log.add(self._rest)
            self._rest = b""
        return True

    def _reap(self) -> None:
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = self._process.wait()  # it has ended already
        while self._read():
            pass
        self._loop.remove_reader(self._pipe)
        for pipe in (self._process.stderr, self._process.stdin):
            if pipe is not None:
                pipe.close()
        self._log.add(self._rest)
        if not self._ended.done():
            self._ended.set_result(code)


class Spawner:
    """Starts commands of ``cdc`` as children of this process. Usable from the first start to :meth:`close`."""

    def __init__(self, options: Sequence[str] = ()) -> None:
        """``options``: global options that each command is given, such as ``--log-format json``."""
        self._options = tuple(options)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="cdc-spawner")

    async def start(self, arguments: Sequence[str], log: Log, *, waits: bool = False) -> Child:
        """Starts ``cdc ARGUMENT…``. One that ``waits`` is a capture that loads its modules and kernels, and begins with
        :meth:`Child.begin`. Raises StorageError if the operating system starts no process."""
        module = "cdc.cli.ready" if waits else "cdc"
        command = [sys.executable, "-m", "cdc.server.child", str(os.getpid()), module, *self._options, *arguments]

        def run() -> subprocess.Popen[bytes]:
            try:
                return subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
                    bufsize=0,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    process_group=0,  # Ctrl-C is the server's, which then stops its children
                )
            except OSError as error:
                raise StorageError(f"no process can be started: {error.strerror}", place=sys.executable) from None

        future = self._thread.submit(run)
        try:
            return Child(await asyncio.wrap_future(future), log)
        except asyncio.CancelledError:
            if not future.cancel():
                future.add_done_callback(_end)
            raise

    def close(self) -> None:
        """Ends the thread, and with it the children that still run."""
        self._thread.shutdown(wait=False)


def _end(future: object) -> None:
    """Ends a child that nobody waits for any more."""
    process = future.result() if not future.exception() else None  # type: ignore[attr-defined]
    if process is not None:
        process.kill()
        process.wait()
