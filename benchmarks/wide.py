"""The lines of wide tables: few changes in each of ten tables of 25 columns of many types, in a warm session.

A batch of few changes takes what Spark does around each table, not what it does for rows. That grows with the number of
columns, so narrow tables do not show it. The first rounds, in which the JVM compiles itself, are not counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from statistics import median

from benchmarks.accounting import Stopwatch
from benchmarks.lines import Measurement, Options
from benchmarks.workload import apply, capture, count, destination

TABLES, ROWS, CHANGES = 10, 1_000, 72
MODES = {"wide-upsert": "upsert", "wide-scd2": "scd2"}
_WARM_UP = 5
_COLUMNS = {
    "tiny": ("TINYINT", "{n} % 100"),
    "utiny": ("TINYINT UNSIGNED", "{n} % 200"),
    "small": ("SMALLINT", "-{n}"),
    "medium": ("MEDIUMINT UNSIGNED", "{n} * 3"),
    "whole": ("INT UNSIGNED", "{n} * 5"),
    "big": ("BIGINT", "-{n} * 7000000000"),
    "ubig": ("BIGINT UNSIGNED", "18446744073709551615 - {n}"),
    "price": ("DECIMAL(12, 2)", "{n} / 7"),
    "precise": ("DECIMAL(38, 10)", "{n} / 3"),
    "ratio": ("FLOAT", "{n} / 4"),
    "score": ("DOUBLE", "{n} / 9"),
    "day": ("DATE", "'2026-01-02' + INTERVAL {n} % 300 DAY"),
    "moment": ("DATETIME(6)", "'2026-01-02 03:04:05.678901'"),
    "stamp": ("TIMESTAMP(6) NULL", "'2026-01-02 03:04:05.678901'"),
    "lasting": ("TIME", "'-12:34:56'"),
    "vintage": ("YEAR", "2000 + {n} % 100"),
    "code": ("CHAR(12)", "CONCAT('c', {n})"),
    "name": ("VARCHAR(100)", "CONCAT('name ', {n})"),
    "note": ("TEXT", "REPEAT('text ', {n} % 20)"),
    "status": ("ENUM('new', 'paid', 'sent')", "1 + {n} % 3"),
    "flags": ("SET('a', 'b', 'c')", "{n} % 8"),
    "bits": ("BIT(8)", "{n} % 256"),
    "digest": ("BINARY(16)", "UNHEX(MD5({n}))"),
    "content": ("BLOB", "REPEAT('b', {n} % 50)"),
}
"""The type of each column beside the key, and an SQL expression of its value in row ``{n}``."""


def lines(options: Options, chosen: Collection[str]) -> Iterator[Measurement]:
    """The lines of the group ``wide``."""
    from cdc.lake.runtime import session

    for name, mode in MODES.items():
        if name in chosen:
            yield _line(options, name, mode)
            session.discard()  # the next line counts the CPU seconds of a JVM of its own


def _line(options: Options, name: str, mode: str) -> Measurement:
    with destination(options.cores, more=f", mode: {mode}") as (server, config, tree):
        columns = ", ".join(f"{column} {kind}" for column, (kind, _) in _COLUMNS.items())
        names = [f"wide{number}" for number in range(TABLES)]
        server.execute(
            *(f"CREATE TABLE bench.{table} (id INT AUTO_INCREMENT PRIMARY KEY, {columns})" for table in names)
        )
        server.execute(*(_insert(table, 0, ROWS) for table in names))
        capture(config)
        apply(config)
        spans = []
        for turn in range(_WARM_UP + options.rounds):
            server.execute(*(statement for number in range(TABLES) for statement in _changes(number, turn)))
            capture(config)
            with Stopwatch(tree) as watch:
                apply(config)
            spans.append(watch.span)
        if mode == "upsert" and (rows := count(config, names[0])) != (expected := ROWS + 2 * len(spans)):
            raise RuntimeError(f"{names[0]} has {rows} rows instead of {expected}")
        counted = spans[_WARM_UP:]
        seconds = median([span.seconds for span in counted])
        return Measurement(
            name,
            value=seconds,
            ours_s=seconds,
            cpu_s=median([span.cpu_s for span in counted]),
            peak_mb=tree.peak_mb(*counted),
        )


def _changes(number: int, turn: int) -> list[str]:
    """Returns the changes of a table in one round: seven, or eight in two of the tables, together :data:`CHANGES`."""
    table = f"bench.wide{number}"
    updated = 3 + (number < CHANGES - 7 * TABLES)
    ids = ", ".join(str(1 + (turn * 131 + i * 197) % (ROWS // 2)) for i in range(updated))
    return [
        _insert(f"wide{number}", ROWS + 3 * turn, 3),
        f"UPDATE {table} SET whole = whole + 1, note = CONCAT(note, '!') WHERE id IN ({ids})",
        f"DELETE FROM {table} WHERE id = {ROWS // 2 + 1 + turn}",
    ]


def _insert(table: str, first: int, rows: int) -> str:
    values = ", ".join(value.format(n=f"({first} + seq)") for _, value in _COLUMNS.values())
    return f"INSERT INTO bench.{table} SELECT NULL, {values} FROM bench.seq_1_to_{rows}"
