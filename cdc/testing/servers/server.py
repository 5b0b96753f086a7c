"""One running server: started on a free port of 127.0.0.1, stopped, killed, restarted on its data."""

from __future__ import annotations

import atexit
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import pymysql

from cdc.base.errors import SourceUnavailableError, UsageError
from cdc.testing.servers.kinds import HOST, KINDS, Database, ServerKind, find_kind

_PREFIX = "towpath-server-"
_POLL_S = 0.05
_ATTEMPTS = 5
_PORTS = range(15000, 30000)  # below the range from which the kernel takes ports of outgoing connections

# The parent-death signal is bound to the *thread* that started the child; this one lives as long as the process.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="server-starter")
_running: dict[int, Server] = {}


def client_tool(kind_name: str, tool: str) -> list[str]:
    """Returns the command that runs a client tool: ``client_tool("mysql9", "mysqlbinlog")``.

    MySQL 9 has ``mysqlbinlog``; both MariaDBs have ``mariadb-binlog`` and ``mariadb``. The programs are fetched if they
    are not in the cache. Raises UsageError for an unknown kind or tool.
    """
    return (KINDS.get(kind_name) or find_kind(kind_name)).tool(tool)


def free_port() -> int:
    """Returns a port of 127.0.0.1 on which nothing listens now. Raises SourceUnavailableError."""
    dice = random.Random(os.urandom(8))
    for _ in range(200):
        port = dice.choice(_PORTS)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind((HOST, port))
                return port
    raise SourceUnavailableError(f"no free port between {_PORTS.start} and {_PORTS.stop} on {HOST}")


def _is_listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


class ServerSet(ABC):
    """Servers that are started and stopped together. As a context it does both."""

    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def stop(self) -> None: ...

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


