"""Golden tests of capture: a file of SQL statements, and as a text what the store must hold after them.

``tests/golden/sql/NAME.sql`` begins with comments; one of them, ``-- servers: mysql9 mariadb11``, names the servers for
which ``NAME.txt`` holds. A statement ends with a semicolon at the end of a line. ``-- session: NAME`` continues on a
connection of that name, which stays open to the end of the file.

The text has the transactions in the order in which the store has them, with the rows before and after each change.
Positions, times, GTIDs and the database's name are left out, since each run has others.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdc.binlog.constants import ROW_EVENTS, EventType
from cdc.binlog.events import parse_query, parse_table_name
from cdc.decode.kernels.constants import OP_DELETE, OP_INSERT
from cdc.decode.reader import DecodeOptions, read
from cdc.store.formats.index import read_entries
from cdc.store.formats.layout import list_segments
from cdc.store.reader.reader import StoreReader
from cdc.testing.servers import Server

FOLDER = Path(__file__).parents[1] / "golden" / "sql"
_DIRECTIVE = re.compile(r"--\s*(servers|needs|session):\s*(.*)")
_GENERATED = re.compile(r"\s*/\*.*?\*/")
_WITHOUT_SPACES = re.compile(r"\s+")


@dataclass(frozen=True)
class Script:
    """A file of statements."""

    name: str
    servers: tuple[str, ...]
    features: tuple[str, ...]
    """Features that the servers need, by their names in :data:`tests.support.versions.SINCE`."""
    statements: tuple[tuple[str, str], ...]
    """Pairs of a session's name and a statement."""

    @property
    def database(self) -> str:
        return f"golden_{self.name}"

    @property
    def expected(self) -> Path:
        return FOLDER / f"{self.name}.txt"

    def run(self, server: Server) -> Iterator[str]:
        """Executes the statements in a new database, and yields each one after it."""
        server.execute(f"DROP DATABASE IF EXISTS {self.database}", f"CREATE DATABASE {self.database}")
        with ExitStack() as stack:
            cursors: dict[str, Any] = {}
            for session, statement in self.statements:
                if session not in cursors:
                    cursors[session] = stack.enter_context(stack.enter_context(server.connect()).cursor())
                    cursors[session].execute(f"USE {self.database}")
                cursors[session].execute(statement)
                yield statement


def scripts() -> list[Script]:
    """Returns all scripts, by name."""
    return [_parse(path) for path in sorted(FOLDER.glob("*.sql"))]


def _parse(path: Path) -> Script:
    servers: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    session, lines, statements = "first", [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        if match := _DIRECTIVE.match(line):
            if match[1] == "servers":
                servers = tuple(match[2].split())
            elif match[1] == "needs":
                features = tuple(part.strip() for part in match[2].split(","))
            else:
                session = match[2].strip()
        elif line.strip() and not line.startswith("--"):
            lines.append(line)
            if line.rstrip().endswith(";"):
                statements.append((session, "\n".join(lines).rstrip().removesuffix(";")))
                lines = []
    assert servers, f"{path.name} names no servers"
    assert not lines, f"the last statement of {path.name} has no semicolon"
    return Script(path.stem, servers, features, tuple(statements))


# --- the text of a store


def texts(store: Path) -> dict[str, str]:
    """Returns the text of each database in a store whose name begins with ``golden_``; the name without that."""
    rows = {name: _rows(store, name) for name in StoreReader(store).table_names() if name.startswith("golden_")}
    lines: dict[str, list[str]] = defaultdict(list)
    for segment in list_segments(store):
        data = segment.read_bytes()
        for entry in read_entries(segment):
            if not entry["length"]:
                continue
            at = int(entry["offset"])
            database, transaction_lines = _transaction(data[at : at + int(entry["length"])], int(entry["seq"]), rows)
            lines[database] += transaction_lines
    assert not any(rows.values()), "the decoder gives rows that no transaction has"
    return {name.removeprefix("golden_"): "\n".join(database_lines) + "\n" for name, database_lines in lines.items()}


def _transaction(data: bytes, seq: int, rows: dict[str, dict[tuple[int, int], list[str]]]) -> tuple[str, list[str]]:
    """Returns a transaction's database and lines. Removes from ``rows`` what it uses."""
    tables: dict[int, str] = {}
    ordinals: dict[str, int] = defaultdict(int)
    database, lines, statements, at = "", [], [], 0
    while at < len(data):
        event = data[at : at + int.from_bytes(data[at + 9 : at + 13], "little")]
        at += len(event)
        if event[4] == EventType.TABLE_MAP:
            number, database, table = parse_table_name(event)
            tables[number] = f"{database}.{table}"
        elif event[4] in ROW_EVENTS:
            name = tables[int.from_bytes(event[19:25], "little")]
            lines += rows[name].pop((seq, ordinals[name]))
            ordinals[name] += 1
        elif event[4] in (EventType.QUERY, EventType.MARIADB_QUERY_COMPRESSED):
            query = parse_query(event, has_checksum=True)
            if not re.match(r"(BEGIN|COMMIT|ROLLBACK|XA)\b", query.sql):
                database = query.db or database
                statements.append("statement: " + _WITHOUT_SPACES.sub(" ", _GENERATED.sub("", query.sql)).strip())
    return database, statements + (["transaction", *lines] if lines else [])


def _rows(store: Path, table: str) -> dict[tuple[int, int], list[str]]:
    """Returns the lines of a table's changes, by seq and number of the row event in its transaction."""
    lines_by_event: dict[tuple[int, int], list[str]] = defaultdict(list)
    short = table.partition(".")[2]
    for batch in read(store, table=table, options=DecodeOptions(images="both")):
        columns = [name for name in batch.schema.names if not name.startswith("_")]
        for row in batch.to_pylist():
            image = _image({name: row[name] for name in columns})
            lines = lines_by_event[row["_seq"], row["_row"] >> 32]
            if row["_op"] == OP_INSERT:
                lines.append(f"  insert {short}: {image}")
            elif row["_op"] == OP_DELETE:
                lines.append(f"  delete {short}: {_image(row['_before'])}")
            else:
                lines.append(f"  update {short}: {_image(row['_before'])}")
                lines.append(f"  {'to':>{len('update ' + short)}}: {image}")
    return dict(lines_by_event)


def _image(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={_value(value)}" for name, value in row.items())


def _value(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return "'" + "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in escaped) + "'"
    if isinstance(value, bytes):
        return f"x'{value.hex()}'"
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ").replace("+00:00", " UTC")
    if isinstance(value, decimal.Decimal):
        return f"{value:f}"
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return str(value)
