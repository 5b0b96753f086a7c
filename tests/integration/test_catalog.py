"""Delta tables in a Hive metastore, an embedded one or a process of its own, under their names."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.base.errors import CatalogUnavailableError, ConfigError, TargetError
from cdc.batches.service import BatchService
from cdc.cli import check_local
from cdc.lake import pipeline
from cdc.lake.delta import catalog
from cdc.lake.delta.catalog import CatalogEntry, Name, find_entry
from cdc.lake.runtime import connect_server, session
from cdc.meta import open_meta
from cdc.testing.servers import Server, free_port
from tests.support.apply import LOCAL_CONF, Loop, spark_of
from tests.support.hive import HiveMetastore

Database = Callable[[Server], str]
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(9))"
READ = """
import json, sys
from pathlib import Path
from cdc.config import load
from cdc.lake.runtime.session import acquire, discard
spark = acquire(load(Path(sys.argv[1])).spark).spark
print(json.dumps([[list(row) for row in spark.sql(one).collect()] for one in sys.argv[2:]]))
discard()
"""


SERVE = """
import json, sys
from pathlib import Path
from cdc.config import load
from cdc.lake.runtime.session import acquire
spark = acquire(load(Path(sys.argv[1])).spark).spark
for line in sys.stdin:
    print(json.dumps([list(row) for row in spark.sql(json.loads(line)).collect()]), flush=True)
"""


class Reader:
    """A second Spark session, in a process of its own, which knows names only."""

    def __init__(self, file: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def sql(self, statement: str) -> list[list[Any]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(statement) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"the reader has ended at {statement}"
        rows: list[list[Any]] = json.loads(line)
        return rows

    def end(self) -> None:
        self._process.communicate(timeout=60)


def metastore(folder: Path, *, address: str | None = None) -> dict[str, str]:
    """Returns settings of Spark for a metastore in a folder or, with an address, on another machine."""
    java = f"{LOCAL_CONF['spark.driver.extraJavaOptions']} -Dderby.stream.error.file={folder}/derby.log"
    conf = LOCAL_CONF | {
        "spark.driver.extraJavaOptions": java,
        "spark.sql.catalogImplementation": "hive",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
    }
    if address is not None:
        return conf | {"spark.hadoop.hive.metastore.uris": address}
    url = f"jdbc:derby:;databaseName={folder}/metastore;create=true"
    return conf | {"spark.hadoop.javax.jdo.option.ConnectionURL": url}


def hive(folder: Path, master: str = "local[2]") -> str:
    return f"{{master: '{master}', conf: {metastore(folder)}}}"


def entry(loop: Loop, table: str = "t", database: str = "") -> CatalogEntry | None:
    return find_entry(spark_of(loop), Name("spark_catalog", database or f"lake_{loop.db}", table))


@pytest.fixture
def _forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets each batch look at the catalog, as the first one of a process does."""
    monkeypatch.setattr(catalog, "KNOWN_FOR_S", 0.0)


NAMES = "catalog: {name: spark_catalog, database: 'lake_{db}'}"


@pytest.mark.long
def test_another_process_reads_tables_by_name(
    mysql9: Server, tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), apply=NAMES, spark=hive(tmp_path))
    loop.sql(TABLE, "CREATE TABLE `Odd-Name` (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1, 'a')")
    loop.capture()
    loop.apply_all()
    assert entry(loop) == CatalogEntry("EXTERNAL", "delta", f"file:{loop.path('t')}")
    with monkeypatch.context() as patch:  # as another catalog is asked
        patch.setattr(catalog, "SESSION_CATALOG", "another")
        assert entry(loop) == CatalogEntry("EXTERNAL", "delta", f"file:{loop.path('t')}")
        assert entry(loop, "nothing") is None
    odd = entry(loop, "odd_name")
    assert odd is not None
    assert catalog.is_same_place(odd.location, str(loop.path("Odd-Name")))
    assert [f.level for f in check_local._catalog(loop.config)] == ["ok"]
    session.discard()
    statements = [f"SELECT * FROM lake_{loop.db}.t ORDER BY id", f"SHOW TABLES IN lake_{loop.db}"]
    command = [sys.executable, "-c", READ, str(loop.config.file), *statements]
    rows, names = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=200, check=True).stdout)
    assert rows == [[1, "a"]]
    assert sorted(name for _, name, _ in names) == ["odd_name", "t"]


