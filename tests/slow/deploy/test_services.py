"""The files of ``deploy/`` for capture as a service: the unit in systemd's own check, the manifests against the schemas
of Kubernetes, the chart rendered by Helm."""

from __future__ import annotations

import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from cdc.config import DestinationConfig, load

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
CHART = DEPLOY / "helm" / "towpath"
KUBERNETES = "1.33"


each_unit = pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)


def parsed(unit: Path) -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(unit)
    return parser


@each_unit
def test_systemd_accepts_the_unit(unit: Path, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("cdc")
    assert program.exists()
    text = unit.read_text(encoding="utf-8").replace("/opt/towpath/bin/cdc", str(program))
    copy = tmp_path / unit.name
    copy.write_text(text, encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@each_unit
def test_the_unit_is_hardened(unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@each_unit
def test_the_unit_starts_what_the_command_line_has(unit: Path) -> None:
    """The unit is not started again when that cannot help."""
    service = parsed(unit)["Service"]
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
    port = next(entry["containerPort"] for entry in container["ports"] if entry["name"] == "metrics")
    assert config.metrics.port == port
    mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
    assert "/conf" in mounts
    assert str(config.store.path).startswith("/data/")
    assert str(config.meta.path).startswith("/data/")
    assert container["command"][-2:] == ["capture", name]
    assert kinds["StatefulSet"]["spec"]["replicas"] == 1
    selector = kinds["StatefulSet"]["spec"]["selector"]["matchLabels"]
    assert selector.items() <= pod["metadata"]["labels"].items()
    assert kinds["Service"]["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert kinds["StatefulSet"]["spec"]["serviceName"] == kinds["Service"]["metadata"]["name"]
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in kinds["StatefulSet"]["spec"]["volumeClaimTemplates"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_the_manifest(tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "capture.yaml").read_text(encoding="utf-8")))
    for document in documents:
        require_valid(document)
    require_whole(documents, "shop", tmp_path)
    documents[-1]["spec"]["replica"] = 1
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        require_valid(documents[-1])


def test_the_pod_of_airflow() -> None:
    """Airflow's KubernetesExecutor appends the command line of a task to the container ``base``."""
    pod = yaml.safe_load((DEPLOY / "airflow" / "worker-pod.yaml").read_text(encoding="utf-8"))
    require_valid(pod)
    (container,) = pod["spec"]["containers"]
    assert (pod["kind"], pod["spec"]["restartPolicy"], container["name"]) == ("Pod", "Never", "base")
    image = (DEPLOY / "container" / "Containerfile").read_text(encoding="utf-8")
    assert 'ENTRYPOINT ["tini", "--", "cdc"]' in image
    assert container["command"] == ["tini", "--"], "else Python's command line would be one of cdc"
    assert f"--uid {pod['spec']['securityContext']['runAsUser']} " in image
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod["spec"]["volumes"]}
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert environment["CDC_CONF"] == mounts["conf"]
    assert environment["AIRFLOW__CORE__DAGS_FOLDER"] == mounts["dags"]


# --- Helm, built from its source: minutes, once


@pytest.fixture(scope="session")
def helm() -> str:
    done = subprocess.run([ROOT / "scripts" / "need-helm.sh"], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


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
    names = sorted({document["metadata"]["name"] for document in documents})
    assert names == ["cdc-book-shop-2", "cdc-shop"]
    for name, resource_name in (("shop", "cdc-shop"), ("Book_shop.2", "cdc-book-shop-2")):
        require_whole(
            [document for document in documents if document["metadata"]["name"] == resource_name], name, tmp_path
        )


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


# --- The chart with a server, and with what Prometheus and the cluster's administrator ask for

SERVED = {
    "destinations": {
        name: {**config, "store": {"path": f"/data/{name}/store", "stage": "s3://bucket/stage"}}
        for name, config in VALUES["destinations"].items()  # type: ignore[attr-defined]
    },
    "server": {"enabled": True},
    "apply": {"enabled": True},
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "podDisruptionBudget": {"enabled": True},
}


def rendered(helm: str, values: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    done = render(helm, values, folder)
    assert done.returncode == 0, done.stderr
    documents = list(yaml.safe_load_all(done.stdout))
    for document in documents:
        if document["kind"] != "ServiceMonitor":  # not one of Kubernetes itself
            require_valid(document)
    return documents


def configurations(document: dict[str, Any], folder: Path) -> dict[str, DestinationConfig]:
    """Returns the configurations in a ConfigMap, as Towpath loads them."""
    for name, text in document["data"].items():
        (folder / name).write_text(text, encoding="utf-8")
    return {Path(name).stem: load(folder / name) for name in document["data"]}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_chart_with_a_server(helm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOWPATH_APPLY_TOKEN", "f" * 64)
    documents = rendered(helm, SERVED, tmp_path)
    by_name = {(document["kind"], document["metadata"]["name"]): document for document in documents}
    assert len(by_name) == len(documents) == 9
    server = by_name["StatefulSet", "cdc-server"]
    (container,) = server["spec"]["template"]["spec"]["containers"]
    (port,) = container["ports"]
    served = configurations(by_name["ConfigMap", "cdc-server"], tmp_path)
    assert set(served) == {"shop", "Book_shop.2"}
    for config in served.values():
        assert (config.server.http, config.server.capture) == (port["containerPort"], "always")
        mounts = [mount["mountPath"] for mount in container["volumeMounts"]]
        assert config.server.certificate is not None and str(config.server.certificate.parent) in mounts
    for name, job in (("shop", "cdc-shop-apply"), ("Book_shop.2", "cdc-book-shop-2-apply")):
        config = configurations(by_name["ConfigMap", job], tmp_path)[name]
        assert config.store.url == f"https://cdc-server.default.svc:{port['containerPort']}"
        assert config.store.stage == served[name].store.stage
        pod = by_name["CronJob", job]["spec"]["jobTemplate"]["spec"]["template"]["spec"]
        assert [started["command"][-2:] for started in pod["initContainers"] + pod["containers"]] == [
            ["snapshot", name],
            ["apply", name],
        ]
        assert pod["hostname"] == job, "each run is the same owner of batches"
    (monitor,) = [document for document in documents if document["kind"] == "ServiceMonitor"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    labels = by_name["Service", "cdc-server"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"apply": {"enabled": True}}, "apply.enabled needs server.enabled"),
        ({"replicas": 2}, "replicas"),
        ({"destinations": {"shop": {"source": {"url": "x"}}}}, "missing properties"),
        ({"storage": {"accessMode": "Many"}}, "accessMode"),
    ],
)
def test_values_that_cannot_work_are_refused(helm: str, tmp_path: Path, values: dict[str, Any], message: str) -> None:
    done = render(helm, {**VALUES, **values}, tmp_path)
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_captures_are_watched_as_well(helm: str, tmp_path: Path) -> None:
    values = {**SERVED, "server": {"enabled": False}, "apply": {"enabled": False}}
    kinds = [document["kind"] for document in rendered(helm, values, tmp_path)]
    assert sorted(kinds) == sorted(2 * ["ConfigMap", "PodDisruptionBudget", "Service", "ServiceMonitor", "StatefulSet"])
