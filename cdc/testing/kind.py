"""What every kind of server has, and how its unpacked programs are run."""

from __future__ import annotations

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from cdc.errors import SourceUnavailableError, UsageError
from cdc.testing.packages import Package, fetch

USER = "t"
PASSWORD = "pw"
HOST = "127.0.0.1"

_LIBRARY_FOLDERS = ("usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib64", "lib64", "usr/lib")


def loaded(root: Path, program: Path) -> list[str]:
    """The command that runs an unpacked program with the libraries unpacked beside it, by their own loader."""
    folders = [root / folder for folder in _LIBRARY_FOLDERS if (root / folder).is_dir()]
    loader = next((f / "ld-linux-x86-64.so.2" for f in folders if (f / "ld-linux-x86-64.so.2").exists()), None)
    if loader is None:
        raise SourceUnavailableError(f"{root} holds no loader", remedy="Delete the folder; it is fetched again.")
    return [str(loader), "--library-path", ":".join(map(str, folders)), str(program)]


def run_as() -> list[str]:
    """The option without which a database server refuses to run as root."""
    return ["--user=root"] if os.geteuid() == 0 else []


class Kind(ABC):
    """One kind of server."""

    def __init__(self, name: str, package: Package, tools: dict[str, str], start_s: float = 60.0) -> None:
        self.name = name
        self.package = package
        self.tools = tools
        """Client tools: name and path below the root."""
        self.start_s = start_s

    def root(self) -> Path:
        """The unpacked programs; fetched when they are not there."""
        return fetch(self.name, self.package)

    def tool(self, name: str) -> list[str]:
        """The command prefix that runs a client tool."""
        if name not in self.tools:
            known = ", ".join(sorted(self.tools)) or "none"
            raise UsageError(f"{self.name} has no client tool {name!r} here (it has: {known})")
        root = self.root()
        return loaded(root, root / self.tools[name])

    @abstractmethod
    def create(self, folder: Path) -> None:
        """Make fresh data for a server that lives in ``folder``."""

    @abstractmethod
    def command(self, folder: Path, port: int, options: Sequence[str]) -> list[str]:
        """The command that runs the server in the foreground on the data in ``folder``."""

    @abstractmethod
    def answers(self, port: int) -> bool:
        """Does the server at this port serve clients?"""

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def works_in(self, folder: Path) -> Path:
        """The working folder of the process."""
        return folder


def run_to_end(name: str, command: Sequence[str], stdin: str = "") -> None:
    """Run a server's program in a mode in which it ends by itself."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    if done.returncode != 0:
        last = " ".join((done.stdout + done.stderr).strip().splitlines()[-3:])
        raise SourceUnavailableError(f"{name}: its data cannot be made: {last or 'it said nothing'}")
