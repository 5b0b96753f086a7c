"""Airflow finds the package by its entry point, in a process that has not imported Airflow yet."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path


def test_airflow_starts_with_the_package_installed(tmp_path: Path) -> None:
    environment = {**os.environ, "AIRFLOW_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "airflow", "providers", "list", "--output", "plain"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    installed = [p for p in entry_points(group="apache_airflow_provider") if p.module == "cdc.airflow.provider"]
    assert ("towpath" in done.stdout) == bool(installed)


def test_provider_info_needs_no_airflow() -> None:
    code = "import cdc.airflow.provider as p, sys; p.get_provider_info(); assert 'airflow' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
