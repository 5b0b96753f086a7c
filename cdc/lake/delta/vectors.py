"""Deletion vectors: whether a table has them, when a merge may add them, and how a statement is told to use them."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

from cdc.base.log import get_logger
from cdc.lake.delta.log import DeltaState
from cdc.lake.runtime.session import setting_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cdc.lake.delta.tables import Target

VECTORS_PROPERTY = "delta.enableDeletionVectors"
_MERGE_SETTING = "spark.databricks.delta.merge.deletionVectors.persistent"
_log = get_logger(__name__)


def has_deletion_vectors(state: DeltaState) -> bool:
    """Whether statements may mark rows of the table in deletion vectors."""
    return state.properties.get(VECTORS_PROPERTY, "false").lower() == "true"


def may_mark_rows(target: Target, state: DeltaState) -> bool:
    """Whether a merge may mark rows: the table has deletion vectors, or the configuration allows to add them. Never if
    the table's owner has switched them off by the table's property."""
    if VECTORS_PROPERTY in state.properties:
        return has_deletion_vectors(state)
    return target.apply.deletion_vectors


def add_deletion_vectors(spark: SparkSession, target: Target, state: DeltaState) -> DeltaState:
    """Lets the table have deletion vectors, once. Returns the state that was given, with the property: its version and
    applied position stay those that were read before."""
    if has_deletion_vectors(state):
        return state
    _log.info("the table gets deletion vectors; its readers must know them", table=target.table)
    spark.sql(f"ALTER TABLE {target.sql} SET TBLPROPERTIES ('{VECTORS_PROPERTY}' = 'true')")
    return replace(state, properties=state.properties | {VECTORS_PROPERTY: "true"})


def marking_rows(spark: SparkSession, use: bool) -> AbstractContextManager[None]:
    """Lets a MERGE in the block mark changed rows of a table with deletion vectors, or rewrite the files."""
    return setting_of(spark, {_MERGE_SETTING: "true" if use else "false"})
