"""PySpark has what Towpath uses beyond its documented interface."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import types as t

from cdc.lake.runtime import private_pyspark

ROOT = Path(private_pyspark.__file__).resolve().parents[2]
_PRIVATE = re.compile(
    r"\._(jvm|jsc|jdf|gateway|jsparkSession|active_spark_context|accumulatorServer)\b|\bto_arrow_type\("
)


@pytest.mark.parametrize("name", private_pyspark.NAMES)
def test_a_private_name_is_still_there(name: str) -> None:
    assert name not in private_pyspark.missing(), "this PySpark lacks it: change private_pyspark.py"


def test_names_that_are_gone_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = (
        "pyspark.nothing",
        "pyspark.sql.session:Nothing",
        "pyspark.sql.session:SparkSession.self._nothing",
        "pyspark.java_gateway:launch_gateway().nothing",
    )
    monkeypatch.setattr(private_pyspark, "NAMES", ("pyspark.worker", *gone))
    assert private_pyspark.missing() == list(gone)


def test_other_modules_use_no_private_name() -> None:
    uses = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in sorted(ROOT.rglob("*.py"))
        if file != Path(private_pyspark.__file__).resolve()
        for line in file.read_text(encoding="utf-8").splitlines()
        if _PRIVATE.search(line) and "private_pyspark." not in line and "self._gateway" not in line
    ]
    assert uses == []


def test_types_are_those_of_arrow_and_back() -> None:
    schema = t.StructType([t.StructField("a", t.TimestampType()), t.StructField("b", t.TimestampNTZType())])
    types = [pa.timestamp("us", tz="UTC"), pa.timestamp("us")]
    assert private_pyspark.to_arrow_schema(schema).types == types
    assert [private_pyspark.to_arrow_type(field.dataType) for field in schema] == types
    assert [private_pyspark.from_arrow_type(kind) for kind in types] == [field.dataType for field in schema]
