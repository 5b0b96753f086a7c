"""A destination with a real source, its store and its lake, for the tests of apply."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from cdc.base.errors import CdcError
from cdc.base.targets import table_path
from cdc.batches.lease import Lease
from cdc.batches.manifest import TableResult
from cdc.batches.service import BatchService
from cdc.batches.table_batches import TableBatches
from cdc.capture import Capture
from cdc.config import DestinationConfig, load
from cdc.lake import pipeline
from cdc.lake.runtime import session
from cdc.store.reader.batch_builder import Limits
from cdc.testing.servers import HOST, PASSWORD, USER, Server
from tests.support.configurations import server_id_of
from tests.support.load import APPEND, KEYS, UPSERT, Load

if TYPE_CHECKING:  # the tests of other Airflows have no Spark
    from pyspark.sql import SparkSession

OWNER = "test"
COMPILED_CONF = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=200m",
}
"""A driver that writes and compiles code for each query, as that of a user does."""
LOCAL_CONF = COMPILED_CONF | {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""The driver of most tests. It interprets queries: the code for one takes a quarter of the time of a small batch."""
COMPILED = f"{{master: 'local[2]', conf: {COMPILED_CONF}}}"
LOCAL = f"{{master: 'local[2]', conf: {LOCAL_CONF}}}"


class Killed(Exception):
    """Stands for a kill: nothing of the driver's memory is used afterwards."""


