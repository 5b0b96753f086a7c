"""A running deployment goes over from another commit to this one, back, and over again: nothing is lost, and nothing
applied twice. If the other commit refuses newer formats, it changes nothing, and this one goes on.

``TOWPATH_UPGRADE_FROM`` names the commit or tag of the other Towpath; without it the newest tag of a version is taken,
and without tags the last commit of this checkout. It runs in this environment, so with the same dependencies.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cdc.testing.servers import PASSWORD, USER, Server

ROOT = Path(__file__).parents[3]
FIRST_START_S = 240
"""The seconds that a version may take which compiles its kernels."""


def git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr} (this test needs a clone with its history)"
    return done.stdout.strip()


def other_commit() -> str:
    given = os.environ.get("TOWPATH_UPGRADE_FROM")
    if given:
        return given
    tags = git("tag", "--list", "v*", "--sort=-version:refname").splitlines()
    return tags[0] if tags else "HEAD"


class Deployment:
    """The folder of a user, in which one version or another works."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self.old = folder / "old"
        self.old.mkdir()
        archive = folder / "old.tar"
        git("archive", "--format=tar", "--output", str(archive), other_commit())
        subprocess.run(["tar", "-xf", str(archive), "-C", str(self.old)], check=True)

    def __call__(self, root: Path, *arguments: str) -> str:
        """Runs ``cdc`` of the version in ``root``, and returns its output."""
        done = self.run(root, *arguments)
        text = f"{root.name}: cdc {' '.join(arguments)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert done.returncode == 0, text
        return done.stdout

    def run(self, root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self._command(*arguments),
            cwd=self.folder,
            env=_environment(root),
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )

    def is_refused(self, root: Path) -> bool:
        """Whether this version refuses what a newer one has written. Requires that it then changes nothing."""
        status = self.run(root, "status", "shop")
        if status.returncode == 0:
            return False
        before = self.contents()
        for words in (("status", "shop"), ("apply", "shop")):
            done = self.run(root, *words)
            assert done.returncode == 2, done.stderr
            assert "has format version" in done.stderr
        assert self.contents() == before
        return True

    def contents(self) -> dict[Path, bytes]:
        """Returns the files of store, meta and lake."""
        folders = (self.folder / "data", self.folder / "lake")
        return {file: file.read_bytes() for folder in folders for file in folder.rglob("*") if file.is_file()}

    def capture(self, root: Path) -> subprocess.Popen[str]:
        """Starts a capture that goes on until it is ended."""
        log = (self.folder / "capture.log").open("w", encoding="utf-8")
        return subprocess.Popen(
            self._command("capture", "shop"), cwd=self.folder, env=_environment(root), stdout=log, stderr=log, text=True
        )

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "cdc", *arguments]

    def rows(self, db: str) -> list[tuple[int, int]]:
        rows = DeltaTable(str(self.folder / "lake" / db / "t")).to_pyarrow_table().to_pylist()
        return sorted((row["id"], row["v"]) for row in rows)


def _environment(root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(root), "CDC_SOURCE_PASSWORD": PASSWORD}


def wait_for_transactions(deployment: Deployment, root: Path, expected: int) -> None:
    """Waits until the running capture has stored so many transactions that are not applied."""
    until = time.monotonic() + FIRST_START_S
    while True:
        (subscription,) = json.loads(deployment(root, "status", "shop", "--json"))["subscriptions"]
        if subscription["behind"]["transactions"] >= expected:
            return
        log = (deployment.folder / "capture.log").read_text(encoding="utf-8")
        assert time.monotonic() < until, log[-3000:]
        time.sleep(1)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_deployment_is_upgraded_downgraded_and_upgraded(
    tmp_path: Path, mariadb11: Server, database: Callable[[Server], str]
) -> None:
    db = database(mariadb11)
    mariadb11.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v INT)", f"INSERT INTO {db}.t VALUES (1, 10), (2, 20)")
    cdc = Deployment(tmp_path)
    old, new = cdc.old, ROOT
    url = f"mariadb://{USER}@127.0.0.1:{mariadb11.port}"
    cdc(old, "init", url, "--target", str(cdc.folder / "lake"), "--tables", rf"{db}\..*", "--name", "shop")
    cdc(old, "capture", "shop", "--until-current")
    cdc(old, "snapshot", "shop")
    cdc(old, "apply", "shop", "--until-empty")

    # A capture is running, and a batch is outstanding.
    mariadb11.execute(f"UPDATE {db}.t SET v = 11 WHERE id = 1")
    cdc(old, "capture", "shop", "--until-current")
    cdc(old, "batch", "get", "shop")
    running = cdc.capture(old)
    try:
        mariadb11.execute(f"INSERT INTO {db}.t VALUES (3, 30)")
        wait_for_transactions(cdc, old, 2)
    finally:
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0

    mariadb11.execute(f"INSERT INTO {db}.t VALUES (4, 40)")
    for root in (new, old, new):
        if root is old and cdc.is_refused(old):
            continue
        cdc(root, "capture", "shop", "--until-current")
        cdc(root, "apply", "shop", "--until-empty")
        with mariadb11.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT id, v FROM {db}.t ORDER BY id")
            assert cdc.rows(db) == list(cursor.fetchall())
        mariadb11.execute(f"INSERT INTO {db}.t SELECT MAX(id) + 1, 50 FROM {db}.t", f"UPDATE {db}.t SET v = v + 1")
    cdc(new, "capture", "shop", "--until-current")
    cdc(new, "apply", "shop", "--until-empty")
    cdc(new, "verify", "shop")
