"""Shared by the tests of bad input: the command as a process, a configured folder, and the form of a refusal."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cdc.store.formats.layout import list_segments
from cdc.testing.servers import HOST, PASSWORD, USER, Server
from tests.support.configurations import server_id_of

# Runs several commands in one process, since Python's start takes longer than most of them. Each runs the function that
# `cdc` runs; marks separate their output.
_BUNDLE = """
import json, sys
from cdc.cli.main import main
for arguments in json.loads(sys.argv[1]):
    code = main(arguments)
    for stream in (sys.stdout, sys.stderr):
        stream.write(f"\\x1e{code}\\x1e")
        stream.flush()
"""
# Short runs end before the JVM's optimising compiler pays off.
QUICK = (
    "spark.driver.memory: 1g, "
    "spark.driver.extraJavaOptions: '-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=200m'"
)
_MARK = re.compile("\x1e(-?\\d+)\x1e")
_LOG_LINE = re.compile(r"\d{4}-\d\d-\d\dT\S+ \[|WARNING: Using incubator modules")


@dataclass(frozen=True)
class Done:
    """The exit code and the output of a command."""

    arguments: Sequence[str]
    code: int
    out: str
    err: str

    @property
    def complaints(self) -> list[str]:
        """Standard error without log lines and without Java's own warnings."""
        return [line for line in self.err.splitlines() if line.strip() and not _LOG_LINE.match(line)]


@dataclass(frozen=True)
class Site:
    """A folder with ``conf/shop.yaml``, the store ``data/store``, the meta ``data/meta``, and the tables in ``lake``."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "data" / "store"

    @property
    def meta(self) -> Path:
        return self.folder / "data" / "meta"

    @property
    def segments(self) -> list[Path]:
        return list_segments(self.store)

    def configure(
        self,
        url: str,
        db: str,
        *,
        name: str = "shop",
        start: str = "earliest",
        server_id: int | None = None,
        store: str = "./data/store",
        meta: str = "./data/meta",
        target: str = "./lake",
        more: str = "",
    ) -> Path:
        """Writes a configuration file and returns its path."""
        file = self.folder / "conf" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        if server_id is None:
            server_id = server_id_of(file)
        file.write_text(
            f"source: {{url: '{url}', password_env: TOWPATH_TEST_PASSWORD, server_id: {server_id}, start: {start}}}\n"
            f"tables: {{include: ['{db}\\..*']}}\n"
            f"store: {{path: '{store}', segment_bytes: 65536}}\nmeta: {{path: '{meta}'}}\n"
            f"apply: {{target: '{target}'}}\nspark: {{master: 'local[2]', conf: {{{QUICK}}}}}\n{more}"
        )
        return file

    def environment(self, password: str = PASSWORD) -> dict[str, str]:
        return os.environ | {"TOWPATH_TEST_PASSWORD": password}

    def run(
        self, *arguments: str, password: str = PASSWORD, prefix: Sequence[str] = (), timeout_s: float = 120
    ) -> Done:
        """Runs ``cdc ARGUMENTS`` as a process, as users do; ``prefix`` is a command that starts it."""
        command = [*prefix, sys.executable, "-m", "cdc", "--conf-dir", str(self.folder / "conf"), *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, env=self.environment(password), timeout=timeout_s, check=False
        )
        return Done(arguments, done.returncode, done.stdout, done.stderr)

    def bundle(self, *commands: Sequence[str], timeout_s: float = 200) -> list[Done]:
        """Runs several commands, one after the other, in one process."""
        return bundle([(self, command) for command in commands], timeout_s=timeout_s)

    def files(self) -> dict[str, str]:
        """Digests of all files below the folder, except lock files, which only hold a process id."""
        return {
            str(path.relative_to(self.folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and path.name not in ("lock", "apply.lock", "retention.lock")
        }


def bundle(commands: Sequence[tuple[Site, Sequence[str]]], *, timeout_s: float = 200) -> list[Done]:
    """Runs commands of several sites, one after the other, in one process."""
    arguments = [["--conf-dir", str(site.folder / "conf"), *command] for site, command in commands]
    done = subprocess.run(
        [sys.executable, "-c", _BUNDLE, json.dumps(arguments)],
        capture_output=True,
        text=True,
        env=os.environ | {"TOWPATH_TEST_PASSWORD": PASSWORD},
        timeout=timeout_s,
        check=False,
    )
    outs, errs = _MARK.split(done.stdout), _MARK.split(done.stderr)
    assert done.returncode == 0 and len(errs) == 2 * len(commands) + 1, done.stderr
    return [Done(c, int(outs[2 * n + 1]), outs[2 * n], errs[2 * n]) for n, (_, c) in enumerate(commands)]


def refused(done: Done, code: int, *words: str) -> str:
    """Checks that a command ended with this code and one message that has all these words; returns the message."""
    assert done.code == code, (done.arguments, done.code, done.err)
    assert len(done.complaints) == 1, (done.arguments, done.err)
    message = done.complaints[0]
    assert message.startswith("cdc: "), message
    missing = [word for word in words if word not in message]
    assert not missing, (missing, message)
    assert "raceback" not in done.err and "unexpected" not in message, done.err
    assert len(message) < 900 and PASSWORD + "@" not in message
    return message


def succeeded(done: Done) -> Done:
    """Checks that a command succeeded."""
    assert done.code == 0, (done.arguments, done.err)
    return done


def url(server: Server, user: str = USER) -> str:
    """The server's URL for a user."""
    return server.url.replace(f"//{USER}@", f"//{user}@")


def rows(done: Done) -> list[int]:
    """The ids that ``cdc decode --column id`` printed."""
    succeeded(done)
    return [json.loads(line)["id"] for line in done.out.splitlines()]


__all__ = ["HOST", "PASSWORD", "USER", "Done", "Site", "bundle", "refused", "rows", "succeeded", "url"]
