"""Real servers for tests, benchmarks and the demo, on free ports of 127.0.0.1, as any user and without containers.

>>> with Server("mariadb10") as server:
...     connection = server.connect()

A server dies with the process that started it, however that ends, and its data with it: unless it was given a
``folder``, whose data stay, or ``detach=True``, with which it goes on by itself. By hand:
``python -m cdc.testing.servers --help``.
"""

from __future__ import annotations

import argparse
import atexit
import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import pymysql

from cdc.errors import CdcError, SourceUnavailableError, UsageError
from cdc.testing.kind import HOST, PASSWORD, USER, Kind
from cdc.testing.kinds import KINDS, Database, kind
from cdc.testing.ports import free_port, is_listening

__all__ = ["HOST", "PASSWORD", "USER", "Server", "client_tool", "free_port", "stop_detached"]

_PREFIX = "towpath-server-"
_POLL_S = 0.05
_ATTEMPTS = 5

# The parent-death signal is bound to the *thread* that started the child; this one lives as long as the process.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-starter")
_running: dict[int, Server] = {}


def client_tool(kind_name: str, tool: str) -> list[str]:
    """The command prefix that runs a client tool of a kind: ``client_tool("mysql9", "mysqlbinlog")``.

    MySQL 9 has ``mysqlbinlog``; both MariaDBs have ``mariadb-binlog`` and ``mariadb``. Fetched when not in the cache.
    """
    return kind(kind_name).tool(tool)


