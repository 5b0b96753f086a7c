"""The lake in S3 as its two users reach it: Spark with S3A, and this process with fsspec. Both get one access."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cdc.config.s3 import S3Config
from cdc.config.secrets import s3_access_key

_S3A = "spark.hadoop.fs.s3a."
LOG_STORES = ("spark.delta.logStore.s3a.impl", "spark.delta.logStore.s3.impl")
"""Settings of Spark that name the log store for S3."""
LOG_STORE = "io.towpath.S3ConditionalPutLogStore"
"""Towpath's own, with which a commit is a put that S3 refuses if the name is taken."""
SAFE_LOG_STORES = (LOG_STORE, "io.delta.storage.S3DynamoDBLogStore")
"""Log stores in which several drivers may commit."""
_PROVIDERS = "org.apache.hadoop.fs.s3a."


@dataclass(frozen=True)
class Lake:
    """A folder for tables in S3, and the access to it."""

    target: str
    """The URI of the folder."""
    s3: S3Config

    @property
    def has_conditional_puts(self) -> bool:
        """Whether commits are to be refused by the object store if their names are taken."""
        return self.s3.log_store == "conditional_put"

    def spark_settings(self) -> dict[str, str]:
        """Returns the settings with which Spark reaches the bucket, secrets included. Raises ConfigError."""
        settings = {"spark.hadoop.fs.s3.impl": f"{_PROVIDERS}S3AFileSystem"}
        if self.has_conditional_puts:
            settings |= dict.fromkeys(LOG_STORES, LOG_STORE)
        if self.s3.endpoint is not None:
            settings[f"{_S3A}endpoint"] = self.s3.endpoint
        if self.s3.region is not None or self.s3.endpoint is not None:
            settings[f"{_S3A}endpoint.region"] = self.s3.region or "us-east-1"
        if self.s3.has_path_style:
            settings[f"{_S3A}path.style.access"] = "true"
        key = s3_access_key(self.s3)
        if key is None:
            return settings
        provider = "SimpleAWSCredentialsProvider" if key.token is None else "TemporaryAWSCredentialsProvider"
        settings |= {
            f"{_S3A}aws.credentials.provider": f"{_PROVIDERS}{provider}",
            f"{_S3A}access.key": key.id,
            f"{_S3A}secret.key": key.secret,
        }
        return settings if key.token is None else settings | {f"{_S3A}session.token": key.token}

    def reader_options(self) -> dict[str, Any]:
        """Returns the options of fsspec's file system for the bucket, secrets included. Raises ConfigError."""
        client = {"endpoint_url": self.s3.endpoint, "region_name": self.s3.region}
        options: dict[str, Any] = {
            "client_kwargs": {name: value for name, value in client.items() if value is not None},
            "use_listings_cache": False,
        }
        if self.s3.has_path_style:
            options["config_kwargs"] = {"s3": {"addressing_style": "path"}}
        key = s3_access_key(self.s3)
        return options if key is None else options | {"key": key.id, "secret": key.secret, "token": key.token}
