"""`cdc remove --dags`: Airflow forgets the DAGs of a destination, by its own program and in a real database."""

from __future__ import annotations

import pytest

from cdc.airflow.factory import build_dags
from cdc.config import DAG_KINDS
from cdc.lifecycle.removal import dags
from tests.dags.conftest import Write


def test_the_ids_are_those_of_the_dags(write_conf: Write) -> None:
    dag_ids = build_dags(write_conf()).keys()
    assert dag_ids <= set(dags.dag_ids("shop"))
    assert {dag_id.partition("_")[0] for dag_id in dag_ids} <= set(DAG_KINDS)


@pytest.mark.long
@pytest.mark.usefixtures("airflow_database")
def test_airflow_forgets_a_dag(write_conf: Write) -> None:
    from airflow.models import DagModel
    from airflow.models.dagbundle import DagBundleModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        session.merge(DagBundleModel(name="removed"))
        session.flush()
        session.merge(DagModel(dag_id="apply_shop", bundle_name="removed", fileloc="x.py"))  # type: ignore[no-untyped-call]
    assert dags.forget(dags.program(), "apply_shop")
    with create_session() as session:
        assert session.scalar(select(DagModel).where(DagModel.dag_id == "apply_shop")) is None
    assert not dags.forget(dags.program(), "apply_shop")