@pytest.mark.long
@pytest.mark.usefixtures("_forgets")
def test_names_follow_their_tables(mysql9: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), apply=NAMES, spark=hive(tmp_path))
    loop.sql(TABLE, "CREATE TABLE `Odd-Name` (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1, 'a')")
    loop.capture()
    loop.apply_all()

    # Names that somebody removes come back with the next changes, those of idle tables, too.
    spark = spark_of(loop)
    spark.sql(f"DROP DATABASE lake_{loop.db} CASCADE")
    assert {f.level for f in check_local._catalog(loop.config)} == {"warning"}
    assert loop.path("t").exists(), "an external table keeps its files"
    loop.sql("INSERT INTO t VALUES (2, 'b')", "RENAME TABLE `Odd-Name` TO odder")
    loop.capture()
    loop.apply_all()
    assert [entry(loop, name) is not None for name in ("t", "odd_name", "odder")] == [True, True, True]

    # A name that is taken fails the run; the rows are committed once.
    spark.sql(f"DROP TABLE lake_{loop.db}.t")
    spark.sql(f"CREATE TABLE lake_{loop.db}.t (mine INT) USING delta LOCATION '{tmp_path / 'mine'}'")
    loop.sql("INSERT INTO t VALUES (3, 'c')", "UPDATE t SET v = 'z' WHERE id = 1")
    loop.capture()
    lease = loop.fetch()
    with pytest.raises(
        TargetError, match=r"something else under the name spark_catalog\.lake_.*\.t: a table at .*mine"
    ):
        pipeline.merge(loop.config, lease)
    pipeline.finalize(loop.config, lease, ok=False)
    version = loop.version("t")
    spark.sql(f"DROP TABLE lake_{loop.db}.t")
    (done,) = loop.apply_all()["t"]
    assert (done.skipped, loop.version("t")) == (2, version), "the changes were there"
    loop.require_equal("t")

    # The lake moves: the name follows the table that was proved.
    loop.edit("target: lake", "target: moved")
    shutil.copytree(tmp_path / "lake", tmp_path / "moved")
    loop.sql("DELETE FROM t WHERE id = 2")
    loop.capture()
    loop.apply_all()
    assert entry(loop) == CatalogEntry("EXTERNAL", "delta", f"file:{tmp_path}/moved/{loop.db}/t")


