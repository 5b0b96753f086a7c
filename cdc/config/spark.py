"""``spark``: where the merges run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema, field_validator

from cdc.config.lake import Lake
from cdc.config.values import Doc, Section

_SUBSTITUTION = "Spark would replace ${...} in statements that hold names and keys of the source"
_STATEMENTS = "Spark would read the names and texts in Towpath's statements otherwise"
_MEANING = "it changes what values mean"
_FIXED = {
    "spark.sql.variable.substitute": ("false", _SUBSTITUTION),
    "spark.sql.parser.escapedStringLiterals": ("false", _STATEMENTS),
    "spark.sql.parser.quotedRegexColumnNames": ("false", _STATEMENTS),
    "spark.sql.ansi.doubleQuotedIdentifiers": ("false", _STATEMENTS),
    "spark.sql.ansi.enforceReservedKeywords": ("false", _STATEMENTS),
    "spark.sql.caseSensitive": ("false", _STATEMENTS),
    "spark.sql.ansi.enabled": ("true", _MEANING),
    "spark.sql.charAsVarchar": ("false", _MEANING),
    "spark.sql.decimalOperations.allowPrecisionLoss": ("true", _MEANING),
    "spark.sql.function.concatBinaryAsString": ("false", _MEANING),
    "spark.sql.legacy.allowNegativeScaleOfDecimal": ("false", _MEANING),
    "spark.sql.legacy.castComplexTypesToString.enabled": ("false", _MEANING),
    "spark.sql.legacy.charVarcharAsString": ("false", _MEANING),
    "spark.sql.legacy.timeParserPolicy": ("CORRECTED", _MEANING),
    "spark.sql.parquet.binaryAsString": ("false", _MEANING),
    "spark.sql.parquet.datetimeRebaseModeInRead": ("CORRECTED", _MEANING),
    "spark.sql.parquet.datetimeRebaseModeInWrite": ("CORRECTED", _MEANING),
    "spark.sql.parquet.inferTimestampNTZ.enabled": ("true", _MEANING),
    "spark.sql.parquet.int96AsTimestamp": ("true", _MEANING),
    "spark.sql.parquet.int96RebaseModeInRead": ("CORRECTED", _MEANING),
    "spark.sql.parquet.int96RebaseModeInWrite": ("CORRECTED", _MEANING),
    "spark.sql.parquet.int96TimestampConversion": ("false", _MEANING),
    "spark.sql.parquet.outputTimestampType": ("TIMESTAMP_MICROS", _MEANING),
    "spark.sql.parquet.writeLegacyFormat": ("false", _MEANING),
    "spark.sql.preserveCharVarcharTypeInfo": ("false", _MEANING),
    "spark.sql.session.timeZone": ("UTC", _MEANING),
    "spark.sql.storeAssignmentPolicy": ("ANSI", _MEANING),
    "spark.sql.timestampType": ("TIMESTAMP_LTZ", _MEANING),
}
FIXED_SETTINGS = {key: value for key, (value, _) in _FIXED.items()}
"""Settings of every session of Spark, whatever else sets them; ``spark.conf`` may not contradict them."""

_ONE_VALUE: dict[str, Any] = {"type": ["string", "number", "boolean"]}


class SparkConfig(Section):
    """The Spark that runs the merges: in the task itself, by spark-submit, or on a Spark Connect server."""

    master: str = "local[*]"
    """Spark's master. `local[*]` runs the merges in the task itself; `spark://host:7077`, `yarn` or `k8s://…` runs
    them by spark-submit."""
    remote: str | None = None
    """Spark Connect server, like `sc://host:15002`. It is used instead of `master`, and its session is warm already."""
    ship: Annotated[
        Literal["nothing", "towpath"],
        Doc(
            choices={
                "nothing": "executors have the same Towpath installed",
                "towpath": "its modules and compiled kernels; executors have Python and Towpath's dependencies",
            }
        ),
    ] = "nothing"
    """Files that spark-submit sends to executors beside the work."""
    conf: Annotated[
        dict[str, str],
        WithJsonSchema(
            {"type": "object", "propertyNames": {"pattern": r"^spark\."}, "additionalProperties": _ONE_VALUE}
        ),
    ] = Field(default_factory=dict)
    """Settings of Spark, like `{spark.executor.memory: 4g}`."""

    _lake: Lake | None = None

    @property
    def lake(self) -> Lake | None:
        """The lake in S3 that is written; None for another kind of lake."""
        return self._lake

    @field_validator("master")
    @classmethod
    def _master(cls, master: str) -> str:
        if not re.fullmatch(r"local(-cluster)?(\[.+\])?|(spark|k8s)://.+|yarn", master):
            raise ValueError("is not a master of Spark; write local[*], spark://host:7077, yarn or k8s://…")
        return master

    @field_validator("remote")
    @classmethod
    def _remote(cls, remote: str | None) -> str | None:
        if remote is not None and not re.fullmatch(r"sc://[^/\s]+.*", remote):
            raise ValueError("is not a Spark Connect server; write sc://host:15002")
        return remote

    def _contradictions(self) -> Iterator[str]:
        if self.ship != "nothing" and (self.remote is not None or re.fullmatch(r"local(\[.+\])?", self.master)):
            where = f"remote {self.remote_address}" if self.remote is not None else f"master {self.master}"
            yield f"ship: {self.ship} has no effect with {where}: nothing is submitted; remove it"

    @property
    def remote_address(self) -> str:
        """The Connect server for messages, without the parameters, which may hold a token."""
        return (self.remote or "").split(";", 1)[0]

    @field_validator("conf", mode="before")
    @classmethod
    def _texts(cls, conf: Any) -> Any:
        """Converts the values to the texts that Spark takes."""
        if not isinstance(conf, dict):
            return conf
        for key, value in conf.items():
            if not str(key).startswith("spark."):
                raise ValueError(f"{key!r} is not a setting of Spark; their names begin with spark.")
            fixed, reason = _FIXED.get(key, (None, ""))
            if fixed is not None and str(value).strip().lower() != fixed.lower():
                raise ValueError(f"{key!r} is {fixed}, and cannot be {value}: {reason}; remove it")
            if key == "spark.submit.deployMode" and str(value).strip() != "client":
                raise ValueError(f"{key!r} must be client: the driver works for the process that submits it; remove it")
            if value is None or isinstance(value, dict | list):
                raise ValueError(f"{key!r} needs one value: a text, a number, true or false")
        return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in conf.items()}
