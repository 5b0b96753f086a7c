"""``batch``: where a batch ends, how long a run waits for one, and how long it is leased."""

from __future__ import annotations

from pydantic import Field

from cdc.config.values import DurationS, Section, WaitS, Whole


class BatchConfig(Section):
    """The limits of a batch: it ends at the first one that is reached. A transaction is never split, so one that
    exceeds a limit is a batch of its own."""

    max_bytes: Whole = Field(default=268435456, gt=0)
    """Limit of the size."""
    max_transactions: Whole | None = Field(default=None, gt=0)
    """Limit of transactions; null means no limit."""
    max_row_events: Whole | None = Field(default=None, gt=0)
    """Limit of row events; null means no limit. A row event holds one or more rows of a table."""
    max_wait_s: WaitS = 5.0
    """How long `cdc apply` and `cdc batch get` wait for a first transaction. A run of the apply DAG does not wait."""
    until_wait_s: WaitS = 60.0
    """How long a run with a time limit (`cdc apply --until`, `airflow.until`) waits until the store is complete up to
    that time. A deferrable fetch in Airflow also waits as long for a batch that another owner holds."""
    lease_s: DurationS = 3600.0
    """Lease time: how long an owner that does not renew its batch keeps it before another owner may take it over."""
