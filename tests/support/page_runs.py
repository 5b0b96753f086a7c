"""Runs the commands of a page as they are printed, in one shell and in a folder with what the page presumes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cdc.testing.servers import HOST, PASSWORD, USER, Server
from tests.support.apply import LOCAL_CONF
from tests.support.configurations import server_id_of
from tests.support.instances import change, replace
from tests.support.page_commands import ROOT, Command, commands, shape

LIMIT_S = 300.0


@dataclass(frozen=True)
class Step:
    """The exceptions for a command of a page. Without them the command runs, and its exit code must be 0."""

    unrun: str = ""
    """Why it does not run here."""
    shown_by: str = ""
    """The test that runs what this command does."""
    code: int = 0
    until: str = ""
    """It runs until it prints this, as a regular expression, and is then stopped by SIGTERM."""
    is_ready: Callable[[PageRun], bool] | None = None
    """Or it runs until this holds."""
    stays: bool = False
    """It is not stopped before the page's end."""
    first: str = ""
    """A line that the shell runs before it, such as a change of the folder."""
    before: Callable[[PageRun], None] | None = None
    """Called before it."""
    prints: str = ""
    """A regular expression for its output."""
    unlike: bool = False
    """The output on the page shows another case and is not compared."""


@dataclass(frozen=True)
class Page:
    """The preparations and exceptions for a page's commands."""

    steps: Mapping[str, Step] = field(default_factory=dict)
    """The exceptions by the beginning of the command."""
    setup: Callable[[PageRun], None] | None = None
    """Prepares the folder, beside the usual destination ``shop``."""
    words: Callable[[PageRun], Mapping[str, str]] | None = None
    """Words of the page that are others here, such as the numbers of transactions."""
    is_filled: bool = True
    """Whether the folder has the destination ``shop`` with filled tables."""
    starts_in_checkout: bool = False

    def step(self, command: Command) -> Step:
        keys = [key for key in self.steps if command.text.startswith(key)]
        return self.steps[max(keys, key=len)] if keys else Step()


class PageRun:
    """The folder, the source and the shell of a page."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server = folder, server
        self.facts: Mapping[str, str] = {}
        """Seqs, times and GTID sets of two points of the store."""
        self._background: list[subprocess.Popen[bytes]] = []
        self._is_over = threading.Event()
        self._changing: threading.Thread | None = None
        self.file = folder / "conf" / "shop.yaml"
        self.environment = os.environ | {
            "CDC_SOURCE_PASSWORD": PASSWORD,
            "PATH": f"{folder / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
            "COLUMNS": "200",
        }
        self.environment.pop("CDC_CONF", None)

    def sql(self, *statements: str) -> None:
        """Executes statements in the database ``shop``."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("USE shop")
            for statement in statements:
                cursor.execute(statement)
                connection.commit()

    def cdc(self, *arguments: str) -> str:
        """Runs ``cdc`` and returns its output."""
        return self.program(sys.executable, "-m", "cdc", *arguments)

    def program(self, *command: str) -> str:
        """Runs a program and returns its output."""
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=LIMIT_S
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout

    def in_background(self, *command: str) -> None:
        """Runs a program until the page's end."""
        with (self.folder / "background.log").open("ab") as log:
            self._background.append(
                subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=log, stderr=log)
            )

    def keep_changing(self, *statements: str) -> None:
        """Executes statements again and again until the page's end."""

        def work() -> None:
            while not self._is_over.wait(0.2):
                self.sql(*statements)

        self._changing = threading.Thread(target=work)
        self._changing.start()

    def end_background(self) -> None:
        """Ends the programs in the background."""
        for process in self._background:
            process.terminate()
        for process in self._background:
            process.wait(LIMIT_S)
        self._background.clear()

    def close(self) -> None:
        """Ends all that runs in the background."""
        self._is_over.set()
        if self._changing is not None:
            self._changing.join()
        self.end_background()

    def change(self, **sections: dict[str, object]) -> None:
        """Changes sections of the configuration."""
        change(self.file, **sections)

    def tool(self, name: str, words: list[str]) -> None:
        """Puts a program into the path."""
        file = self.folder / "bin" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n')
        file.chmod(0o755)