class Server:
    """One server; started by :meth:`start` or by ``with``.

    Args:
        kind_name: mysql9, mariadb11, mariadb10, mysql56 or zookeeper.
        port: a fixed port; None takes a free one, and another if that is snatched away.
        options: further options of the server (lines of ``zoo.cfg`` for ZooKeeper).
        folder: where data, log and socket lie; kept at the end. None: a temporary folder, deleted by :meth:`stop`.
        detach: the server outlives this process; needs ``folder``, where ``server.pid`` tells its process.
    """

    def __init__(
        self,
        kind_name: str,
        *,
        port: int | None = None,
        options: Sequence[str] = (),
        folder: Path | None = None,
        detach: bool = False,
    ) -> None:
        if detach and folder is None:
            raise UsageError("a server that outlives its starter needs a folder")
        self.kind: Kind = kind(kind_name)
        self.options = tuple(options)
        self.port = port or 0
        self._fixed_port = port is not None
        self._given_folder = folder
        self._folder: Path | None = None
        self._folder_lock: IO[str] | None = None
        self._detach = detach
        self._process: subprocess.Popen[bytes] | None = None

    # ------------------------------------------------------------ life

    def start(self) -> Self:
        """Start with fresh data; returns when the server serves clients.

        Raises:
            SourceUnavailableError: it cannot be fetched or does not start; the message has the last lines of its log.
        """
        if self._process is not None:
            raise UsageError(f"{self.kind.name} at port {self.port} is running already")
        self.kind.root()
        for attempt in range(1, _ATTEMPTS + 1):
            if not self._fixed_port:
                self.port = free_port()
            elif is_listening(self.port):
                raise SourceUnavailableError(f"something listens at port {self.port} of {HOST} already")
            self._new_folder()
            self.kind.create(self.folder)
            try:
                self._launch(self.options)
                return self
            except SourceUnavailableError:
                shutil.rmtree(self.data, ignore_errors=True)
                self._discard()
                if self._fixed_port or attempt == _ATTEMPTS or not is_listening(self.port):
                    raise  # the port was not the reason, or cannot be changed
        raise AssertionError("unreachable")

    def again(self, *options: str) -> Self:
        """Start a stopped or killed server on the data it has, with further options for this time.

        A new ``Server`` may do so too, with the ``folder`` (and, if wished, the port) of an earlier one.
        """
        self._require_stopped()
        if self._folder is None and self._given_folder is not None:
            self._folder = self._given_folder.absolute()
        if not self.data.is_dir():
            raise UsageError(f"{self.folder} holds no data of a server; start it first")
        self.port = self.port or free_port()
        self._launch((*self.options, *options))
        return self

    def copy_data(self, to: Path) -> None:
        """Copy the data of a stopped server to the folder ``to``, which must not be there: a backup of the machine."""
        self._require_stopped()
        _copy_folder(self.data, to)

    def replace_data(self, copy: Path | None) -> None:
        """Give a stopped server other data: those that :meth:`copy_data` put into ``copy``, or (None) fresh ones with
        an identity of their own. :meth:`again` then starts it on them, at the same port."""
        self._require_stopped()
        shutil.rmtree(self.data)
        if copy is None:
            self.kind.create(self.folder)
        else:
            _copy_folder(copy, self.data)

    def halt(self) -> None:
        """Stop cleanly and keep the data, for :meth:`again`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL; the data stay, for :meth:`again`."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop, and delete the data unless the folder was given. Harmless when it is stopped already."""
        # Data that nobody will read again need no clean shutdown, which may take seconds.
        self._end(signal.SIGTERM if self._given_folder is not None else signal.SIGKILL)
        self._discard()

    def __enter__(self) -> Self:
        """Start it, unless it is running: ``with Server(…, folder=…).again():`` works too."""
        return self if self.alive else self.start()

    def __exit__(
        self, kind_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # ------------------------------------------------------------ what it is

    @property
    def folder(self) -> Path:
        """Holds ``data/`` and ``server.log``."""
        if self._folder is None:
            raise UsageError(f"{self.kind.name} has not been started")
        return self._folder

    @property
    def data(self) -> Path:
        """The data folder; a database's binlog files are ``binlog.000001`` and so on in it."""
        return self.folder / "data"

    @property
    def alive(self) -> bool:
        """Is its process running?"""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the running server."""
        if self._process is None:
            raise UsageError(f"{self.kind.name} at port {self.port} is not running")
        return self._process.pid

    @property
    def url(self) -> str:
        """``mysql://t@127.0.0.1:PORT`` or ``mariadb://…``, without the password; ``host:port`` for ZooKeeper."""
        if isinstance(self.kind, Database):
            return f"{self.kind.scheme}://{USER}@{HOST}:{self.port}"
        return f"{HOST}:{self.port}"

    def connect(self) -> pymysql.Connection[pymysql.cursors.Cursor]:
        """A new connection with every privilege, autocommit on, utf8mb4."""
        if not isinstance(self.kind, Database):
            raise UsageError(f"{self.kind.name} is not a database")
        return self.kind.connect(self.port)

    def execute(self, *statements: str) -> None:
        """Run statements one after the other on a connection of their own."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    # ------------------------------------------------------------ inside

    def _require_stopped(self) -> None:
        if self._process is not None:
            raise UsageError(f"{self.kind.name} at port {self.port} is running; stop or kill it first")

    def _new_folder(self) -> None:
        if self._given_folder is not None:
            self._folder = self._given_folder.absolute()
            if (self._folder / "data").exists():
                raise UsageError(f"{self._folder} holds a server's data already; give another folder or delete it")
            self._folder.mkdir(parents=True, exist_ok=True)
            return
        _sweep()
        self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._folder_lock = (self._folder / "owner").open("w")
        fcntl.flock(self._folder_lock, fcntl.LOCK_EX)

    def _launch(self, options: Sequence[str]) -> None:
        command = self.kind.command(self.folder, self.port, options)
        if not self._detach:
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        log = self.folder / "server.log"
        with log.open("ab") as output:
            before = output.tell()
            self._process = _starter.submit(
                subprocess.Popen,
                command,
                cwd=self.kind.works_in(self.folder),
                env=self.kind.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C at a terminal is for the tests, which then stop their servers
            ).result()
        (self.folder / "server.pid").write_text(f"{self._process.pid}\n")
        if not self._detach:
            _running[id(self)] = self
        end = time.monotonic() + self.kind.start_s
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            # Only with its own process alive: another server at the port must not pass for this one.
            if self.kind.answers(self.port) and self._process.poll() is None:
                return
            time.sleep(_POLL_S)
        code = self._process.poll()
        said = log.read_bytes()[before:].decode(errors="replace").strip().splitlines()
        complaints = [line for line in said if "ERROR" in line.upper()][-4:] or said[-4:]
        self._end(signal.SIGKILL)
        how = f"did not serve clients within {self.kind.start_s:.0f} s" if code is None else f"ended with code {code}"
        raise SourceUnavailableError(f"{self.kind.name} at port {self.port} {how}: {' / '.join(complaints)}")

    def _end(self, signal_number: signal.Signals) -> None:
        process, self._process = self._process, None
        _running.pop(id(self), None)
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.send_signal(signal_number)
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._folder is not None:
            (self._folder / "server.pid").unlink(missing_ok=True)

    def _discard(self) -> None:
        if self._folder is None:
            return
        if self._given_folder is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        if self._folder_lock is not None:
            self._folder_lock.close()
        self._folder = self._folder_lock = None


def stop_detached(folder: Path, timeout_s: float = 60.0) -> None:
    """Stop the server that was started with ``detach=True`` in this folder. Its data stay.

    Raises:
        UsageError: no server is noted there.
        SourceUnavailableError: it does not stop in time.
    """
    note = folder / "server.pid"
    try:
        pid = int(note.read_text())
        os.kill(pid, signal.SIGTERM)
    except (FileNotFoundError, ValueError):
        raise UsageError(f"no detached server is noted in {folder}") from None
    except ProcessLookupError:  # it was stopped in another way
        note.unlink(missing_ok=True)
        return
    end = time.monotonic() + timeout_s
    while _runs(pid):
        if time.monotonic() > end:
            raise SourceUnavailableError(f"the server of {folder} (process {pid}) does not stop")
        time.sleep(_POLL_S)
    note.unlink(missing_ok=True)


def _copy_folder(source: Path, to: Path) -> None:
    done = subprocess.run(["cp", "-a", "--reflink=auto", str(source), str(to)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SourceUnavailableError(f"the data of a server cannot be copied: {done.stderr.strip()}")


def _runs(pid: int) -> bool:
    """Is this process there and not just waiting to be reaped?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _sweep() -> None:
    """Delete data of servers whose starter was killed: their lock is free."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if folder.stat().st_uid != os.geteuid() or time.time() - folder.stat().st_mtime < 60:
                continue
            with (folder / "owner").open() as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # its owner lives, or somebody else is sweeping


@atexit.register
def _stop_all() -> None:
    for server in list(_running.values()):
        server.stop()


# ---------------------------------------------------------------- by hand


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m cdc.testing.servers``: fetch programs, run a server, stop a detached one, name a tool."""
    parser = argparse.ArgumentParser(prog="python -m cdc.testing.servers", description="Real servers for tests.")
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="get programs into the cache")
    fetching.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(sorted(KINDS))}; none: all")
    starting = commands.add_parser("start", help="run a server with fresh data until Ctrl-C")
    starting.add_argument("kind", metavar="KIND")
    starting.add_argument("--port", type=int)
    starting.add_argument("--folder", type=Path, help="keep data and log here")
    starting.add_argument("--detach", action="store_true", help="return when it serves clients; needs --folder")
    starting.add_argument("option", nargs="*", help="options for the server, after --")
    stopping = commands.add_parser("stop", help="stop a detached server; its data stay")
    stopping.add_argument("folder", type=Path)
    tool = commands.add_parser("tool", help="print the command that runs a client tool")
    tool.add_argument("kind", metavar="KIND")
    tool.add_argument("tool", metavar="TOOL")
    given = parser.parse_args(arguments)
    try:
        if given.command == "fetch":
            for name in given.kinds or sorted(KINDS):
                print(f"{name}: {kind(name).root()}", flush=True)
        elif given.command == "stop":
            stop_detached(given.folder)
        elif given.command == "tool":
            print(shlex.join(client_tool(given.kind, given.tool)))
        else:
            return _run_by_hand(given)
    except CdcError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _run_by_hand(given: argparse.Namespace) -> int:
    server = Server(given.kind, port=given.port, options=given.option, folder=given.folder, detach=given.detach)
    stop = threading.Event()
    if not given.detach:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
    server.start()
    print(f"{server.url} (password {PASSWORD}); log: {server.folder / 'server.log'}", flush=True)
    if given.detach:
        return 0
    while server.alive and not stop.wait(0.5):
        pass
    ended = not server.alive
    server.stop()
    if ended:
        print(f"{given.kind} has ended by itself", file=sys.stderr)
    return 1 if ended else 0


if __name__ == "__main__":
    sys.exit(main())
