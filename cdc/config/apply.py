"""``batch``, ``apply``, ``spark``, ``airflow``: how much is applied at once, how, where and when."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from cdc.config.columns import Columns, Types, ZeroDates
from cdc.config.values import DurationS, FilledText, Section, WaitS, Whole


class BatchConfig(Section):
    """Where a batch ends: the first limit that is reached. A transaction larger than a limit is a batch of its own."""

    max_bytes: Whole = Field(default=268435456, gt=0)
    max_transactions: Whole | None = Field(default=None, gt=0)
    max_row_events: Whole | None = Field(default=None, gt=0)
    max_wait_s: WaitS = 5.0
    """How long get waits for a first transaction."""
    until_wait_s: WaitS = 60.0
    """How long get with a time limit waits until the store is known to be complete up to then."""
    lease_s: DurationS = 3600.0


class ApplyConfig(Section):
    """What becomes of the changes."""

    mode: Literal["upsert", "soft_delete", "append", "scd2"] = "upsert"
    target: FilledText
    """Folder or URI under which the tables lie as ``{db}/{table}``."""
    keys: tuple[str, ...] | None = None
    zero_dates: ZeroDates = "null"
    """What becomes of zero, half-zero and impossible dates."""
    types: Types = Field(default_factory=dict)
    """Types that become something else than without a policy: ``{tinyint(1): boolean}``."""
    columns: Columns = Field(default_factory=dict)
    """Policies by column, in every table that has such a column."""
    hash_key_env: str | None = None
    """Name of the environment variable that holds the key of ``hash``."""
    hash_key_file: Path | None = None
    """File whose first line is that key; relative to the configuration file."""

    @field_validator("mode")
    @classmethod
    def _mode(cls, mode: str) -> str:
        if mode in ("soft_delete", "scd2"):
            raise ValueError("is not there yet; use upsert or append")
        return mode

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if self.hash_key_env is not None and self.hash_key_file is not None:
            raise ValueError("hash_key_env and hash_key_file contradict each other; keep one of them")
        return self


_FIXED_CONF = {
    "spark.sql.variable.substitute": "Spark would replace ${...} in statements that hold names and keys of the source",
    "spark.sql.parser.escapedStringLiterals": "Spark would read the texts in Towpath's statements otherwise",
}
"""Settings that Towpath needs to be false, and why."""


class SparkConfig(Section):
    """Where the merges run: in the task (``local[*]``), by spark-submit (any other master), or on a Connect server."""

    master: str = "local[*]"
    remote: str | None = None
    """``sc://host:15002`` of a Spark Connect server; wins over ``master``."""
    conf: dict[str, str] = Field(default_factory=dict)

    @field_validator("master")
    @classmethod
    def _master(cls, master: str) -> str:
        if not re.fullmatch(r"local(-cluster)?(\[.+\])?|(spark|k8s)://.+|yarn", master):
            raise ValueError("is no master of Spark; write local[*], spark://host:7077, yarn or k8s://…")
        return master

    @field_validator("remote")
    @classmethod
    def _remote(cls, remote: str | None) -> str | None:
        if remote is not None and not re.fullmatch(r"sc://[^/\s]+.*", remote):
            raise ValueError("is no Spark Connect server; write sc://host:15002")
        return remote

    @property
    def remote_address(self) -> str:
        """The Connect server for messages: without the parameters, which may hold a token."""
        return (self.remote or "").split(";", 1)[0]

    @field_validator("conf", mode="before")
    @classmethod
    def _texts(cls, conf: Any) -> Any:
        if not isinstance(conf, dict):
            return conf
        for key, value in conf.items():
            if not str(key).startswith("spark."):
                raise ValueError(f"{key!r} is no setting of Spark; their names begin with spark.")
            if key in _FIXED_CONF and str(value).strip().lower() != "false":
                raise ValueError(f"{key!r} cannot be {str(value).lower()}: {_FIXED_CONF[key]}; remove it")
            if value is None or isinstance(value, dict | list):
                raise ValueError(f"{key!r} needs one value: a text, a number, true or false")
        return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in conf.items()}


class AirflowConfig(Section):
    """How the generated DAGs are scheduled."""

    apply_every: DurationS = 60.0
    """The apply DAG's interval."""
    capture_for: DurationS = 3600.0
    """A capture run ends cleanly after so long; the next one starts at once."""
    retries: Whole = Field(default=3, ge=0)
    until: Literal["interval_end", "none"] = "none"
    """``interval_end``: a run applies exactly what was committed before the end of its data interval, in as many
    batches as that takes; ``none``: it applies one batch of what is there."""
