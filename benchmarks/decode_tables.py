"""The tables with special workloads of ``benchmarks decode``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cdc.testing.servers import Server

DB = "towpath_bench_decode"
BATCH = 5000


@dataclass(frozen=True)
class Heavy:
    """A table, and how to fill it. ``fill`` and ``change`` use the table ``numbers`` (0 to BATCH - 1)."""

    name: str
    what: str
    create: str
    fill: str
    """Contains one ``%s``, the offset to add to the numbers."""
    rows: int
    change: str | None = None
    """An update of all rows. If given, its row events are decoded instead of those of the inserts."""
    server: Callable[[Server], bool] = lambda _: True


def _wide() -> Heavy:
    kinds = (
        "BIGINT",
        "INT",
        "DECIMAL(18,4)",
        "DOUBLE",
        "VARCHAR(40)",
        "DATETIME(3)",
        "TINYINT",
        "DATE",
        "SMALLINT",
        "CHAR(8)",
    )
    values = ("n * 7919", "n", "n / 7", "n / 3", "CONCAT('value ', n)", "'2024-01-01 00:00:00.123' + INTERVAL n SECOND",
              "n % 100", "'2024-01-01' + INTERVAL n % 1000 DAY", "n % 30000", "LPAD(n, 8, '0')")  # fmt: skip
    columns = ", ".join(f"c{i} {kinds[i % 10]}" for i in range(99))
    chosen = ", ".join(values[i % 10].replace("%", "%%") for i in range(99))
    return Heavy(
        "wide", "100 columns of ten types", f"(id BIGINT PRIMARY KEY, {columns})", f"SELECT %s + n, {chosen}", 100_000
    )


TEXTS = Heavy(
    "texts",
    "8 texts, about 600 bytes, four character sets",
    """(id BIGINT PRIMARY KEY, a TEXT CHARACTER SET utf8mb4, b VARCHAR(400) CHARACTER SET utf8mb4, c VARCHAR(200) CHARACTER SET latin1,
    d VARCHAR(200) CHARACTER SET latin1, e VARCHAR(100) CHARACTER SET gbk, f VARCHAR(100) CHARACTER SET utf16,
    g CHAR(30) CHARACTER SET utf8mb4, h VARCHAR(100) CHARACTER SET ascii)""",
    """SELECT %s + n, REPEAT(CONCAT('Zeile ', n, ' äöü '), 12), REPEAT(CONCAT('é', n), 15), REPEAT(CONCAT('Grüße ', n), 8),
    CONCAT('straße ', n), CONCAT('汉字', n, '中文'), CONCAT('utf16 ', n, ' ж'), CONCAT('code ', n), REPEAT(CONCAT(n, ' '), 8)""",
    200_000,
)
DOCUMENTS = Heavy(
    "json",
    "one JSON document of about 200 bytes",
    "(id BIGINT PRIMARY KEY, doc JSON)",
    """SELECT %s + n, JSON_OBJECT('id', n, 'name', CONCAT('customer ', n), 'active', n %% 2 = 0, 'tags', JSON_ARRAY('a', 'b', CONCAT('t', n)),
    'address', JSON_OBJECT('street', CONCAT('Canal Street ', n), 'zip', LPAD(n, 5, '0'), 'geo', JSON_ARRAY(n, n + 1)), 'note', NULL)""",
    300_000,
    server=lambda server: server.kind.name.startswith("mysql9"),
)
UPDATES = Heavy(
    "updates",
    "updates of 20 columns, both images in the log",
    "(id BIGINT PRIMARY KEY, n INT, " + ", ".join(f"c{i} VARCHAR(20), d{i} INT" for i in range(9)) + ")",
    "SELECT %s + n, n, " + ", ".join("CONCAT('v', n), n" for _ in range(9)),
    200_000,
    change="n = n + 1, c3 = CONCAT('w', n)",
)
HEAVY = (_wide(), TEXTS, DOCUMENTS, UPDATES)
