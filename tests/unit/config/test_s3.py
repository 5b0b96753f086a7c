"""The section ``s3``: what Spark and the reader of logs get from it, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import ConfigError
from cdc.config import parse
from cdc.config.lake import LOG_STORE, LOG_STORES
from cdc.config.secrets import s3_access_key
from cdc.disk import object_stores
from tests.support.configurations import FILE, document, message

TARGET = "s3a://bucket/lake"
ACCESS = {"endpoint": "http://minio.example:9000", "access_key_id": "AKIA1", "secret_access_key_env": "LAKE_SECRET"}


def test_spark_and_the_reader_get_one_access(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_SECRET", "s3cret")
    monkeypatch.setenv("LAKE_TOKEN", "tok")
    lake = parse(document(apply__target=TARGET, s3=ACCESS), FILE).spark.lake
    assert lake is not None
    spark = lake.spark_settings()
    assert spark["spark.hadoop.fs.s3a.endpoint"] == "http://minio.example:9000"
    assert spark["spark.hadoop.fs.s3a.path.style.access"] == "true"
    assert spark["spark.hadoop.fs.s3a.secret.key"] == "s3cret"
    assert spark["spark.hadoop.fs.s3a.aws.credentials.provider"].endswith(".SimpleAWSCredentialsProvider")
    assert [spark[name] for name in LOG_STORES] == [LOG_STORE, LOG_STORE]
    reader = lake.reader_options()
    assert (reader["key"], reader["secret"], reader["token"]) == ("AKIA1", "s3cret", None)
    assert reader["client_kwargs"] == {"endpoint_url": "http://minio.example:9000"}

    more = ACCESS | {"session_token_env": "LAKE_TOKEN", "region": "eu-central-1", "path_style": False}
    lake = parse(document(apply__target=TARGET, s3=more), FILE).spark.lake
    assert lake is not None
    spark = lake.spark_settings()
    assert spark["spark.hadoop.fs.s3a.session.token"] == lake.reader_options()["token"] == "tok"
    assert spark["spark.hadoop.fs.s3a.aws.credentials.provider"].endswith(".TemporaryAWSCredentialsProvider")
    assert spark["spark.hadoop.fs.s3a.endpoint.region"] == "eu-central-1"
    assert "spark.hadoop.fs.s3a.path.style.access" not in spark
    assert "s3cret" not in f"{lake} {s3_access_key(lake.s3)!r}"


def test_without_keys_both_look_for_credentials_themselves() -> None:
    lake = parse(document(apply__target="s3://bucket/lake"), FILE).spark.lake
    assert lake is not None
    assert set(lake.spark_settings()) == {"spark.hadoop.fs.s3.impl", *LOG_STORES}
    assert lake.reader_options() == {"client_kwargs": {}, "use_listings_cache": False}
    assert parse(document(), FILE).spark.lake is None


def test_a_secret_from_a_file_and_one_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "key").write_text("from-a-file\n")
    access = {"access_key_id": "AKIA1", "secret_access_key_file": "key"}
    config = parse(document(apply__target=TARGET, s3=access), tmp_path / "conf" / "shop.yaml")
    assert config.spark.lake is not None
    assert config.spark.lake.reader_options()["secret"] == "from-a-file"
    monkeypatch.delenv("LAKE_SECRET", raising=False)
    lake = parse(document(apply__target=TARGET, s3=ACCESS), FILE).spark.lake
    assert lake is not None
    with pytest.raises(ConfigError, match=r"LAKE_SECRET is not set"):
        object_stores.filesystem(f"{TARGET}/shop/t")


def test_a_single_driver_is_given_no_guard() -> None:
    lake = parse(document(apply__target=TARGET, s3={"log_store": "single_driver"}), FILE).spark.lake
    assert lake is not None
    assert set(lake.spark_settings()) == {"spark.hadoop.fs.s3.impl"}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"s3": {"region": "x"}}, "s3 has no effect with apply.target"),
        ({"apply__target": "s3a://k:s@b/l"}, "apply.target must not hold a key"),
        ({"s3": ACCESS | {"endpoint": "minio:9000"}}, "s3.endpoint: 'minio:9000' is not the URL"),
        ({"s3": ACCESS | {"endpoint": "http://k:s@minio"}}, "s3.endpoint: "),
        ({"s3": {"access_key_id": "x"}}, "s3: access_key_id and its secret belong together"),
        ({"s3": ACCESS | {"secret_access_key_file": "x"}}, "s3: secret_access_key_env and secret_access_key_file"),
        ({"s3": {"session_token_env": "x"}}, "s3: session_token_env has no effect"),
        ({"s3": {"log_store": "dynamodb"}}, "s3.log_store: 'dynamodb' must be one of conditional_put, single_driver"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], expected: str) -> None:
    whole = changes if expected.startswith("s3 has") else {"apply__target": TARGET, **changes}
    text = message(**whole)
    assert text.startswith(expected)
    assert "k:s" not in text.removeprefix(expected)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("spark.hadoop.fs.s3a.endpoint", "http://x", "Set s3.endpoint instead"),
        ("spark.hadoop.fs.s3a.secret.key", "x", "Set s3.secret_access_key_env instead"),
        ("spark.delta.logStore.s3a.impl", "io.delta.storage.S3SingleDriverLogStore", "set s3.log_store: single_driver"),
        ("spark.hadoop.fs.s3a.create.conditional.enabled", "false", "could replace each other's commits"),
    ],
)
def test_settings_of_spark_that_would_contradict(key: str, value: str, expected: str) -> None:
    assert expected in message(apply__target=TARGET, spark={"conf": {key: value}})
    if "instead" not in expected:
        changes = {"apply__target": TARGET, "spark": {"conf": {key: value}}, "s3": {"log_store": "single_driver"}}
        assert parse(document(**changes), FILE).spark.conf[key] == value
    dynamodb = {"spark.delta.logStore.s3a.impl": "io.delta.storage.S3DynamoDBLogStore"}
    assert parse(document(apply__target=TARGET, spark={"conf": dynamodb}), FILE).spark.conf == dynamodb
