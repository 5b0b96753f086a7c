"""Prepares the demo: work folder, downloads, database server, configuration."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

from cdc.config import load_destination
from examples.demo.shop import Account

REPOSITORY = Path(__file__).resolve().parents[2]
MARKER = ".towpath-demo"
APPLY_EVERY_S = 5
CAPTURE_FOR_S = 60


class SetupError(Exception):
    """A requirement of the demo is missing; the message says what to do."""


def work_folder() -> Path:
    """Returns an empty folder for this demo. Removes the files of an earlier demo; raises SetupError for other files."""
    folder = Path(os.environ.get("CDC_DEMO_DIR") or REPOSITORY / "demo").absolute()
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARKER).exists():
            raise SetupError(f"{folder} is not empty and not from an earlier demo. Name another with CDC_DEMO_DIR.")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text("Made by `make demo`, which removes this folder when it runs again.\n")
    return folder


def fetch_all(update: Callable[[str], None]) -> None:
    """Downloads what is missing. Raises SetupError without Java, RetryableError if a download fails."""
    java = os.environ.get("JAVA_HOME")
    if shutil.which("java") is None and not (java and (Path(java) / "bin" / "java").exists()):
        raise SetupError("Spark needs Java 17 or 21. Install it, on Debian: apt-get install openjdk-17-jre-headless")
    from cdc.lake.runtime.jars import delta_jars
    from cdc.testing.servers import find_kind

    update("Delta's jars for Spark, 87 MB")
    delta_jars()
    if not os.environ.get("CDC_DEMO_SOURCE"):
        update("MariaDB")
        find_kind("mariadb10").root()


def start_database(work: Path) -> tuple[Account, Callable[[], None]]:
    """Starts a new MariaDB server with its data in the work folder. Returns its account, and the function that stops it.

    Raises SourceUnavailableError.
    """
    from cdc.testing.servers import HOST, PASSWORD, USER, Server

    server = Server("mariadb10", folder=work / "mariadb")
    server.start()
    return Account("mariadb", HOST, server.port, USER, PASSWORD), server.stop


def given_account() -> Account | None:
    """Returns the server that ``CDC_DEMO_SOURCE`` names. Raises SetupError if the URL is wrong or the login fails."""
    url = os.environ.get("CDC_DEMO_SOURCE")
    if not url:
        return None
    parts = urlsplit(url)
    if parts.scheme not in ("mysql", "mariadb") or not parts.hostname or not parts.username:
        raise SetupError("CDC_DEMO_SOURCE must look like mysql://user:password@host:3306 or mariadb://…")
    password = unquote(parts.password or "")
    account = Account(parts.scheme, parts.hostname, parts.port or 3306, unquote(parts.username), password)
    try:
        account.connect().close()
    except pymysql.MySQLError as error:
        raise SetupError(f"CDC_DEMO_SOURCE: {account.url()}: {error.args[-1]}") from None
    return account


def position_of(account: Account) -> tuple[str, int]:
    """Returns the end of the server's binlog: file and offset. Raises SetupError if it writes none."""
    with account.connect() as connection, connection.cursor() as cursor:
        try:
            cursor.execute("SHOW BINARY LOG STATUS")
        except pymysql.MySQLError:
            cursor.execute("SHOW MASTER STATUS")
        row = cursor.fetchone()
    if row is None:
        raise SetupError(f"The server at {account.url()} writes no binlog. Start it with --log-bin.")
    return str(row[0]), int(row[1])


class Command:
    """The command ``cdc`` with the demo's configuration folder."""

    def __init__(self, conf: Path, environment: dict[str, str]) -> None:
        self.conf = conf
        self._environment = dict(os.environ) | environment
        path = [str(REPOSITORY), self._environment.get("PYTHONPATH", "")]
        self._environment["PYTHONPATH"] = os.pathsep.join(p for p in path if p)

    def __call__(self, *arguments: str) -> str:
        """Runs the command and returns its standard output. Raises SetupError with its error output."""
        done = subprocess.run(
            [sys.executable, "-m", "cdc", "--conf-dir", str(self.conf), *arguments],
            env=self._environment,
            cwd=self.conf.parent,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise SetupError(f"`cdc {' '.join(arguments)}` failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def status(self, destination: str) -> dict[str, Any]:
        """Returns the document of ``cdc status --json``, without starting a process each time."""
        from cdc.watch.status import collect

        return collect(load_destination(self.conf, destination))


def adjust(file: Path, changes: dict[str, dict[str, str]]) -> None:
    """Sets keys of the written configuration, ``{section: {key: value as YAML}}``, and keeps its comments."""
    text = file.read_text(encoding="utf-8")
    for section, keys in changes.items():
        for key, value in keys.items():
            text = _set(text, section, key, value)
    file.write_text(text, encoding="utf-8")


def _set(text: str, section: str, key: str, value: str) -> str:
    block = re.search(rf"^{section}:[^\n]*\n(?:(?:[ \t#][^\n]*)?\n)*", text, re.MULTILINE)
    if block is None:
        return f"{text.rstrip()}\n{section}:\n  {key}: {value}\n"
    body = block[0]
    inline = re.match(rf"{section}:\s*\{{", body)
    if inline is not None:
        pattern, new = rf"(\b{key}:\s*)[^,}}]+", rf"\g<1>{value}"
        changed = re.sub(pattern, new, body, count=1)
        if changed == body:
            changed = re.sub(r"\{", f"{{{key}: {value}, ", body, count=1)
    else:
        pattern = rf"^(\s+){key}:[^\n]*$"
        changed = re.sub(pattern, lambda m: f"{m[1]}{key}: {value}", body, count=1, flags=re.MULTILINE)
        if not re.search(pattern, body, re.MULTILINE):
            changed = re.sub(r"\n", f"\n  {key}: {value}\n", body, count=1)
    return text[: block.start()] + changed + text[block.end() :]
