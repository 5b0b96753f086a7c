"""Proves that a session cannot replace a commit that another driver has made in S3.

A commit is a file whose name holds its version. Delta's log store for S3 looks whether the name is taken, and then
writes. Between both another driver may have committed: an orphan of a killed task beside its retry. Only a put that the
object store refuses if the name is taken guards against that.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

from cdc.base.errors import ConfigError, RetryableError
from cdc.config.lake import LOG_STORE, LOG_STORES, SAFE_LOG_STORES
from cdc.lake.runtime.failures import first_line
from cdc.lake.runtime.private_pyspark import is_connect, java_class, java_context, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc.config import SparkConfig
    from cdc.config.lake import Lake

ONE_DRIVER = "set s3.log_store: single_driver and see to it that there is only ever one driver, and no orphan of one"


def prove_guard(spark: SparkSession, config: SparkConfig) -> None:
    """Raises ConfigError if two drivers could replace each other's commits in S3, and the configuration does not say
    that there is only one; RetryableError if the object store cannot be reached. Asks a Connect server for its setting,
    and tries it in a driver of our own."""
    lake = config.lake
    if lake is None or not lake.has_conditional_puts:
        return
    names = [str(spark.conf.get(key, None)) for key in LOG_STORES]
    if names[0] not in SAFE_LOG_STORES or (lake.target.startswith("s3:") and names[1] not in SAFE_LOG_STORES):
        raise ConfigError(
            f"this Spark commits to S3 without {LOG_STORES[0]}={LOG_STORE}, so two drivers could replace each other's "
            "commits",
            place=f"spark.remote {config.remote_address}" if is_connect(spark) else "spark.conf",
            remedy=f"Start the server with this setting and the jars of Towpath's log store (`cdc spark start` does), "
            f"or {ONE_DRIVER}.",
        )
    if not is_connect(spark) and names[0] == LOG_STORE:
        _prove_by_commits(spark, lake)


def _prove_by_commits(spark: SparkSession, lake: Lake) -> None:
    """Writes two files of one name by the log store, as two drivers do that commit one version."""
    jvm = jvm_of(spark)
    path = java_class(jvm, "org.apache.hadoop.fs.Path")(
        f"{lake.target.rstrip('/')}/_towpath_check_{secrets.token_hex(8)}"
    )
    try:
        conf = java_context(spark).hadoopConfiguration()
        store = java_class(jvm, "io.towpath.S3ConditionalPutLogStore")(conf)
        try:
            store.write(path, _lines(jvm, "first"), False, conf)
            try:
                store.write(path, _lines(jvm, "second"), False, conf)
                replaced = True
            except Exception as error:
                if "FileAlreadyExistsException" not in str(error):
                    raise
                replaced = False
        finally:
            path.getFileSystem(conf).delete(path, False)
    except Exception as error:
        raise RetryableError(
            f"Spark cannot write to the lake: {first_line(error)}",
            place=f"apply.target {lake.target}",
            remedy="Check that the bucket exists, s3.endpoint and s3.region, and the rights of the access key.",
        ) from error
    if replaced:
        raise ConfigError(
            "the object store lets two drivers replace each other's commits: it has no conditional puts",
            place=f"apply.target {lake.target}",
            remedy=f"Update it, or {ONE_DRIVER}.",
        )


def _lines(jvm: Any, line: str) -> Any:
    lines = java_class(jvm, "java.util.ArrayList")()
    lines.add(line)
    return lines.iterator()
