"""Renders ``docs/types.md`` from runs of the matrix on all servers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from tests.support.type_matrix.compare import OPS, SNAPSHOT, Line
from tests.support.type_matrix.run import Run

TITLES = {"mysql9": "MySQL 9", "mysql56": "MySQL 5.6", "mariadb11": "MariaDB 11.8", "mariadb10": "MariaDB 10.11"}
"""The servers in the order of the page."""
_VERSIONS = re.compile(r"^\| (MySQL|MariaDB) [0-9.]+ \| ([^|]+) \|", re.MULTILINE)
_DECIMAL = re.compile(r"decimal\(\d+,\d+\)")

_HEAD = """\
# Types: what each type becomes in Delta

This page lists, for each MySQL and MariaDB type and character set, its type in Delta, and how many values of it were
compared with SELECT. `make types` generates the page; do not edit it. A test renders it again and fails if it differs.

Each server is asked for its types and character sets: every word that it knows (keywords, help pages, plugins) is tried
as a column type. The test fails for a type that a server accepts and that has no edge values. The values (limits, all
sizes, every character of each character set up to U+FFFF, NULL) are inserted, updated and deleted in a real server.
Each is compared with SELECT: the new value of an insert, both values of an update, and the old value of a delete, which
a table in mode `append` holds twice, in its columns and in `_before`. Types and signs must agree, and −0.0 differs from
0.0. All bits of a FLOAT are compared. Dates that Delta cannot represent are compared with null, the default of
`zero_dates`. A snapshot reads the rows, too, after the inserts and after the updates; its values are compared likewise.
"""


def render(runs: Sequence[Run]) -> str:
    """Renders the page. ``runs`` has one run of each kind in :data:`TITLES`."""
    by_kind = {run.kind: run for run in runs}
    ordered = [by_kind[kind] for kind in TITLES]
    lines = [_HEAD, "| server | version | types | character sets | values compared |", "|---|---|--:|--:|--:|"]
    for run in ordered:
        have = run.catalog
        lines.append(
            f"| {TITLES[run.kind]} | {have.version} | {len(have.types)} | {len(have.charsets)} | {run.result.total:,} |"
        )
    lines.append(f"| all | | | | {sum(run.result.total for run in ordered):,} |")
    lines += ["", "## Types", "", *_types(ordered), "", "## Character sets", "", *_charsets(ordered)]
    lines += ["", "## Other words for the same types", "", *_words(ordered)]
    return "\n".join(lines) + "\n"


def versions(page: str) -> list[str]:
    """Returns the exact versions of the servers on a page, in its order."""
    return [match[2] for match in _VERSIONS.finditer(page)]


def types(page: str) -> set[tuple[str, str]]:
    """Returns the types on a page, each with its Delta type."""
    rows = (line.split(" | ") for line in page.splitlines() if line.startswith("| ") and line.count("|") == 9)
    return {(cells[0].removeprefix("| "), cells[1]) for cells in rows}


def _types(runs: Sequence[Run]) -> list[str]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    deltas: dict[str, set[str]] = defaultdict(set)
    notes: dict[str, set[str]] = defaultdict(set)
    kinds: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for (line, op), count in run.result.counts.items():
            counts[line.row][op] += count
            deltas[line.row].add(line.delta)
            kinds[line.row].add(run.kind)
            notes[line.row] |= {line.note} if line.note else set()
    table = [
        "| type | in Delta | servers | inserts | updates | deletes | snapshot | |",
        "|---|---|---|--:|--:|--:|--:|---|",
    ]
    for row in sorted(counts, key=_order):
        numbers = " | ".join(f"{counts[row][op]:,}" for op in (*OPS, SNAPSHOT))
        note = "; ".join(sorted(notes[row]))
        table.append(f"| {row} | {_delta(deltas[row])} | {_servers(kinds[row])} | {numbers} | {note} |")
    return table


def _charsets(runs: Sequence[Run]) -> list[str]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    types: dict[str, set[str]] = defaultdict(set)
    kinds: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for (line, op), count in run.result.counts.items():
            if line.charset is not None:
                name = _charset(line)
                counts[name][op] += count
                types[name].add(line.row)
                kinds[name].add(run.kind)
    every = max(types.values(), key=len)
    table = [
        "| character set | types | servers | inserts | updates | deletes | snapshot |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for name in sorted(counts):
        numbers = " | ".join(f"{counts[name][op]:,}" for op in (*OPS, SNAPSHOT))
        listed = f"all {len(every)}" if types[name] == every else ", ".join(sorted(types[name]))
        table.append(f"| {name} | {listed} | {_servers(kinds[name])} | {numbers} |")
    return [*table, "", f"The {len(every)} types: {', '.join(sorted(every))}."]


def _charset(line: Line) -> str:
    # MySQL 5.6 uses the old name.
    return "utf8mb3" if line.charset == "utf8" else str(line.charset)


def _words(runs: Sequence[Run]) -> list[str]:
    words: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for run in runs:
        for name, spellings in run.catalog.types.items():
            for word in spellings:
                if word != name.upper():
                    words[name.upper()][word].add(run.kind)
    table = ["| type | also written |", "|---|---|"]
    for name in sorted(words):
        listed = [
            word if len(kinds) == len(TITLES) else f"{word} ({_servers(kinds)})"
            for word, kinds in sorted(words[name].items())
        ]
        table.append(f"| {name} | {', '.join(listed)} |")
    return table


def _delta(names: Iterable[str]) -> str:
    """Joins type names, with ``decimal(p,s)`` for several decimals."""
    sorted_names = sorted(names)
    return (
        ", ".join(sorted_names)
        if len(sorted_names) == 1
        else ", ".join(sorted({_DECIMAL.sub("decimal(p,s)", name) for name in sorted_names}))
    )


def _servers(kinds: set[str]) -> str:
    return "all" if kinds == set(TITLES) else ", ".join(TITLES[kind] for kind in TITLES if kind in kinds)


def _order(row: str) -> tuple[bool, str]:
    """Sorts types first, then features: generated columns, names."""
    return row[0].islower() or row.startswith("COMPRESSED"), row
