"""Names and texts in Spark's SQL."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from cdc.base.targets import application_id
from cdc.config import SparkConfig
from cdc.config.spark import FIXED_SETTINGS
from cdc.lake.delta.sql import literal, quote
from cdc.lake.runtime.commit_metadata import setting_value


def test_quoting() -> None:
    assert quote("a`b.c") == "`a``b.c`"
    assert literal("o'clock\\") == "'o\\'clock\\\\'"


def test_no_setting_holds_a_reference_that_spark_would_replace() -> None:
    manifest_of = {"destination": "${a}", "table": "shop.${env:HOME}"}
    assert "${" not in setting_value(json.dumps(manifest_of))
    assert json.loads(setting_value(json.dumps(manifest_of))) == manifest_of
    assert application_id("shop", "db.${env:HOME}") == "towpath:shop:db.$%7Benv:HOME}:0"
    with pytest.raises(ValidationError, match=r"would replace \$\{...\}.*remove it"):
        SparkConfig.model_validate({"conf": {"spark.sql.variable.substitute": True}})
    SparkConfig.model_validate({"conf": {"spark.sql.variable.substitute": False}})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY"),
        ("spark.sql.timestampType", "TIMESTAMP_NTZ"),
        ("spark.sql.session.timeZone", "America/New_York"),
        ("spark.sql.ansi.enabled", False),
    ],
)
def test_settings_that_change_what_values_mean_are_refused(key: str, value: object) -> None:
    with pytest.raises(ValidationError, match="it changes what values mean; remove it"):
        SparkConfig.model_validate({"conf": {key: value}})
    SparkConfig.model_validate({"conf": {key: FIXED_SETTINGS[key].lower()}})
