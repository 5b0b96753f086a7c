"""Machines of a test: namespaces of the kernel with a network of their own and a disk that no other machine sees.

A :class:`Site` has a switch (a bridge) and any number of machines on it. Each machine has an address, and a private,
empty file system at the site's folder, so that one path is another folder on each machine. Programs, the repository and
the kernel are shared, as machines have them that were installed alike. The test itself runs on the host, which all
machines reach at :attr:`Site.host`. It takes root.
"""

from __future__ import annotations

import ipaddress
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self

_START_S = 20.0


def ip(*words: str) -> None:
    """Runs the command ``ip``."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class Machine:
    """A machine of a site."""

    def __init__(self, site: Site, name: str, address: str, hidden: Sequence[Path]) -> None:
        self.name, self.address = name, address
        self._site = site
        self._namespace = f"{site.name}{name}"[:12]
        self._hidden = tuple(hidden)
        self._holder: subprocess.Popen[bytes] | None = None
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def folder(self) -> Path:
        """The site's folder, which is another one on each machine."""
        return self._site.folder

    @property
    def host(self) -> str:
        """The host's address, as the machine sees it."""
        return self._site.host

    def start(self) -> None:
        """Connects the machine to the switch and gives it an empty disk."""
        name, cable = self._namespace, f"{self._namespace}c"
        ip("netns", "add", name)
        ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", cable, "master", self._site.bridge, "up")
        ip("-n", name, "addr", "add", f"{self.address}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        folders = " ".join(f"'{folder}'" for folder in (self._site.folder, *self._hidden))
        script = f"for one in {folders}; do mount -t tmpfs none $one || exit 90; done; echo up; exec sleep infinity"
        self._holder = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "ip", "netns", "exec", name, "unshare", "-m", "sh", "-c", script],
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"up\n", f"the machine {self.name} did not start"
        self.path("tmp").mkdir()

    def path(self, name: str | Path) -> Path:
        """Returns the path by which the host sees a file of this machine; ``name`` is relative to the site's folder."""
        assert self._holder is not None
        return Path(f"/proc/{self._holder.pid}/root{self._site.folder}") / name

    def put(self, *names: str) -> None:
        """Copies files and folders of the site's folder from the host."""
        for name in names:
            source, to = self._site.folder / name, self.path(name)
            to.parent.mkdir(parents=True, exist_ok=True)
            if source.is_dir():
                shutil.copytree(source, to, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy2(source, to)

    def environment(self, **more: str) -> dict[str, str]:
        """Returns the environment of processes on this machine."""
        return {
            **os.environ,
            "TOWPATH_CACHE": str(self._site.folder / "cache"),
            "TMPDIR": str(self._site.folder / "tmp"),
            "SPARK_LOCAL_DIRS": str(self._site.folder / "tmp"),
            "SPARK_LOCAL_IP": self.address,
            **more,
        }

    def popen(self, command: Sequence[str], log: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Starts a process, whose output goes to a file of the host's folder: see :meth:`log`."""
        assert self._holder is not None
        inside = ["nsenter", "-t", str(self._holder.pid), "-m", "-n", f"--wdns={self._site.folder}", "--", *command]
        with (self._site.folder / f"{self.name}-{log}.log").open("ab") as output:
            process = subprocess.Popen(
                inside,
                env=dict(self.environment() if env is None else env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def run(self, *words: str, code: int = 0, env: Mapping[str, str] | None = None, limit_s: float = 300) -> str:
        """Runs a program to its end, and returns its output; its error if another code than 0 is expected."""
        assert self._holder is not None
        done = subprocess.run(
            ["nsenter", "-t", str(self._holder.pid), "-m", "-n", f"--wdns={self._site.folder}", "--", *words],
            env=dict(self.environment() if env is None else env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
        assert done.returncode == code, f"{self.name}: {words[:6]} ended with {done.returncode}\n{done.stderr[-4000:]}"
        return done.stderr if code else done.stdout

    def python(self, *words: str, **options: object) -> str:
        """Runs Python; see :meth:`run`."""
        return self.run(sys.executable, *words, **options)  # type: ignore[arg-type]

    def log(self, name: str) -> str:
        """Returns the output of a process that :meth:`popen` has started."""
        return (self._site.folder / f"{self.name}-{name}.log").read_text(errors="replace")

    def cable(self, state: str) -> None:
        """Takes the cable out (``down``) or puts it back (``up``)."""
        ip("link", "set", f"{self._namespace}c", state)

    def pids(self) -> list[int]:
        """Returns the ids of all processes on this machine."""
        assert self._holder is not None
        namespace = Path(f"/proc/{self._holder.pid}/ns/net").readlink()
        pids = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (process / "ns" / "net").readlink() == namespace and int(process.name) != self._holder.pid:
                    pids.append(int(process.name))
        return pids

    def matching(self, *words: str) -> list[int]:
        """Returns the ids of the processes on this machine whose command line holds all these words."""
        pids = []
        for pid in self.pids():
            with suppress(OSError):
                line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                if all(word in line for word in words):
                    pids.append(pid)
        return pids

    def kill_matching(self, *words: str) -> int:
        """Kills these processes (see :meth:`matching`), and returns their number."""
        killed = 0
        for pid in self.matching(*words):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        return killed

    def signal(self, number: int) -> None:
        """Sends a signal to every process on this machine, such as SIGSTOP, as a virtual machine is paused."""
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def crash(self) -> None:
        """Kills every process on this machine at once, as a loss of power does; its disk stays."""
        deadline = time.monotonic() + 30
        while pids := self.pids():
            assert time.monotonic() < deadline, f"processes of {self.name} do not end: {pids}"
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for process in self._processes:
                process.poll()
            time.sleep(0.05)
        self._processes.clear()

    def stop(self) -> None:
        """Ends the machine; its disk is gone."""
        if self._holder is None:
            return
        self.crash()
        self._holder.kill()
        self._holder.wait()
        assert self._holder.stdout is not None
        self._holder.stdout.close()
        self._holder = None
        ip("link", "del", f"{self._namespace}c")  # with the namespace it would end some time later
        ip("netns", "del", self._namespace)


class Site:
    """A switch with the host and machines on it. ``folder``: see the module. ``number``: 0 to 255, another one for each
    site that exists at the same time."""

    def __init__(self, folder: Path, number: int | None = None) -> None:
        self.folder = folder
        number = os.getpid() % 200 if number is None else number
        self.name = f"tp{number:02x}"
        self.bridge = f"{self.name}br"
        self._addresses = ipaddress.ip_network(f"10.214.{number}.0/24").hosts()
        self.host = str(next(self._addresses))
        """The host's address, as machines see it."""
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        assert os.geteuid() == 0, "network namespaces take root"
        ip("link", "add", self.bridge, "type", "bridge")
        self._resources.callback(ip, "link", "del", self.bridge)
        ip("addr", "add", f"{self.host}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def machine(self, name: str, hidden: Sequence[Path] = ()) -> Machine:
        """Starts a machine; its name has at most 7 letters. It sees empty folders in place of ``hidden``."""
        machine = Machine(self, name, str(next(self._addresses)), hidden)
        self._resources.callback(machine.stop)
        machine.start()
        return machine

    def forward(self, port: int) -> None:
        """Lets machines reach a port of the host's 127.0.0.1 at the same port of :attr:`host`."""
        listener = socket.create_server((self.host, port))
        self._resources.callback(listener.close)
        self._resources.callback(listener.shutdown, socket.SHUT_RDWR)  # or accept would keep the port
        threading.Thread(target=_accept, args=(listener, port), name=f"forward-{port}", daemon=True).start()


def _accept(listener: socket.socket, port: int) -> None:
    with suppress(OSError):  # the listener is closed at the end
        while True:
            near, _ = listener.accept()
            try:
                far = socket.create_connection(("127.0.0.1", port))
            except OSError:
                near.close()
                continue
            for source, destination in ((near, far), (far, near)):
                threading.Thread(target=_copy, args=(source, destination), daemon=True).start()


def _copy(source: socket.socket, to: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            to.sendall(data)
    with suppress(OSError):
        to.shutdown(socket.SHUT_WR)


def wait_for_port(address: str, port: int, process: subprocess.Popen[bytes], limit_s: float = 60) -> None:
    """Waits until something listens; fails if the process ends before."""
    deadline = time.monotonic() + limit_s
    while True:
        with suppress(OSError), socket.create_connection((address, port), timeout=1):
            return
        assert process.poll() is None, f"the process for {address}:{port} ended with {process.returncode}"
        assert time.monotonic() < deadline, f"nothing listens at {address}:{port}"
        time.sleep(0.1)
