"""What ``deploy/`` has for capture as a service: the unit in systemd's own check, the manifests against the schemas of
Kubernetes, the chart rendered by Helm."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from cdc.config import load

DEPLOY = Path(__file__).parents[3] / "deploy"
UNIT = DEPLOY / "systemd" / "towpath-capture@.service"
CHART = DEPLOY / "helm" / "towpath-capture"
KUBERNETES = "1.33"
HELM = "helm.sh/helm/v3/cmd/helm@v3.19.0"


def unit() -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(UNIT)
    return parser


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("cdc")
    assert program.exists()
    text = UNIT.read_text(encoding="utf-8").replace("/opt/towpath/bin/cdc", str(program))
    copy = tmp_path / UNIT.name
    copy.write_text(text, encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_unit_is_hardened() -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(UNIT)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_the_unit_starts_what_the_command_line_has() -> None:
    """And is not started again when that cannot help."""
    service = unit()["Service"]
    words = service["ExecStart"].split()[1:]
    done = subprocess.run(
        [sys.executable, "-m", "cdc", *["/nowhere" if word.startswith("/srv") else word for word in words]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, "its configuration is missing"
    assert "Usage" not in done.stderr
    assert "/nowhere" in done.stderr
    assert service["RestartPreventExitStatus"] == "2"
    assert service["Restart"] == "on-failure"


def require_valid(document: dict[str, Any]) -> None:
    """Raises what the schemas of Kubernetes do not allow, unknown keys included."""
    kubernetes_validate.validate(document, KUBERNETES, strict=True)


def require_whole(documents: list[dict[str, Any]], name: str, folder: Path) -> None:
    """Requires that the pod gets its configuration, that the configuration is one, and that the probes reach it."""
    kinds = {document["kind"]: document for document in documents}
    pod = kinds["StatefulSet"]["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    file = folder / f"{name}.yaml"
    file.write_text(kinds["ConfigMap"]["data"][file.name], encoding="utf-8")
    config = load(file)
    port = next(one["containerPort"] for one in container["ports"] if one["name"] == "metrics")
    assert config.metrics.port == port
    mounts = [one["mountPath"] for one in container["volumeMounts"]]
    assert "/conf" in mounts
    assert str(config.store.path).startswith("/data/")
    assert str(config.meta.path).startswith("/data/")
    assert container["command"][-2:] == ["capture", name]
    assert kinds["StatefulSet"]["spec"]["replicas"] == 1
    selector = kinds["StatefulSet"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= pod["metadata"]["labels"].items()
    assert kinds["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert kinds["StatefulSet"]["spec"]["serviceName"] == kinds["Service"]["metadata"]["name"]
    volumes = {one["name"] for one in pod["spec"]["volumes"]}
    volumes |= {one["metadata"]["name"] for one in kinds["StatefulSet"]["spec"]["volumeClaimTemplates"]}
    assert {one["name"] for one in container["volumeMounts"]} == volumes


def test_the_manifest(tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "capture.yaml").read_text(encoding="utf-8")))
    for document in documents:
        require_valid(document)
    require_whole(documents, "shop", tmp_path)
    documents[-1]["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        require_valid(documents[-1])


# --- Helm, built from its source: minutes, once


@pytest.fixture(scope="session")
def helm() -> str:
    folder = Path.home() / ".cache" / "towpath" / "helm"
    program = folder / "helm"
    if not program.exists():
        assert shutil.which("go"), "this test builds Helm with Go"
        environment = {**os.environ, "GOBIN": str(folder)}
        subprocess.run(["go", "install", HELM], env=environment, check=True, capture_output=True)
    return str(program)


VALUES = {
    "destinations": {
        name: {
            "source": {
                "url": "mysql://cdc@db.example:3306",
                "password_env": "CDC_SOURCE_PASSWORD",
                "server_id": number,
            },
            "tables": {"include": [f"{name}\\..*"]},
            "store": {"path": f"/data/{name}/store"},
            "meta": {"path": f"/data/{name}/meta"},
            "apply": {"target": "s3a://lake/shop"},
            "metrics": {"port": 9102},
        }
        for number, name in enumerate(["shop", "Book_shop.2"], start=1)
    },
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"disk": "fast"},
    "storage": {"className": "local"},
}


def render(helm: str, values: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    return subprocess.run(
        [helm, "template", "cdc", str(CHART), "--kube-version", KUBERNETES, "--values", str(file)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_chart(helm: str, tmp_path: Path) -> None:
    subprocess.run([helm, "lint", "--strict", str(CHART)], check=True, capture_output=True)
    done = render(helm, VALUES, tmp_path)
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    assert len(documents) == 6
    for document in documents:
        require_valid(document)
    names = sorted({one["metadata"]["name"] for one in documents})
    assert names == ["cdc-book-shop-2", "cdc-shop"]
    for name, of in (("shop", "cdc-shop"), ("Book_shop.2", "cdc-book-shop-2")):
        require_whole([one for one in documents if one["metadata"]["name"] == of], name, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_chart_whose_probes_would_ask_nobody_is_refused(helm: str, tmp_path: Path) -> None:
    done = render(helm, {**VALUES, "metricsPort": 9200}, tmp_path)
    assert done.returncode != 0
    assert "metrics.port must be 9200, the metricsPort of this chart" in done.stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_chart_without_destinations_makes_nothing(helm: str, tmp_path: Path) -> None:
    done = render(helm, {}, tmp_path)
    assert (done.returncode, list(yaml.safe_load_all(done.stdout))) == (0, [])
