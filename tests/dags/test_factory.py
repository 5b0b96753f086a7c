"""DAGs from configuration files."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from cdc.airflow import build_dags, check_configurations, conf_folder
from cdc.airflow.compat import has_partitions
from cdc.airflow.factory import ERROR_TAG
from cdc.base.errors import ConfigError
from tests.support.airflows import dag_bag

KINDS = ("apply", "backfill", "capture", "maintain", "snapshot", "verify")
DAGS = Path(__file__).resolve().parents[2] / "dags"
Write = Callable[..., Path]


@pytest.fixture
def parse(airflow_database: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], Any]:
    """The repository's DAG files, parsed by Airflow for a configuration folder."""

    def run(conf: Path) -> Any:
        monkeypatch.setenv("CDC_CONF", str(conf))
        return dag_bag(DAGS)

    return run


def test_dags_are_parsed_where_spark_is_not_installed(write_conf: Write) -> None:
    """Runs in a fresh interpreter: the machines of a DAG processor and of a scheduler need none."""
    program = (
        "import sys\n"
        "for name in ('pyspark', 'delta', 'py4j'):\n"
        "    sys.modules[name] = None\n"
        "from pathlib import Path\n"
        "from cdc.airflow import build_dags\n"
        "print(*build_dags(Path(sys.argv[1])))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(write_conf())], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "apply_shop" in done.stdout.split()


def test_files_of_dags_load_no_library_of_arrays() -> None:
    """Airflow parses them every few seconds in a process of its own."""
    heavy = ("numpy", "pyarrow", "pandas", "deltalake", "pyspark")
    program = f"import sys, cdc.airflow.factory\nprint([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.rule("canal-server-23")
def test_the_dags_of_a_configuration_file(parse: Callable[[Path], Any], write_conf: Write) -> None:
    write_conf("shop")
    bag = parse(write_conf("books"))
    assert bag.import_errors == {}
    assert sorted(bag.dags) == [f"{kind}_{name}" for kind in KINDS for name in ("books", "shop")]


def test_a_store_of_a_server_is_not_captured_here(write_conf: Write) -> None:
    """Its other DAGs are there, and parsing the file does not ask the server."""
    file = write_conf() / "shop.yaml"
    document = yaml.safe_load(file.read_text())
    del document["meta"]
    document["store"] = {"kind": "server", "url": "https://store.invalid:8040", "token_env": "NO_SUCH_TOKEN"}
    file.write_text(yaml.safe_dump(document))
    assert sorted(build_dags(file.parent)) == [f"{kind}_shop" for kind in KINDS if kind != "capture"]


def test_the_shape_of_the_apply_dag(write_conf: Write) -> None:
    dag = build_dags(write_conf())["apply_shop"]
    assert dag.get_task("fetch").downstream_task_ids == {"merge"}
    assert dag.get_task("merge").downstream_task_ids == {"finalize"}
    assert dag.schedule == timedelta(seconds=5)
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    assert dag.get_task("finalize").trigger_rule == "all_done"


@pytest.mark.skipif(not has_partitions(), reason="the intervals DAG needs Airflow 3.3")
def test_the_list_of_dags_names_the_destination_first_and_the_schedule_in_words(write_conf: Write) -> None:
    text = (write_conf() / "shop.yaml").read_text()
    times = "apply_every: '*/10 6-22 * * *', timezone: Europe/Berlin, start: data, verify_every: 1d, interval: hour"
    dags = build_dags(write_conf(text=text.replace("apply_every: 5s", times)))
    assert {dag.dag_display_name for dag in dags.values()} == {f"shop: {kind}" for kind in (*KINDS, "intervals")}
    schedules = {kind: str(dags[f"{kind}_shop"].description).partition(" Runs ")[2] for kind in (*KINDS, "intervals")}
    assert schedules == {
        "apply": "when the store has got changes, and at */10 6-22 * * * (Europe/Berlin).",
        "backfill": "",
        "capture": "all the time.",
        "intervals": "at the end of each hour.",
        "maintain": "every 1 d.",
        "snapshot": "every 1 min.",
        "verify": "every 1 d.",
    }
    assert dags["intervals_shop"].timetable.summary == "Every hour"  # type: ignore[union-attr]


def test_the_shape_of_the_capture_dag(write_conf: Write) -> None:
    dag = build_dags(write_conf())["capture_shop"]
    assert str(dag.schedule) == "@continuous"
    assert (dag.max_active_runs, dag.catchup) == (1, False)
    assert dag.get_task("capture").execution_timeout is None
    assert getattr(dag.get_task("capture"), "capture_for_s") == 30  # noqa: B009 - an attribute of our operator


def test_a_broken_file_hides_nobody_else(parse: Callable[[Path], Any], write_conf: Write) -> None:
    write_conf("shop")
    bag = parse(write_conf("wrong", text="sauce: {}\n"))
    assert sorted(bag.dags) == [f"{kind}_{name}" for kind in KINDS for name in ("shop", "wrong")]
    assert ERROR_TAG not in bag.dags["apply_shop"].tags
    assert ERROR_TAG in bag.dags["apply_wrong"].tags
    assert "sauce: unknown key" in bag.dags["apply_wrong"].doc_md
    assert "sauce: unknown key" in bag.dags["apply_wrong"].description
    assert (
        bag.dags["apply_shop"].description
        == "Merges the changes of shop into the Delta tables, then acks or rolls back. Runs every 5 s."
    )
    ((place, error),) = bag.import_errors.items()
    assert Path(place).name == "configuration.py", "an import error in another file would take that file's DAGs away"
    assert "wrong.yaml" in error
    assert "sauce: unknown key" in error


def test_a_broken_file_fails_its_runs_with_the_sentence(
    write_conf: Write, run_dag: Callable[[Any], dict[str, str | None]], caplog: pytest.LogCaptureFixture
) -> None:
    states = run_dag(build_dags(write_conf("wrong", text="sauce: {}\n"))["apply_wrong"])
    assert states == {"run": "failed", "fetch": "failed", "merge": "upstream_failed", "finalize": "failed"}


def test_a_running_task_parses_its_own_dag_only(write_conf: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    write_conf("books")
    folder = write_conf("shop")
    monkeypatch.setitem(os.environ, "_AIRFLOW_PARSING_CONTEXT_DAG_ID", "apply_shop")
    assert list(build_dags(folder)) == ["apply_shop"]


def test_the_example_configuration(parse: Callable[[Path], Any]) -> None:
    bag = parse(DAGS.parent / "examples")
    assert (sorted(bag.dags), bag.import_errors) == ([f"{kind}_shop" for kind in KINDS], {})


def test_no_folder_no_dags(parse: Callable[[Path], Any], tmp_path: Path) -> None:
    bag = parse(tmp_path / "nowhere")
    assert (bag.dags, bag.import_errors) == ({}, {})


def test_a_name_that_no_dag_can_have_is_reported(write_conf: Write) -> None:
    folder = write_conf("my shop")
    assert build_dags(folder) == {}
    with pytest.raises(ConfigError, match=r"my shop\.yaml: the name cannot be part of a DAG's id"):
        check_configurations(folder)


def test_the_configuration_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CDC_CONF", raising=False)
    assert conf_folder(str(tmp_path / "dags" / "apply.py")) == tmp_path / "conf"
    monkeypatch.setenv("CDC_CONF", str(tmp_path / "other"))
    assert conf_folder(str(tmp_path / "dags" / "apply.py")) == tmp_path / "other"


def test_the_folder_keeps_its_name_when_a_sync_swaps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CDC_CONF", raising=False)
    for release in ("a", "b"):
        (tmp_path / release / "dags").mkdir(parents=True)
        link = tmp_path / "repository.new"
        link.symlink_to(tmp_path / release)
        link.replace(tmp_path / "repository")
        folder = conf_folder(str(tmp_path / "repository" / "dags" / "apply.py"))
        assert folder == tmp_path / "repository" / "conf"


def test_data_among_the_files_of_bundles_is_refused(
    tmp_path: Path, write_conf: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_conf()
    (folder / "apart.yaml").write_text(
        (folder / "shop.yaml").read_text().replace("./data/shop/meta", "/srv/meta").replace("./data/shop", "/srv/shop")
    )
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH", str(tmp_path))
    dags = build_dags(folder, ["apply"])
    for name, key in (("shop", "store.path"), ("apart", "apply.target")):
        dag = dags[f"apply_{name}"]
        assert ERROR_TAG in dag.tags
        assert f"{name}.yaml: {key}: " in str(dag.description)
    (folder / "apart.yaml").write_text((folder / "apart.yaml").read_text().replace("./lake", "s3://bucket/lake"))
    assert ERROR_TAG not in build_dags(folder, ["apply"])["apply_apart"].tags
