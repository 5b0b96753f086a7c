"""``cdc deploy``: prints the files for Airflow, systemd, containers, Kubernetes and Prometheus that the pages name."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import cdc
from cdc.base.errors import ConfigError, UsageError
from cdc.cli.common import say


class DeployKind(StrEnum):
    dags = "dags"
    airflow_pod = "airflow-pod"
    systemd = "systemd"
    container = "container"
    compose = "compose"
    kubernetes = "kubernetes"
    helm = "helm"
    prometheus = "prometheus"
    grafana = "grafana"


PLACES = {
    DeployKind.dags: ("dags",),
    DeployKind.airflow_pod: ("deploy/airflow/worker-pod.yaml",),
    DeployKind.systemd: ("deploy/systemd",),
    DeployKind.container: ("deploy/container/Containerfile",),
    DeployKind.compose: ("deploy/container/compose.yaml",),
    DeployKind.kubernetes: ("deploy/kubernetes",),
    DeployKind.helm: ("deploy/helm",),
    DeployKind.prometheus: ("deploy/prometheus.yml", "deploy/alerts.yml"),
    DeployKind.grafana: ("deploy/grafana-dashboard.json",),
}
"""Files and folders of each kind, from the root of a checkout."""
deploy = typer.Typer(
    no_args_is_help=True, help="Get the files for Airflow, systemd, containers, Kubernetes and Prometheus."
)


@deploy.callback()
def make_group() -> None:  # makes a group of the one command
    pass


@deploy.command("print")
def print_files(
    kind: Annotated[
        DeployKind,
        typer.Argument(metavar="KIND", help=f"What the files are for: {', '.join(DeployKind)}.", show_default=False),
    ],
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write the files into this folder. A file that is there with another content is an error.",
            show_default="standard output",
        ),
    ] = None,
) -> None:
    """Print files for a deployment, as they are in this version. Adapt addresses, paths and sizes.

    Several files are printed one after the other, each below a line with its name; write them into a folder with --to.
    """
    contents = files(kind)
    if to is not None:
        _write(contents, to)
        return
    for name, content in contents.items():
        if len(contents) > 1:
            sys.stdout.write(f"# --- {name}\n")
        sys.stdout.write(content.decode())


def files(kind: DeployKind) -> dict[str, bytes]:
    """Returns the files of a kind by their relative paths. Raises ConfigError if this installation lacks them."""
    share = Path(cdc.__file__).with_name("share")  # in a wheel
    root = share if share.is_dir() else share.parents[1]
    contents = {}
    for place in PLACES[kind]:
        path = root / place
        if not path.exists():
            raise ConfigError(
                "the file does not exist, and the wheel has it",
                place=str(path),
                remedy="Install towpath from its wheel, or from a whole checkout.",
            )
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                contents[str(file.relative_to(path if path.is_dir() else path.parent))] = file.read_bytes()
    return contents


def _write(contents: dict[str, bytes], folder: Path) -> None:
    paths = {folder / name: content for name, content in contents.items()}
    changed = [str(path) for path, content in paths.items() if path.exists() and path.read_bytes() != content]
    if changed:
        raise UsageError(
            f"nothing was written, because these files have another content: {', '.join(changed)}",
            place="--to",
            remedy="Compare them with an empty folder, or remove them.",
        )
    for path, content in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        say(f"wrote {path}")
