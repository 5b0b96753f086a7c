"""Towpath as a user has it: the wheel alone in an empty environment, a folder of their own, and the DAGs that it prints.
Locked versions are installed, so nothing newer can break the test.

`make release` names the wheel (``TOWPATH_WHEEL``) and the Pythons (``TOWPATH_PYTHONS``). Without them the wheel of this
checkout is tried on this Python.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from hatchling.builders.wheel import WheelBuilder

from cdc.testing.servers import PASSWORD, USER, Server

ROOT = Path(__file__).parents[3]
PYTHONS = os.environ.get("TOWPATH_PYTHONS", sys.executable).split()


class Environment:
    """An environment with the wheel in it, and an empty folder to work in."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder / "work"
        self.folder.mkdir()
        self._bin = folder / "venv" / "bin"
        given = os.environ.get("TOWPATH_WHEEL")
        wheel = given or next(WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"]))
        run([python, "-m", "venv", "--without-pip", str(folder / "venv")], folder)
        locked = folder / "locked.txt"  # as constraints, hashes would ask for one of the wheel
        lines = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8").splitlines()
        locked.write_text("".join(f"{line.rstrip(chr(92)).strip()}\n" for line in lines if not line.startswith(" ")))
        uv = str(Path(sys.executable).with_name("uv"))
        install = [uv, "pip", "install", "-q", "--python", str(self._bin / "python"), "-c", str(locked)]
        run([*install, f"{wheel}[airflow,spark]"], folder)

    def __call__(self, program: str, *arguments: str) -> str:
        """Runs a program of the environment in the folder, and returns its output."""
        home = self.folder / "airflow"
        own = {
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "CDC_SOURCE_PASSWORD": PASSWORD,
            "CDC_CONF": str(self.folder / "conf"),
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.folder / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        }
        kept = {name: os.environ[name] for name in ("HOME", "JAVA_HOME", "TMPDIR", "LANG") if name in os.environ}
        return run([str(self._bin / program), *arguments], self.folder, own | kept)


def run(command: list[str], folder: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("python", PYTHONS)
def test_the_wheel_fills_a_table_through_a_dag(
    tmp_path: Path, mariadb11: Server, database: Callable[[Server], str], python: str
) -> None:
    db = database(mariadb11)
    mariadb11.execute(f"CREATE TABLE {db}.t (id INT PRIMARY KEY, v INT)", f"INSERT INTO {db}.t VALUES (1, 10), (2, 20)")
    env = Environment(tmp_path, python)
    for name in ("cdc", "spark_jobs", "conf", "dags"):  # folders of the user, with names of ours
        (env.folder / name).mkdir()
    url = f"mariadb://{USER}@127.0.0.1:{mariadb11.port}"
    env("cdc", "init", url, "--target", str(env.folder / "lake"), "--tables", rf"{db}\..*", "--name", "shop")
    env("cdc", "check", "shop")
    env("cdc", "capture", "shop", "--until-current")
    env("cdc", "snapshot", "shop")
    mariadb11.execute(
        f"UPDATE {db}.t SET v = 11 WHERE id = 1",
        f"ALTER TABLE {db}.t ADD COLUMN w VARCHAR(10)",
        f"INSERT INTO {db}.t VALUES (3, 30, 'three')",
    )
    env("cdc", "capture", "shop", "--until-current")

    env("cdc", "deploy", "print", "dags", "--to", "dags")
    env("airflow", "db", "migrate")
    env("airflow", "dags", "reserialize")
    listed = env("airflow", "dags", "list", "--output", "plain")
    kinds = {line.split()[0].removesuffix("_shop") for line in listed.splitlines() if "_shop" in line}
    assert kinds == {"apply", "backfill", "capture", "maintain", "snapshot", "verify"}
    env("airflow", "dags", "test", "apply_shop")

    rows = DeltaTable(str(env.folder / "lake" / db / "t")).to_pyarrow_table().to_pylist()
    values = sorted((row["id"], row["v"], row["w"]) for row in rows)
    assert values == [(1, 11, None), (2, 20, None), (3, 30, "three")]
    env("airflow", "dags", "test", "verify_shop")
    env("cdc", "verify", "shop")
