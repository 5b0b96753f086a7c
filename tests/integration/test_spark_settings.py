"""Settings of Spark that mention what values mean: with each of them set otherwise, Delta shows what SELECT shows."""

from __future__ import annotations

import itertools
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cdc.config.spark import FIXED_SETTINGS
from cdc.lake import pipeline
from cdc.lake.runtime import session
from cdc.testing.servers import Server
from tests.support.apply import Loop
from tests.support.ddl_loop import delta_rows, shown_rows

Database = Callable[[Server], str]

_WORDS = re.compile(
    r"ansi|case|legacy|rebase|timestamp|time_?zone|storeAssignment|char|decimal|int96|parquet\.(write|binary)",
    re.IGNORECASE,
)
_CHOICES = {
    "spark.sql.avro.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.avro.datetimeRebaseModeInWrite": "LEGACY",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
}
"""Values of settings that are neither true nor false."""

_AT_ONCE = 16
COLUMNS = """id INT PRIMARY KEY, tiny TINYINT UNSIGNED, big BIGINT UNSIGNED, price DECIMAL(28,10), low DECIMAL(9,9),
    single FLOAT, number DOUBLE, letters CHAR(6), words VARCHAR(20), raw VARBINARY(8), fixed BINARY(4), bits BIT(9),
    day DATE, moment DATETIME(6), instant TIMESTAMP(6) NULL, clock TIME(3), mood ENUM('a', 'B'), flags SET('x', 'y')"""
_VALUES = """
1, 255, 18446744073709551615, 999999999999999999.9999999999, 0.999999999, 1.5, 1e300, 'ab  ', 'Straße',
  x'00ff', 'a', 257, '1000-01-01', '1500-02-28 23:59:59.999999', '1970-01-01 00:00:01', '-838:59:59', 'a', 'x,y';
2, 0, 0, -0.0000000001, -0.000000001, -3.4e38, -0.0, '', ' x ', x'',
  '', 0, '1582-10-04', '1582-10-15 00:00:00', '2026-03-29 01:30:00.000001', '00:00:00.001', 'B', '';
3, 7, 9223372036854775808, 0, 0, 0, 1e-300, 'é', '', NULL,
  'abcd', 511, '9999-12-31', '9999-12-31 23:59:59.999999', '2038-01-19 03:14:07', '12:00:00', NULL, NULL
"""
ROWS = _VALUES.split(";")


@contextmanager
def everywhere(loop: Loop, settings: Mapping[str, str]) -> Iterator[None]:
    """Sets settings as a file of defaults does, for every session of this process's Spark from now on."""
    warm = session.acquire(loop.config.spark)
    shared: Any = warm.spark._jsparkSession.sharedState().conf()
    before = {key: warm.spark.conf.get(key, None) for key in settings}
    for key, value in settings.items():
        shared.set(key, value)
        warm.spark.conf.set(key, value)
    warm.tables.close()
    try:
        yield
    finally:
        for key, old in before.items():
            shared.remove(key)
            warm.spark.conf.unset(key) if old is None else warm.spark.conf.set(key, old)
        warm.tables.close()