def write_destination(run: PageRun) -> None:
    """Writes the configuration ``shop`` for the database of that name."""
    flavor = "mysql" if run.server.kind.name.startswith("mysql") else "mariadb"
    run.file.parent.mkdir(parents=True)
    document = {
        "source": {
            "url": f"{flavor}://{USER}@{HOST}:{run.server.port}",
            "password_env": "CDC_SOURCE_PASSWORD",
            "server_id": server_id_of(run.file),
        },
        "tables": {"include": [r"shop\..*"]},
        "store": {"path": "./data/shop/store"},
        "meta": {"path": "./data/shop/meta"},
        "apply": {"target": "./lake"},
        "batch": {"max_wait_s": 0},
        "spark": {"master": "local[2]", "conf": LOCAL_CONF},
    }
    replace(run.file, document)


class Shell:
    """A shell that runs one command after the other, as a reader types them."""

    def __init__(self, run: PageRun, cwd: Path) -> None:
        self._run = run
        self._folder = run.folder / "shell"
        self._folder.mkdir()
        self._number = 0
        self._process = subprocess.Popen(
            ["bash"], stdin=subprocess.PIPE, cwd=cwd, env=run.environment, text=True, start_new_session=True
        )
        assert self._process.stdin is not None
        self._process.stdin.write("set -m\n")  # each command in the background is a group of processes
        self._groups: list[tuple[int, Path]] = []

    def run(self, text: str, step: Step) -> str:
        """Runs a command and returns what it has printed. Raises AssertionError with it if its end is another one."""
        is_stopped = bool(step.until or step.is_ready)
        self._number += 1
        out, pid, code = (self._folder / f"{self._number}.{name}" for name in ("out", "pid", "code"))
        assert self._process.stdin is not None
        if not is_stopped:
            self._process.stdin.write(
                f"{{ {text}\n}} >{out} 2>&1 </dev/null\necho $? >{code}.new; mv {code}.new {code}\n"
            )
        else:
            background = f"( {text}\n) >{out} 2>&1 </dev/null &\necho $! >{pid}.new; mv {pid}.new {pid}\n"
            self._process.stdin.write(background)
        self._process.stdin.flush()
        limit = time.monotonic() + LIMIT_S

        def wait(condition: Callable[[], object]) -> None:
            while not condition():
                assert time.monotonic() < limit, f"{text}: not done after {LIMIT_S:.0f} s\n{_text(out)}"
                assert self._process.poll() is None, f"the shell has ended at: {text}\n{_text(out)}"
                time.sleep(0.1)

        if not is_stopped:
            wait(code.exists)
            assert int(code.read_text()) == step.code, f"{text}: exit code {code.read_text().strip()}\n{_text(out)}"
            return _text(out)
        wait(pid.exists)
        self._groups.append((int(pid.read_text()), out))
        if step.is_ready:
            wait(lambda: step.is_ready and step.is_ready(self._run))
        else:
            wait(lambda: re.search(step.until, _text(out), re.MULTILINE))
        if not step.stays:
            self.stop()
        return _text(out)

    def stop(self) -> None:
        """Stops what runs in the background, as Ctrl-C does, and waits for its end."""
        for group, out in self._groups:
            os.killpg(group, signal.SIGTERM)
            limit = time.monotonic() + LIMIT_S
            while _is_alive(group):
                assert time.monotonic() < limit, f"it does not stop: {_text(out)}"
                time.sleep(0.1)
        self._groups.clear()

    def close(self) -> None:
        """Ends the shell and what it has left."""
        for group, _ in self._groups:
            if _is_alive(group):
                os.killpg(group, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.exists() else ""


def _is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def run_page(name: str, page: Page, run: PageRun) -> None:
    """Runs every command of a page that is not listed as one that cannot run here."""
    try:
        if page.setup:
            page.setup(run)
        shell = Shell(run, ROOT if page.starts_in_checkout else run.folder)
        try:
            for command in commands(name):
                _run_command(shell, command, page, run)
            shell.stop()
        finally:
            shell.close()
    finally:
        run.close()


def _run_command(shell: Shell, command: Command, page: Page, run: PageRun) -> None:
    step = page.step(command)
    if step.unrun:
        return
    if step.before:
        step.before(run)
    text = command.text
    for old, new in (page.words(run) if page.words else {}).items():
        text = text.replace(old, new)
    printed = shell.run(f"{step.first}\n{text}", step)
    assert re.search(step.prints, printed), f"{text}\n{printed}"
    lost = [line for line in command.printed if not step.unlike and not shape(line).search(printed)]
    assert lost == [], f"{text} does not print {lost} but\n{printed}"
