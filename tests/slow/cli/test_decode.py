"""``cdc decode`` as a process, whose reader goes away or whose output is full."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.support.unit_decode import typed

MYSQL9 = str(typed("mysql9").path)


def test_a_reader_that_has_seen_enough(tmp_path: Path) -> None:
    script = "import sys; from cdc.cli.main import main; sys.exit(main(sys.argv[1:]))"
    many = [MYSQL9] * 300
    command = [sys.executable, "-c", script, "decode", *many]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert json.loads(process.stdout.readline())["_op"] == "insert"
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()
        assert process.wait(60) == 0


def test_a_full_device() -> None:
    script = "import sys; from cdc.cli.main import main; sys.exit(main(sys.argv[1:]))"
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", script, "decode", MYSQL9],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert "standard output: cannot be written: No space left on device" in done.stderr
