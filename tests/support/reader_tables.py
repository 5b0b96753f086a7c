"""Delta tables for the matrix of readers: one for each feature that a table of Towpath may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_ROWS = "SELECT CAST(id AS INT) AS id, concat('v', id) AS v FROM range(10)"
_AS_SELECT = "CREATE TABLE {t} USING delta{more} AS " + _ROWS
_DELETED = "DELETE FROM {t} WHERE id IN (3, 7)"


@dataclass(frozen=True)
class Feature:
    """A feature of a table, and statements that make a table with it. ``{t}`` is the table."""

    title: str
    cause: str
    """The setting, or what at the source, that gives a table the feature."""
    statements: tuple[str, ...]
    settings: Mapping[str, str] | None = None
    """Settings of the session meanwhile."""


def _properties(text: str) -> str:
    return _AS_SELECT.replace("{more}", f" TBLPROPERTIES ({text})")


_CHECKPOINTS = tuple(f"INSERT INTO {{t}} VALUES ({i}, 'w{i}')" for i in range(20, 24))
FEATURES: dict[str, Feature] = {
    "plain": Feature("a plain table", "the default", (_AS_SELECT.replace("{more}", ""), _DELETED)),
    "vectors": Feature(
        "deletion vectors",
        "`apply.deletion_vectors: true`",
        (_properties("'delta.enableDeletionVectors' = 'true'"), _DELETED),
    ),
    "mapping": Feature(
        "column mapping: a space in a name",
        "a column's name with a space or one of `,;{}()=`",
        (
            (
                "CREATE TABLE {t} (id INT, `a name` STRING) USING delta "
                "TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"
            ),
            "INSERT INTO {t} VALUES (1, 'a'), (2, 'b')",
        ),
    ),
    "renamed": Feature(
        "column mapping: renamed and dropped columns",
        "`ALTER TABLE … RENAME COLUMN`, `DROP COLUMN` at the source",
        (
            "CREATE TABLE {t} (id INT, v STRING, w INT) USING delta",
            "INSERT INTO {t} VALUES (1, 'a', 5), (2, 'b', 6)",
            (
                "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name', "
                "'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')"
            ),
            "ALTER TABLE {t} RENAME COLUMN v TO x",
            "ALTER TABLE {t} DROP COLUMNS (w)",
            "INSERT INTO {t} VALUES (3, 'c')",
        ),
    ),
    "widened": Feature(
        "type widening: INT to BIGINT",
        "a column that was widened at the source",
        (
            "CREATE TABLE {t} (id INT, n INT) USING delta TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
            "INSERT INTO {t} VALUES (1, 7)",
            "ALTER TABLE {t} ALTER COLUMN n TYPE BIGINT",
            "INSERT INTO {t} VALUES (2, 5000000000)",
        ),
    ),
    "widened decimal": Feature(
        "type widening: DECIMAL(5,2) to DECIMAL(12,4)",
        "a column that was widened at the source",
        (
            "CREATE TABLE {t} (id INT, n DECIMAL(5,2)) USING delta TBLPROPERTIES ('delta.enableTypeWidening' = 'true')",
            "INSERT INTO {t} VALUES (1, 7.25)",
            "ALTER TABLE {t} ALTER COLUMN n TYPE DECIMAL(12,4)",
            "INSERT INTO {t} VALUES (2, 12345678.1234)",
        ),
    ),
    "variant": Feature(
        "VARIANT",
        "`types: {json: variant}`",
        (
            "CREATE TABLE {t} (id INT, j VARIANT) USING delta",
            """INSERT INTO {t} SELECT 1, parse_json('{"a":[1,2]}')""",
        ),
    ),
    "clustered": Feature(
        "liquid clustering",
        "`cluster_by`",
        (_AS_SELECT.replace("{more}", " CLUSTER BY (id)"), "OPTIMIZE {t}", _DELETED),
    ),
    "feed": Feature(
        "change data feed",
        "`properties: {delta.enableChangeDataFeed: true}`",
        (_properties("'delta.enableChangeDataFeed' = 'true'"), _DELETED, "UPDATE {t} SET v = 'x' WHERE id = 4"),
    ),
    "partitions": Feature(
        "partitions",
        "`partition_by`",
        (
            "CREATE TABLE {t} (id INT, d DATE, n DECIMAL(9,2)) USING delta PARTITIONED BY (d, n)",
            "INSERT INTO {t} VALUES (1, DATE'2026-01-02', 1.50), (2, NULL, -3.00), (3, DATE'0001-01-01', NULL)",
        ),
    ),
    "decimal": Feature(
        "DECIMAL(38,10)",
        "a DECIMAL of 19 to 38 digits",
        (
            "CREATE TABLE {t} (id INT, n DECIMAL(38,10)) USING delta",
            "INSERT INTO {t} VALUES (1, 9999999999999999999999999999.9999999999), (2, -0.0000000001)",
        ),
    ),
    "ntz": Feature(
        "TIMESTAMP_NTZ",
        "DATETIME",
        (
            "CREATE TABLE {t} (id INT, d TIMESTAMP_NTZ) USING delta",
            (
                "INSERT INTO {t} VALUES (1, TIMESTAMP_NTZ'2026-03-29 02:30:00.123456'), "
                "(2, TIMESTAMP_NTZ'1000-01-01 00:00:00')"
            ),
        ),
    ),
    "timestamp": Feature(
        "TIMESTAMP",
        "TIMESTAMP, and the columns of modes",
        (
            "CREATE TABLE {t} (id INT, d TIMESTAMP) USING delta",
            "INSERT INTO {t} VALUES (1, TIMESTAMP'2026-03-29 02:30:00.123456Z')",
        ),
    ),
    "checkpoint": Feature(
        "a checkpoint", "every tenth commit", (_properties("'delta.checkpointInterval' = '2'"), _DELETED, *_CHECKPOINTS)
    ),
    "checkpoint v2": Feature(
        "a checkpoint of the second version",
        "`properties: {delta.checkpointPolicy: v2}`",
        (
            _properties("'delta.checkpointInterval' = '2', 'delta.checkpointPolicy' = 'v2'"),
            _DELETED,
            *_CHECKPOINTS,
        ),
    ),
    "vectors, checkpoint v2": Feature(
        "deletion vectors in a checkpoint of the second version",
        "both settings",
        (
            _properties(
                "'delta.checkpointInterval' = '2', 'delta.checkpointPolicy' = 'v2', "
                "'delta.enableDeletionVectors' = 'true'"
            ),
            _DELETED,
            *_CHECKPOINTS,
        ),
    ),
    "row tracking": Feature(
        "row tracking",
        "`ALTER TABLE` by hand: `properties` refuses it",
        (_properties("'delta.enableRowTracking' = 'true'"), _DELETED),
    ),
    "commit timestamps": Feature(
        "in-commit timestamps",
        "`properties: {delta.enableInCommitTimestamps: true}`",
        (_properties("'delta.enableInCommitTimestamps' = 'true'"), _DELETED),
    ),
    "percent": Feature(
        "a percent sign in the path",
        "a table's name outside `[A-Za-z0-9_$-]`",
        (_AS_SELECT.replace("{more}", ""), _DELETED),
    ),
}
