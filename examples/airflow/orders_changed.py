"""A consumer of changes: a run for each run of Towpath that has changed the Delta table ``shop.orders``.

Nothing of Towpath is needed to be started by a change: the schedule is the table's own address. The task reads what the
events say.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, Asset, task

ORDERS = Asset("file:///srv/lake/shop/orders")

with DAG("orders_changed", schedule=[ORDERS], start_date=datetime(2026, 1, 1, tzinfo=UTC), tags=["example"]):

    @task
    def report(**context: Any) -> list[dict[str, Any]]:
        """Returns what has changed. Events that came while Airflow was busy start one run together."""
        from cdc.airflow import TableChange

        return [
            {"version": change.delta_version, "rows": change.rows, "schema_changed": change.schema_changed}
            for change in TableChange.of(context, ORDERS)
        ]

    report()
