"""What Airflow remembers of a destination's DAGs: runs, task instances, logs' records.

Airflow's own program removes them. Without its DAG file a DAG does not come back, so the configuration is taken aside
before.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from cdc.base.errors import ConfigError, RetryableError
from cdc.config import DAG_KINDS

_LIMIT_S = 300
_MISSING = "DagNotFound"
"""The name of Airflow's error for a DAG that it does not know, in what it prints."""


def dag_ids(destination: str) -> list[str]:
    return [f"{kind}_{destination}" for kind in DAG_KINDS]


def command(dag_id: str) -> str:
    """Returns the command by which Airflow forgets a DAG."""
    return f"airflow dags delete --yes {shlex.quote(dag_id)}"


def program() -> str:
    """Returns the program ``airflow`` beside this Python, else that of the path. Raises ConfigError."""
    beside = Path(sys.executable).with_name("airflow")
    airflow = str(beside) if beside.is_file() else shutil.which("airflow")
    if airflow is None:
        raise ConfigError(
            "there is no program `airflow` here",
            place="--dags",
            remedy="Leave out --dags, and run the printed commands where Airflow is installed.",
        )
    return airflow


def forget(airflow: str, dag_id: str) -> bool:
    """Lets Airflow forget a DAG. Returns False if it does not know the DAG. Raises RetryableError with Airflow's own
    message: the DAG has running tasks, or its database is away."""
    line = [airflow, "dags", "delete", "--yes", dag_id]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=_LIMIT_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RetryableError(f"cannot be run: {error}", place=command(dag_id)) from error
    if done.returncode == 0:
        return True
    text = f"{done.stdout}\n{done.stderr}"
    if _MISSING in text:
        return False
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raise RetryableError(
        f"failed with exit code {done.returncode}: {lines[-1][:300] if lines else 'it printed nothing'}",
        place=command(dag_id),
        remedy="Wait until its tasks have ended, or stop them, and run `cdc remove` again.",
    )