@pytest.mark.long
@pytest.mark.usefixtures("_forgets")
def test_a_catalog_that_is_away_loses_nothing(mysql9: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(
        tmp_path,
        mysql9,
        database(mysql9),
        apply=f"{NAMES}, on_error: park",
        spark=f"{{master: 'local[2]', conf: {metastore(tmp_path, address='thrift://127.0.0.1:1')}}}",
    )
    loop.sql(TABLE, "INSERT INTO t VALUES (1, 'a')")
    loop.capture()
    lease = loop.fetch()
    with pytest.raises(CatalogUnavailableError, match="the catalog cannot be reached, or refuses"):
        pipeline.merge(loop.config, lease)
    pipeline.finalize(loop.config, lease, ok=False)
    assert open_meta(loop.config).read().subscription("apply").parked == {}, "it is not the table's fault"
    (finding,) = check_local._catalog(loop.config)
    assert (finding.level, "cannot be reached" in finding.message) == ("error", True)
    loop.edit(str(metastore(tmp_path, address="thrift://127.0.0.1:1")), str(metastore(tmp_path)))
    loop.apply_all()
    loop.require_equal("t")
    assert entry(loop) is not None


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_forgets")
def test_two_sessions_share_a_metastore(mysql9: Server, tmp_path: Path, database: Database) -> None:
    """Names are registered, renamed on both sides, dropped and made again while the reader's session goes on. The
    metastore is killed and comes back."""
    with HiveMetastore(tmp_path) as hive_server:
        spark = f"{{master: 'local[2]', conf: {metastore(tmp_path, address=hive_server.address)}}}"
        loop = Loop(tmp_path, mysql9, database(mysql9), apply=NAMES, spark=spark)
        lake = f"lake_{loop.db}"
        loop.sql(TABLE, "INSERT INTO t VALUES (1, 'a')")
        loop.capture()
        loop.apply_all()
        reader = Reader(loop.config.file)
        try:
            assert reader.sql(f"SELECT * FROM {lake}.t") == [[1, "a"]]

            # Rows and columns reach the reader without a change in the catalog.
            loop.sql("ALTER TABLE t ADD COLUMN n INT", "UPDATE t SET v = 'b', n = 4")
            loop.capture()
            loop.apply_all()
            assert reader.sql(f"SELECT id, v, n FROM {lake}.t") == [[1, "b", 4]]

            # The source renames a table: the new name is registered, and the old one names the old table.
            loop.sql("RENAME TABLE t TO u", "INSERT INTO u VALUES (2, 'c', 5)")
            loop.capture()
            loop.apply_all()
            names = {name for _, name, _ in reader.sql(f"SHOW TABLES IN {lake}")}
            assert names == {"t", "u"}
            assert len(reader.sql(f"SELECT * FROM {lake}.u")) == 2

            # A reader renames: its name stays, and the configured one comes back.
            reader.sql(f"ALTER TABLE {lake}.u RENAME TO {lake}.mine")
            loop.sql("INSERT INTO u VALUES (3, 'd', 6)")
            loop.capture()
            loop.apply_all()
            for name in ("u", "mine"):
                assert len(reader.sql(f"SELECT * FROM {lake}.{name}")) == 3

            # A reader drops the name: the files stay, and the name comes back.
            reader.sql(f"DROP TABLE {lake}.u")
            assert loop.path("u").exists()
            loop.sql("INSERT INTO u VALUES (4, 'e', 7)")
            loop.capture()
            hive_server.kill()
            with pytest.raises(CatalogUnavailableError, match="the catalog cannot be reached, or refuses"):
                loop.apply_all()
            hive_server.start()
            loop.apply_all()
            assert reader.sql(f"SELECT id FROM {lake}.u ORDER BY id") == [[1], [2], [3], [4]]
            assert [f.level for f in check_local._catalog(loop.config)] == ["ok"]
        finally:
            reader.end()
        loop.require_equal("u")


@pytest.mark.long
@pytest.mark.usefixtures("_forgets")
def test_tables_that_the_catalog_owns(mysql9: Server, tmp_path: Path, database: Database) -> None:
    managed = "catalog: {name: spark_catalog, managed: true}"
    db = database(mysql9)
    loop = Loop(tmp_path, mysql9, db, apply=managed, spark=hive(tmp_path))
    loop.sql(TABLE, "INSERT INTO t VALUES (1, 'a')")
    loop.capture()
    loop.apply_all()
    assert entry(loop, database=db) == CatalogEntry("MANAGED", "delta", f"file:{loop.path('t')}")
    spark = spark_of(loop)
    assert [tuple(row) for row in spark.sql(f"SELECT * FROM {db}.t").collect()] == [(1, "a")]

    # The same place by the catalog's own rule: what SQL creates beside it lies beside it.
    spark.sql(f"CREATE TABLE {db}.own (a INT) USING delta")
    assert (loop.path("t").parent / "own" / "_delta_log").is_dir()

    loop.sql("UPDATE t SET v = 'b'", "ALTER TABLE t ADD COLUMN n INT DEFAULT 4")
    loop.capture()
    loop.apply_all()
    pipeline.snapshot(loop.config, [f"{db}.t"])
    pipeline.replay(loop.config, [f"{db}.t"])
    assert pipeline.maintain_tables(loop.config)[0].note is None
    loop.require_equal("t")
    assert entry(loop, database=db) == CatalogEntry("MANAGED", "delta", f"file:{loop.path('t')}")

    loop.edit("managed: true", "managed: false")
    loop.sql("INSERT INTO t VALUES (2, 'c', 1)")
    loop.capture()
    loop.apply_all()
    assert entry(loop, database=db) == CatalogEntry("EXTERNAL", "delta", f"file:{loop.path('t')}")
    loop.edit("managed: false", "managed: true")
    loop.sql("INSERT INTO t VALUES (3, 'c', 1)", "CREATE TABLE `Two Words` (id INT PRIMARY KEY)")
    loop.capture()
    with pytest.raises(ConfigError, match=r"the catalog would put the table at .*two_words, and apply.target says"):
        loop.apply_all()
    loop.exclude(f"{db}\\.Two Words")
    loop.apply_all()

    spark.sql(f"DROP TABLE {db}.t")
    assert not loop.path("t").exists(), "the catalog owns the files"
    loop.sql("INSERT INTO t VALUES (4, 'c', 1)")
    loop.capture()
    with pytest.raises(TargetError, match="the Delta table is gone"):
        loop.apply_all()
    BatchService(loop.config).accept_tables("apply", {f"{db}.t": None})
    pipeline.snapshot(loop.config, [f"{db}.t"])
    loop.apply_all()
    loop.require_equal("t")
    assert entry(loop, database=db) == CatalogEntry("MANAGED", "delta", f"file:{loop.path('t')}")


@pytest.mark.long
def test_drivers_under_spark_submit_register(mysql9: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), apply=NAMES, spark=hive(tmp_path, "local-cluster[1,1,1024]"))
    loop.sql(TABLE, "INSERT INTO t VALUES (1, 'a')")
    loop.capture()
    loop.apply_all()
    assert [f.level for f in check_local._catalog(loop.config)] == ["warning"]
    loop.edit("local-cluster[1,1,1024]", "local[2]")
    assert entry(loop) is not None