class Loop:
    """MySQL → store → Delta, step by step. Captures everything after its creation; with ``start: now`` everything after
    the first capture, which servers without metadata need."""

    def __init__(
        self,
        folder: Path,
        server: Server,
        db: str,
        *,
        overrides: str = "",
        tables: str = "",
        apply: str = "",
        spark: str = LOCAL,
        name: str = "shop",
        start: str = "",
        snapshot: str = "",
        target: str = "lake",
        s3: str = "",
    ) -> None:
        self.server, self.db = server, db
        server.execute("FLUSH BINARY LOGS")
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SHOW BINARY LOGS")
            newest = cursor.fetchall()[-1][0]
        is_old = server.kind.name == "mysql56"  # its binlog names no columns, so capture cannot begin in the past
        begins = start or ("now" if is_old else f"{{file: {newest}, pos: 4}}")
        if "on_error" not in apply:  # an error of a table is raised, so that a test that expects none sees it
            apply += f"{apply and ', '}on_error: block"
        flavor = "mysql" if server.kind.name.startswith("mysql") else "mariadb"
        file = folder / "conf" / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(
            f"source: {{url: '{flavor}://{USER}@{HOST}:{server.port}', password_env: TOWPATH_TEST_PASSWORD,"
            f" server_id: {server_id_of(file)}, start: {begins}}}\n"
            f"tables: {{include: ['{db}\\..*'], overrides: {{{overrides.replace('DB', db)}}}"
            f"{tables and ', '}{tables}}}\n"
            f"store: {{path: {name}/store}}\nmeta: {{path: {name}/meta}}\napply: {{target: {target}{apply and ', '}{apply}}}\n"
            f"batch: {{max_wait_s: 0}}\nspark: {spark}\n{snapshot and f'snapshot: {snapshot}'}\n"
            f"{s3 and f's3: {s3}'}\n",
            encoding="utf-8",
        )
        self.config: DestinationConfig = load(file)
        if is_old and not start:
            self.capture()

    def sql(self, *statements: str) -> None:
        """Runs statements in the database, each in a transaction of its own."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"USE `{self.db}`")
            for statement in statements:
                cursor.execute(statement)
                connection.commit()

    def capture_seq(self) -> int:
        """Captures, and returns the seq of the last transaction."""
        self.capture()
        seq = TableBatches(self.config).reader.last_seq()
        assert seq is not None
        return seq

    def capture(self) -> None:
        Capture(self.config).run(until_current=True)

    def merge_step_by_step(self, lease: Lease) -> tuple[list[TableResult], list[str]]:
        """Merges a batch by drivers that do one step of a statement each, and die before their second. Returns the
        results of the last one, and the steps of the others."""
        from cdc.lake.apply.schema import spark_lake  # PySpark, which most tests with a loop do not need

        steps: list[str] = []
        while True:
            seen: list[str] = []

            def die(table: str, step: str, seen: list[str] = seen) -> None:
                seen.append(step)
                if len(seen) == 2:
                    raise Killed(step)

            spark_lake.before_step = die
            try:
                return pipeline.merge(self.config, lease), steps
            except CdcError:
                steps.append(seen[0])
                assert len(steps) < 30

    def edit(self, old: str, new: str) -> None:
        """Replaces a text in the configuration's file, as an operator does, and reads the file again."""
        text = self.config.file.read_text(encoding="utf-8")
        assert old in text
        self.config.file.write_text(text.replace(old, new), encoding="utf-8")
        self.config = load(self.config.file)

    def exclude(self, pattern: str) -> None:
        """Adds an expression to ``tables.exclude``, and drops the overrides of the tables that it matches."""
        content = self.config.tables.model_dump(exclude_unset=True)
        content["exclude"] = [*self.config.tables.exclude, pattern]
        content["overrides"] = {
            name: value for name, value in content.get("overrides", {}).items() if not re.fullmatch(pattern, name)
        }
        tables = type(self.config.tables).model_validate(content)
        self.config = self.config.model_copy(update={"tables": tables})

    def fetch(self, transactions: int | None = None) -> Lease:
        """Fetches the next batch, of at most this many transactions; DDL comes apart from rows."""
        limits = Limits(max_transactions=transactions)
        lease = BatchService(self.config).get(OWNER, limits=limits, wait_s=0)
        assert lease is not None, "the store has nothing more"
        return lease

    def apply(self, transactions: int | None = None) -> list[TableResult]:
        """Merges and acks one batch."""
        lease = self.fetch(transactions)
        results = pipeline.merge(self.config, lease)
        pipeline.finalize(self.config, lease, True, results)
        return results

    def apply_all(self, transactions: int | None = None) -> dict[str, list[TableResult]]:
        """Merges and acks all batches, mixed as those of apply. Returns the results by table (without the database's
        name)."""
        results_by_table: dict[str, list[TableResult]] = {}
        service = BatchService(self.config, mixes=True)
        limits = Limits(max_transactions=transactions)
        while (lease := service.get(OWNER, limits=limits, wait_s=0)) is not None:
            results = pipeline.merge(self.config, lease)
            pipeline.finalize(self.config, lease, True, results)
            for result in results:
                results_by_table.setdefault(result.table.partition(".")[2], []).append(result)
        return results_by_table

    def path(self, table: str) -> Path:
        return Path(table_path(self.config.apply.target, self.db, table))

    def version(self, table: str) -> int:
        """Returns the newest version of the Delta table."""
        return DeltaTable(str(self.path(table))).version()

    def delta(self, table: str, columns: str = "*", order: str = "1") -> list[dict[str, Any]]:
        """Returns the rows of the Delta table by the ``deltalake`` library, ordered by column numbers."""
        reader = QueryBuilder().register("t", DeltaTable(str(self.path(table))))
        rows = pa.table(reader.execute(f"SELECT {columns} FROM t ORDER BY {order}")).to_pylist()
        return [{k: _plain(v) for k, v in row.items()} for row in rows]

    def select(self, table: str, order: str = "1") -> list[dict[str, Any]]:
        """Returns the rows of the source."""
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SET time_zone = '+00:00'")
            cursor.execute(f"SELECT * FROM `{self.db}`.`{table}` ORDER BY {order}")
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def require_equal(self, table: str, order: str = "1") -> None:
        assert self.delta(table, order=order) == self.select(table, order)

    def require_load(self, load: Load) -> None:
        """Checks that its mirrors equal the source, and that its changelog has as many changes of each kind."""
        for table in UPSERT:
            self.require_equal(table, ", ".join(str(number + 1) for number in range(len(KEYS[table]))))
        assert Counter(op for op, _ in self.changelog(APPEND)) == load.changes

    def changelog(self, table: str) -> list[tuple[str, Any]]:
        """Returns (``_op``, first column) of each row of an append table, in order. No change may be there twice."""
        rows = self.delta(table, order="_seq, _row")
        changes = [(row["_seq"], row["_row"]) for row in rows]
        assert len(changes) == len(set(changes)), "a change is there twice"
        return [(row["_op"], next(iter(row.values()))) for row in rows]


def spark_of(loop: Loop) -> SparkSession:
    """Returns the session in which the loop merges."""
    return session.acquire(loop.config.spark).spark


def _plain(value: Any) -> Any:
    """Drops the time zone: a TIMESTAMP has one in Delta and none in SELECT."""
    return value.replace(tzinfo=None) if getattr(value, "tzinfo", None) is not None else value


__all__ = ["COMPILED", "COMPILED_CONF", "LOCAL", "LOCAL_CONF", "OWNER", "PASSWORD", "Loop"]
