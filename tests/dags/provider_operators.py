"""Operators of other providers as the task that merges elsewhere. Their hooks are doubles, as in the providers' own
tests: no job is submitted.

`make test-airflows` runs this file on the newest Airflow, since these providers are not among the locked packages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from airflow.providers.amazon.aws.operators.emr import EmrServerlessStartJobOperator
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.cncf.kubernetes.operators.spark_kubernetes import SparkKubernetesOperator
from airflow.providers.databricks.operators.databricks import DatabricksSubmitRunOperator
from airflow.providers.google.cloud.operators.dataproc import DataprocSubmitJobOperator
from airflow.sdk import DAG, BaseOperator

from cdc.airflow import TowpathApplyTaskGroup
from cdc.config import load
from cdc.testing.pipeline import FakePipeline

States = dict[str, str | None]
PROGRAM = "/srv/towpath/spark_jobs/apply.py"
OPERATORS: dict[str, Callable[[str, list[str]], BaseOperator]] = {
    "spark": lambda task_id, arguments: SparkSubmitOperator(
        task_id=task_id, application=PROGRAM, application_args=arguments
    ),
    "databricks": lambda task_id, arguments: DatabricksSubmitRunOperator(
        task_id=task_id,
        json={"existing_cluster_id": "c", "spark_python_task": {"python_file": PROGRAM, "parameters": arguments}},
    ),
    "emr": lambda task_id, arguments: EmrServerlessStartJobOperator(
        task_id=task_id,
        application_id="a",
        execution_role_arn="r",
        job_driver={"sparkSubmit": {"entryPoint": PROGRAM, "entryPointArguments": arguments}},
    ),
    "dataproc": lambda task_id, arguments: DataprocSubmitJobOperator(
        task_id=task_id,
        project_id="p",
        region="r",
        job={"placement": {"cluster_name": "c"}, "pyspark_job": {"main_python_file_uri": PROGRAM, "args": arguments}},
    ),
    "kubernetes": lambda task_id, arguments: SparkKubernetesOperator(
        task_id=task_id,
        namespace="n",
        template_spec={"spark": {"spec": {"mainApplicationFile": f"local://{PROGRAM}", "arguments": arguments}}},
    ),
}


@pytest.fixture(autouse=True)
def doubles(pipeline: FakePipeline, write_conf: Callable[..., Path]) -> Iterator[dict[str, mock.Mock]]:
    """The hooks' methods that submit a job. A submitted job has acked."""
    config = load(write_conf() / "shop.yaml")

    def submit(*_: Any, **__: Any) -> Any:
        lease = pipeline.fetch(config, "airflow:own.apply")
        assert lease is not None
        pipeline.finalize(config, lease, True, [])
        return mock.DEFAULT

    emr, dataproc = mock.MagicMock(), mock.MagicMock()
    emr.return_value.conn.get_application.return_value = {"application": {"state": "STARTED"}}
    started = {"ResponseMetadata": {"HTTPStatusCode": 200}, "jobRunId": "j"}
    emr.return_value.conn.start_job_run.return_value = started
    databricks = mock.MagicMock()
    databricks.return_value.submit_run.return_value = 1
    ended = {"life_cycle_state": "TERMINATED", "result_state": "SUCCESS", "state_message": ""}
    databricks.return_value.get_run.return_value = {"state": ended}
    databricks.return_value.get_run_page_url.return_value = "https://databricks.example/run"
    spark = mock.MagicMock()
    spark.return_value._should_track_driver_status = spark.return_value._is_yarn_cluster_mode = False
    spark.return_value._should_track_driver_via_k8s_api.return_value = False
    dataproc.return_value.submit_job.return_value.reference.job_id = "j"
    launched = mock.MagicMock()
    submits = {
        "spark": spark.return_value.submit,
        "databricks": databricks.return_value.submit_run,
        "emr": emr.return_value.conn.start_job_run,
        "dataproc": dataproc.return_value.submit_job,
        "kubernetes": launched,
    }
    for method in submits.values():
        method.side_effect = submit
    with (
        mock.patch.object(SparkSubmitOperator, "_get_hook", spark),
        mock.patch("airflow.providers.databricks.operators.databricks.DatabricksHook", databricks),
        mock.patch("airflow.providers.amazon.aws.operators.emr.EmrServerlessHook", emr),
        mock.patch.object(EmrServerlessStartJobOperator, "hook", emr.return_value),
        mock.patch("airflow.providers.google.cloud.operators.dataproc.DataprocHook", dataproc),
        mock.patch.object(SparkKubernetesOperator, "execute", lambda self, context: launched(self.template_spec)),
    ):
        yield submits


@pytest.mark.parametrize("name", OPERATORS)
def test_the_job_gets_its_arguments(
    name: str,
    run_dag: Callable[..., States],
    pipeline: FakePipeline,
    doubles: dict[str, mock.Mock],
    write_conf: Callable[..., Path],
) -> None:
    seen: list[Any] = []
    with DAG("own", schedule=None, max_active_runs=1, default_args={"retries": 0}) as dag:
        group = TowpathApplyTaskGroup(conf_file=str(write_conf() / "shop.yaml"), merge=OPERATORS[name])
    group.merge.pre_execute = lambda context: seen.append(dict(vars(context["task"])))  # type: ignore[method-assign]
    states = run_dag(dag)
    assert set(states.values()) == {"success"}, states
    assert doubles[name].call_count == 1 and pipeline.acked == [1]
    rendered = str(doubles[name].call_args) + str(seen)
    for word in ("'--owner', 'airflow:own.apply'", "'--until', 'none'", "'--airflow-run', 'own'", "'apply.merge', '1'"):
        assert word in rendered, word
    assert "{{" not in str(doubles[name].call_args)
