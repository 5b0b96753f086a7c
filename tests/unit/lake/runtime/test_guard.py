"""A Connect server is asked for its log store, since no file can be written with it from here."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.base.errors import ConfigError
from cdc.config import SparkConfig, parse
from cdc.config.lake import LOG_STORE, LOG_STORES
from cdc.lake.runtime.guard import prove_guard
from tests.support.configurations import FILE, document


class _Session:
    """A session on a server that has these settings."""

    __module__ = "pyspark.sql.connect.session"

    def __init__(self, settings: dict[str, str]) -> None:
        self.settings = settings

    @property
    def conf(self) -> dict[str, str]:
        return self.settings


def config(target: str, **s3: str) -> SparkConfig:
    remote = {"remote": "sc://spark.example:15002/;token=t0ken"}
    return parse(document(apply__target=target, spark=remote, s3=s3), FILE).spark


@pytest.mark.parametrize("target", ["s3a://bucket/lake", "s3://bucket/lake"])
def test_a_server_without_the_log_store_is_refused(target: str) -> None:
    for settings in ({}, {LOG_STORES[0]: "io.delta.storage.S3SingleDriverLogStore"}, {LOG_STORES[1]: "x"}):
        session: Any = _Session(settings)
        with pytest.raises(
            ConfigError, match=r"commits to S3 without spark\.delta\.logStore\.s3a\.impl=io\.towpath"
        ) as error:
            prove_guard(session, config(target))
        assert "t0ken" not in str(error.value)
        prove_guard(session, config(target, log_store="single_driver"))


@pytest.mark.parametrize("store", [LOG_STORE, "io.delta.storage.S3DynamoDBLogStore"])
def test_a_server_with_a_safe_log_store_is_taken(store: str) -> None:
    session: Any = _Session(dict.fromkeys(LOG_STORES, store))
    prove_guard(session, config("s3a://bucket/lake"))
    prove_guard(session, config("s3://bucket/lake"))
    prove_guard(_Session({}), SparkConfig())  # type: ignore[arg-type]
