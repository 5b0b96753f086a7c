"""Apply on another machine than the store: in a network of its own, and without the folders of store, meta and server.

Namespaces of the kernel stand for the machines. Without root there is no network of its own, only other mounts.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from cdc.config import DestinationConfig
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.server import client_config, make_certificates, server_process, with_tokens

NETWORK = os.geteuid() == 0
HERE, THERE = "10.213.77.1", "10.213.77.2"
HIDE = 'for folder in $HIDDEN; do mount -t tmpfs none "$folder" || exit 90; done; exec "$@"'


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@dataclass
class Machine:
    """Another machine. Its processes see neither ``hidden`` nor, with root, this machine's network but one cable."""

    name: str
    hidden: tuple[Path, ...]
    address: str
    """This machine's address, as seen from there."""

    def run(self, config: DestinationConfig, *words: str, code: int = 0) -> str:
        """Runs a command of ``cdc``, and returns its output, or its error if another code than 0 is expected."""
        command = [sys.executable, "-m", "cdc", "--conf-dir", str(config.file.parent), words[0], "shop", *words[1:]]
        inside = ["unshare", "-m" if NETWORK else "-rm", "sh", "-c", HIDE, "sh", *command]
        done = subprocess.run(
            ["ip", "netns", "exec", self.name, *inside] if NETWORK else inside,
            env={**os.environ, "HIDDEN": " ".join(map(str, self.hidden)), "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == code, done.stderr[-3000:]
        return done.stderr if code else done.stdout

    def cable(self, state: str) -> None:
        """Takes the cable out (``down``) or puts it back (``up``)."""
        ip("link", "set", f"{self.name}h", state)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    hidden = (tmp_path / "shop", tmp_path / "conf")
    if not NETWORK:
        yield Machine("", hidden, "127.0.0.1")
        return
    name = f"tp{os.getpid() % 100_000}"
    with ExitStack() as stack:
        ip("netns", "add", name)
        stack.callback(ip, "netns", "del", name)
        ip("link", "add", f"{name}h", "type", "veth", "peer", "name", f"{name}t", "netns", name)
        ip("addr", "add", f"{HERE}/30", "dev", f"{name}h")
        ip("link", "set", f"{name}h", "up")
        for words in (["addr", "add", f"{THERE}/30", "dev", f"{name}t"], ["link", "set", f"{name}t", "up"]):
            ip("-n", name, *words)
        ip("-n", name, "link", "set", "lo", "up")
        yield Machine(name, hidden, HERE)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_apply_without_the_disk(
    tmp_path: Path, mysql9: Server, database: Callable[[Server], str], machine: Machine
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), overrides="DB.log: {mode: append}")
    loop.sql(
        "CREATE TABLE mirror (id INT PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE log (id INT PRIMARY KEY, v VARCHAR(20))",
        "INSERT INTO mirror VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO log VALUES (1, 'x')",
    )
    loop.capture()
    tls = make_certificates(loop.config.file.parent, address=machine.address)
    served = with_tokens(loop.config, host=machine.address, certificate=tls.certificate.name, key=tls.key.name)
    with server_process(served, tmp_path) as server:
        client = client_config(served, tmp_path / "client", server.url, ca_file="ca.pem", retry_for_s=20)
        (client.file.parent / "ca.pem").write_bytes(tls.ca.read_bytes())
        machine.run(client, "apply", "--until-empty")
        loop.require_equal("mirror")
        assert loop.changelog("log") == [("insert", 1)]
        assert "needs the disk of the store" in machine.run(client, "capture", "--until-current", code=2)

        loop.sql("UPDATE mirror SET v = 'changed'", "INSERT INTO log VALUES (2, 'y')")
        loop.capture()
        if NETWORK:  # a cable that is out for a while is waited for
            machine.cable("down")
            back = threading.Timer(12, machine.cable, ["up"])
            back.start()
            began = time.monotonic()
            machine.run(client, "apply", "--until-empty")
            assert time.monotonic() - began > 10
            back.join()
        else:
            machine.run(client, "apply", "--until-empty")
        loop.require_equal("mirror")
        assert loop.changelog("log") == [("insert", 1), ("insert", 2)]

        loop.sql("INSERT INTO log VALUES (3, 'z')")
        loop.capture()
        if NETWORK:  # one that stays out ends the run, and the next one goes on
            machine.cable("down")
            assert "the server did not answer" in machine.run(client, "apply", "--until-empty", code=1)
            machine.cable("up")
        machine.run(client, "apply", "--until-empty")
        assert loop.changelog("log") == [("insert", 1), ("insert", 2), ("insert", 3)]