class Server:
    """A server of one kind, started by :meth:`start` or by ``with``.

    Args:
        kind_name: mysql9, mariadb11, mariadb10, mysql56, zookeeper, kafka or versitygw.
        port: a fixed port. None takes a free one, and another one if a process takes that port first.
        options: further options of the server (for ZooKeeper: lines of ``zoo.cfg``; for Kafka: of its properties).
        folder: the folder of data, log and socket, which stays at the end. None takes a temporary folder, which
            :meth:`stop` deletes.
        detach: let the server outlive this process. Needs ``folder``, where ``server.pid`` holds its process id.
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
            raise UsageError("a detached server needs a folder")
        self.kind: ServerKind = find_kind(kind_name)
        self.options = tuple(options)
        self.port = port or 0
        self._fixed_port = port is not None
        self._given_folder = folder
        self._folder: Path | None = None
        self._folder_lock: IO[str] | None = None
        self._detach = detach
        self._process: subprocess.Popen[bytes] | None = None

    # --- start and stop ----------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Starts the server with fresh data and returns when it serves clients.

        Raises SourceUnavailableError if its programs cannot be fetched or it does not start; the message has the last
        lines of its log.
        """
        if self._process is not None:
            raise UsageError(f"{self.kind.name} at port {self.port} is running already")
        self.kind.root()
        for attempt in range(1, _ATTEMPTS + 1):
            if not self._fixed_port:
                self.port = free_port()
            elif _is_listening(self.port):
                raise SourceUnavailableError(f"another process already listens at port {self.port} of {HOST}")
            self._new_folder()
            self.kind.create(self.folder, self.options)
            try:
                self._launch(self.options)
                return self
            except SourceUnavailableError:
                shutil.rmtree(self.data, ignore_errors=True)
                self._discard()
                if self._fixed_port or attempt == _ATTEMPTS or not _is_listening(self.port):
                    raise  # the port was not the reason, or cannot be changed
        raise AssertionError("unreachable")

    def restart(self, *options: str) -> Self:
        """Starts a stopped or killed server on its data, with further options for this run only.

        A new ``Server`` that is given the ``folder`` of an earlier one starts on the earlier one's data.
        """
        self._require_stopped()
        if self._folder is None and self._given_folder is not None:
            self._folder = self._given_folder.absolute()
        if not self.data.is_dir():
            raise UsageError(f"{self.folder} contains no data of a server; call start() first")
        self.port = self.port or free_port()
        self._launch((*self.options, *options))
        return self

    def copy_data(self, to: Path) -> None:
        """Copies the data of a stopped server to the folder ``to``, as a backup of the machine does. ``to`` must not
        exist."""
        self._require_stopped()
        _copy_folder(self.data, to)

    def replace_data(self, copy: Path | None) -> None:
        """Replaces the data of a stopped server by a copy that :meth:`copy_data` made, or (None) by fresh data with
        another server identity. :meth:`restart` then starts it on them, at the same port."""
        self._require_stopped()
        shutil.rmtree(self.data)
        if copy is None:
            self.kind.create(self.folder, self.options)
        else:
            _copy_folder(copy, self.data)

    def halt(self) -> None:
        """Stops cleanly and keeps the data for :meth:`restart`."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL and keeps the data for :meth:`restart`."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stops, and deletes the data unless the folder was given. Does nothing if the server is stopped already."""
        # A clean shutdown may take seconds and is only needed for data that stays.
        self._end(signal.SIGTERM if self._given_folder is not None else signal.SIGKILL)
        self._discard()

    def __enter__(self) -> Self:
        """Starts the server unless it is running, so that ``with Server(…, folder=…).restart():`` works too."""
        return self if self.alive else self.start()

    def __exit__(
        self, kind_: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    # --- properties and connections ----------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """The folder that contains ``data/`` and ``server.log``."""
        if self._folder is None:
            raise UsageError(f"{self.kind.name} has not been started")
        return self._folder

    @property
    def data(self) -> Path:
        """The data folder, in which a database has its binlog files ``binlog.000001`` and so on."""
        return self.folder / "data"

    @property
    def alive(self) -> bool:
        """Whether its process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise UsageError(f"{self.kind.name} at port {self.port} is not running")
        return self._process.pid

    @property
    def url(self) -> str:
        """``mysql://t@127.0.0.1:PORT`` or ``mariadb://…``, without the password; ``http://127.0.0.1:PORT`` for
        VersityGW; ``host:port`` for ZooKeeper and Kafka."""
        return self.kind.url(self.port)

    def connect(self) -> pymysql.Connection[pymysql.cursors.Cursor]:
        """Returns a new connection with every privilege, autocommit and utf8mb4."""
        if not isinstance(self.kind, Database):
            raise UsageError(f"{self.kind.name} is not a database")
        return self.kind.connect(self.port)

    def execute(self, *statements: str) -> None:
        """Runs statements one after the other on a new connection."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    # --- the process and its folder ----------------------------------------------------------------------------------

    def _require_stopped(self) -> None:
        if self._process is not None:
            raise UsageError(f"{self.kind.name} at port {self.port} is running; stop or kill it first")

    def _new_folder(self) -> None:
        if self._given_folder is not None:
            self._folder = self._given_folder.absolute()
            if (self._folder / "data").exists():
                raise UsageError(f"{self._folder} already contains a server's data; give another folder or delete it")
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
                cwd=self.folder,
                env=self.kind.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C at a terminal stops the tests, which then stop their servers
            ).result()
        (self.folder / "server.pid").write_text(f"{self._process.pid}\n")
        if not self._detach:
            _running[id(self)] = self
        end = time.monotonic() + self.kind.start_s
        while time.monotonic() < end:
            if self._process.poll() is not None:
                break
            # Check that the process is alive: the answer may come from another server at the same port.
            if self.kind.answers(self.port) and self._process.poll() is None:
                return
            time.sleep(_POLL_S)
        code = self._process.poll()
        logged = log.read_bytes()[before:].decode(errors="replace").strip().splitlines()
        complaints = [line for line in logged if "ERROR" in line.upper()][-4:] or logged[-4:]
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
    """Stops the server that was started with ``detach=True`` in this folder, and keeps its data.

    Raises UsageError if the folder names no running server, SourceUnavailableError if it does not stop in time.
    """
    pid_file = folder / "server.pid"
    try:
        pid = int(pid_file.read_text())
        os.kill(pid, signal.SIGTERM)
    except (FileNotFoundError, ValueError):
        raise UsageError(f"no detached server runs in {folder} (it has no server.pid)") from None
    except ProcessLookupError:  # it has ended already
        pid_file.unlink(missing_ok=True)
        return
    end = time.monotonic() + timeout_s
    while _runs(pid):
        if time.monotonic() > end:
            raise SourceUnavailableError(
                f"the server in {folder} (process {pid}) has not stopped after {timeout_s:g} s"
            )
        time.sleep(_POLL_S)
    pid_file.unlink(missing_ok=True)


def _copy_folder(source: Path, to: Path) -> None:
    done = subprocess.run(["cp", "-a", "--reflink=auto", str(source), str(to)], capture_output=True, text=True)
    if done.returncode != 0:
        raise SourceUnavailableError(f"{source} cannot be copied to {to}: {done.stderr.strip()}")


def _runs(pid: int) -> bool:
    """Whether this process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def _sweep() -> None:
    """Deletes the data of servers whose starter was killed, which has freed their lock."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if folder.stat().st_uid != os.geteuid() or time.time() - folder.stat().st_mtime < 60:
                continue
            with (folder / "owner").open() as owner:
                fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # its owner is alive, or another process is deleting it


@atexit.register
def _stop_all() -> None:
    for server in list(_running.values()):
        server.stop()