@pytest.fixture
def port() -> Iterator[int]:
    number = free_port()
    yield number
    session.discard()
    connect_server.stop(number)
    shutil.rmtree(connect_server.folder_of(number), ignore_errors=True)


@pytest.mark.long
@pytest.mark.usefixtures("_forgets")
def test_a_connect_server_registers(port: int, mysql9: Server, tmp_path: Path, database: Database) -> None:
    spark = f"{{remote: 'sc://localhost:{port}', conf: {metastore(tmp_path)}}}"
    loop = Loop(tmp_path, mysql9, database(mysql9), apply=NAMES, spark=spark)
    connect_server.start(loop.config.spark, port)
    loop.sql(TABLE, "INSERT INTO t VALUES (1, 'a')")
    loop.capture()
    loop.apply_all()
    assert entry(loop) == CatalogEntry("EXTERNAL", "delta", f"file:{loop.path('t')}")
    spark_of(loop).sql(f"DROP TABLE lake_{loop.db}.t").collect()
    loop.sql("INSERT INTO t VALUES (2, 'b')")
    loop.capture()
    loop.apply_all()
    assert entry(loop) == CatalogEntry("EXTERNAL", "delta", f"file:{loop.path('t')}")
    assert [f.level for f in check_local._catalog(loop.config)] == ["ok"]
    loop.require_equal("t")


@pytest.mark.long
def test_a_session_without_a_metastore_is_refused(mysql9: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9), apply=NAMES)
    loop.sql(TABLE)
    loop.capture()
    with pytest.raises(ConfigError, match=r"keeps spark_catalog in memory.*spark\.sql\.catalogImplementation: hive"):
        loop.apply_all()
    assert not loop.path("t").exists()
