"""``cdc capture`` ends soon after SIGTERM, whatever it is doing: also while it compiles its kernels for the first time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cdc.testing.servers import PASSWORD, Server
from tests.support.canal_shop import capture, write_shop
from tests.support.kernel_packages import installed

MOST_S = 10.0


def test_a_capture_loads_its_kernels_before_it_reads(
    mysql9: Server, database: Callable[[Server], str], tmp_path: Path
) -> None:
    """No kernel is loaded, or compiled, once SIGTERM waits for what was begun."""
    name = database(mysql9)
    file = write_shop(tmp_path, mysql9, name)
    capture(file)
    mysql9.execute(f"CREATE TABLE {name}.t (id INT PRIMARY KEY)", f"INSERT INTO {name}.t VALUES (1)")
    code = (
        "import sys; from pathlib import Path; from cdc.binlog import framer; from cdc.capture import Capture, loop\n"
        "from cdc.config import load\n"
        "def loaded(): return [len(one.signatures) for one in (framer.frame, framer.add_table)]\n"
        "def warm_up(): framer.warm_up(); print(loaded())\n"
        "loop.warm_up = warm_up\n"
        "done = Capture(load(Path(sys.argv[1]))).run(until_current=True)\n"
        "print(loaded(), done.transactions)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["[1, 1]", "[1, 1] 2"], done.stderr


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_capture_that_compiles_its_kernels(
    mysql9: Server, database: Callable[[Server], str], tmp_path: Path, number: signal.Signals
) -> None:
    file = write_shop(tmp_path, mysql9, database(mysql9))
    cache = tmp_path / "kernels"  # empty, beside a package without built kernels: everything is compiled
    package = installed(tmp_path / "package")
    log = tmp_path / "log"
    process = subprocess.Popen(
        [sys.executable, "-m", "cdc", "--conf-dir", str(file.parent), "capture", "shop"],
        stderr=log.open("wb"),
        cwd=package,
        env={
            **os.environ,
            "TOWPATH_TEST_PASSWORD": PASSWORD,
            "NUMBA_CACHE_DIR": str(cache),
            "PYTHONPATH": str(package),
        },
    )
    try:
        # It looks at the source before it compiles.
        wait_for(lambda: "no table matches" in log.read_text(), process)
        maps = Path(f"/proc/{process.pid}/maps")
        wait_for(lambda: "/numba/_dispatcher" in maps.read_text(), process)
        time.sleep(1.0)
        process.send_signal(number)
        begin = time.monotonic()
        process.wait(MOST_S)
        print(f"it ended after {time.monotonic() - begin:.2f} s")
    finally:
        process.kill()
        process.wait(30)
    assert log.read_text().endswith("cdc: Stopped.\n")
    assert process.returncode == 1
    assert not list(cache.rglob("*.kernel")), "it was compiling"
