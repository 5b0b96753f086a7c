"""A consumer of complete hours: one run for each hour of the table ``shop.orders``, with exactly that hour's changes.

It needs ``airflow: {interval: hour}`` in ``conf/shop.yaml``, and ``$CDC_CONF`` on the worker. The schedule is Airflow's:
a run begins when the DAG ``intervals_shop`` has published an hour of the table.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, PartitionedAssetTimetable, task

from cdc.airflow import TableInterval, table_asset

TABLE = "shop.orders"
ORDERS = table_asset("shop", TABLE)

with DAG(
    "orders_hourly",
    schedule=PartitionedAssetTimetable(assets=ORDERS),
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    tags=["example"],
):

    @task
    def report(**context: Any) -> dict[str, Any]:
        """Counts what happened in the hour, and the rows at its end. Clearing the task reads the same hour again."""
        import cdc
        from cdc.config import as_config
        from cdc.lake.runtime import session

        interval = TableInterval.of(context, ORDERS)
        config = as_config("shop")
        spark = session.acquire(config.spark).spark
        changes = cdc.read_changes(spark, config, TABLE, **interval.seqs)
        at_end = cdc.read_as_of(spark, config, seq=interval.last_seq, tables=[TABLE])[TABLE]
        return {
            "hour": interval.start.isoformat(),
            "changes": {row["_op"]: row["count"] for row in changes.groupBy("_op").count().collect()},
            "rows": at_end.count(),
            "version": interval.delta_version,
        }

    report()