def others(loop: Loop) -> dict[str, str]:
    """Returns the settings that mention values' meaning and are not fixed, each with another value than its own."""
    spark = session.acquire(loop.config.spark).spark
    jvm: Any = spark._jvm
    conf = getattr(jvm.org.apache.spark.sql.internal, "SQLConf$")
    entries = getattr(conf, "MODULE$").getConfigEntries().iterator()  # those that are not documented included
    changed: dict[str, str] = {}
    while entries.hasNext():
        entry = entries.next()
        key, value = str(entry.key()), str(entry.defaultValueString())
        if not key.startswith("spark.sql.") or not _WORDS.search(key) or key in FIXED_SETTINGS:
            continue
        if not spark.conf.isModifiable(key):  # the session has it from its start
            continue
        if value in ("true", "false"):
            changed[key] = "false" if value == "true" else "true"
        elif key in _CHOICES:
            changed[key] = _CHOICES[key]
    return dict(sorted(changed.items()))


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_no_setting_changes_what_values_mean(mysql9: Server, tmp_path: Path, database: Database) -> None:
    """Many settings at a time, and fewer of them where rows differ, until the one is known."""
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql(f"CREATE TABLE t ({COLUMNS})", *(f"INSERT INTO t VALUES ({row})" for row in ROWS))
    loop.capture()
    loop.apply_all()
    assert delta_rows(loop.config, loop.db, "t") == shown_rows(mysql9, loop.db, "t")
    wrong: list[str] = []
    runs = itertools.count()

    def work(settings: Mapping[str, str]) -> None:
        number = next(runs)
        loop.sql(
            "DELETE FROM t WHERE id = 1",
            f"INSERT INTO t VALUES ({ROWS[0]})",
            "UPDATE t SET moment = '1500-02-28 12:00:00.123456', words = CONCAT(words, '.') WHERE id = 2",
            f"UPDATE t SET words = '{number}' WHERE id = 3",
            f"ALTER TABLE t ADD COLUMN c{number} DATETIME(3) DEFAULT '1582-10-04 10:00:00.5'",
            "UPDATE t SET words = 'x' WHERE id = 2",
            f"ALTER TABLE t DROP COLUMN c{number}",
        )
        loop.capture()
        with everywhere(loop, settings):
            loop.apply_all()
            assert delta_rows(loop.config, loop.db, "t") == shown_rows(mysql9, loop.db, "t")
            assert pipeline.verify(loop.config, [f"{loop.db}.t"]).exit_code == 0

    def check(settings: Sequence[tuple[str, str]]) -> None:
        try:
            work(dict(settings))
        except Exception as error:  # noqa: BLE001 - all settings are named together
            loop.apply_all()
            if len(settings) == 1:
                wrong.append(f"{settings[0]}: {type(error).__name__}: {str(error)[:300]}")
                return
            middle = len(settings) // 2
            check(settings[:middle])
            check(settings[middle:])

    settings = list(others(loop).items())
    print(len(settings), "settings", flush=True)
    for at in range(0, len(settings), _AT_ONCE):
        check(settings[at : at + _AT_ONCE])
        print(at, wrong, flush=True)
    assert not wrong, "\n".join(wrong)
    assert len(settings) > 50


def test_files_of_a_local_disk_start_no_process(mysql9: Server, tmp_path: Path, database: Database) -> None:
    loop = Loop(tmp_path, mysql9, database(mysql9))
    loop.sql("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    loop.capture()
    loop.apply_all()
    spark = session.acquire(loop.config.spark).spark
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    java = gateway.proc.pid
    ended = cpu_of_ended_processes(java)
    loop.sql("INSERT INTO t VALUES (2)", "ALTER TABLE t ADD COLUMN v INT DEFAULT 3", "DELETE FROM t WHERE id = 1")
    loop.capture()
    loop.apply_all()
    assert delta_rows(loop.config, loop.db, "t") == shown_rows(mysql9, loop.db, "t")
    assert cpu_of_ended_processes(java) == ended

    hadoop, conf = jvm.org.apache.hadoop.fs, spark.sparkContext._jsc.hadoopConfiguration()
    files = hadoop.FileSystem.get(jvm.java.net.URI("file:///"), conf)
    context = hadoop.FileContext.getFileContext(conf)
    file, link = tmp_path / "file", tmp_path / "link"
    files.create(
        hadoop.Path(str(file)), jvm.org.apache.hadoop.fs.permission.FsPermission(0o640), True, 4096, 1, 4096, None
    ).close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    files.setPermission(hadoop.Path(str(tmp_path)), jvm.org.apache.hadoop.fs.permission.FsPermission(0o1755))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o1755
    link.symlink_to(file)
    status = context.getFileLinkStatus(hadoop.Path(str(link)))
    assert status.isSymlink() and status.getSymlink().toString().endswith(str(file))
    assert not context.getFileLinkStatus(hadoop.Path(str(file))).isSymlink()
    assert not context.util().exists(hadoop.Path(str(tmp_path / "none")))


def cpu_of_ended_processes(parent: int) -> tuple[int, int]:
    """Returns the CPU time of the processes that a process has started and that have ended, in ticks."""
    fields = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()
    return int(fields[13]), int(fields[14])
