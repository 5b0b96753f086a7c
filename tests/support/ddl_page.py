"""Writes docs/reference/ddl.md: what Towpath makes of every statement of the DDL corpus.

``python -m tests.support.ddl_page`` writes the page. It is made from the statements' text alone, as for MySQL 9 or, for
a statement that MySQL does not have, MariaDB 11.8; tests/servers/sql holds the same claims against the servers. What
became of each case in Delta comes from the last whole run of tests/integration/test_ddl_corpus.py, which writes its
counts into tests/ddl/outcomes.yaml and this page (``make test-ddl``).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from cdc.binlog.sql.changes import CreateTable
from cdc.binlog.sql.moment import Moment
from cdc.binlog.sql.server import ServerVersion as SqlServer
from cdc.binlog.sql.statements import classify
from tests.support.ddl_corpus import SERVERS, Case, cases_for, corpus
from tests.support.ddl_run import UTC_OFFSETS, Observed, Outcome, Verdict, judge, with_database_charset

if TYPE_CHECKING:
    from tests.support import ddl_loop

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "ddl.md"
_MOMENT = Moment(1_800_000_000, 0, "SYSTEM", explicit_defaults=None, system_zone=UTC_OFFSETS)
"""When the cases are executed: their events tell it."""
COUNTS = Path(__file__).parents[1] / "ddl" / "outcomes.yaml"
"""{server: {title of a file of the corpus: {outcome: cases}}} of the last whole run on each server: how many are equal,
and the names of the others."""
VERSIONS = {"mysql9": "9.7.4", "mariadb11": "11.8.6-MariaDB", "mariadb10": "10.11.14-MariaDB", "mysql56": "5.6.24"}
OUTCOMES: tuple[Outcome, ...] = ("no effect", "followed", "snapshot", "refused")
IN_DELTA = ("equal", "columns", "snapshot", "refused", "different")
_RUNS = """
## In Delta

`make test-ddl` runs every case through the whole loop on each server: a table with rows, the statements, one row
written once more and a new one, capture, apply, and Delta against `SELECT`. It writes these counts.

| outcome | meaning |
|---|---|
| equal | Delta shows what `SELECT` shows: the same columns in their order, and the same rows |
| columns | the same, after `cdc snapshot` had read the key and the columns whose values only the server knew |
| snapshot | the table was parked, and its message names the statement and `cdc snapshot`, which reads all columns |
| refused | the table was parked, and its message names the statement and the way out |
| different | a fault |

A case that gives apply exactly what another case or server gave it before (definitions, statements and rows) takes that
outcome, without another run of Spark. Tables without a primary key are changelogs, whose columns are compared.

| server | cases | {columns} |
|---|---|{dashes}|
"""
_EVIDENCE = """
## Statements that are followed by a look at the rows

The effect of such a statement on old rows depends on their values. Apply searches the Delta table for values that make
the effect uncertain, by Delta's statistics or one pass over the column. A table that has one needs a snapshot.

| statement | what apply looks for or computes |
|---|---|
"""
_HEAD = """\
# DDL statements

For everybody who changes tables on the source: which statements a Delta table follows, and which need a new snapshot.
The counts are those of a corpus of {statements} statements in {cases} cases, as people and tools write them
(`tests/ddl/corpus`). Every case runs on the real servers; what Towpath says of the table's definition and of its old
rows is held against `information_schema` and `SELECT`.

| outcome | meaning |
|---|---|
| no effect | neither rows nor columns change: an index, a constraint, a comment, a view, a partitioning |
| followed | the statement tells the new definition, and what every old row holds, perhaps by a look at the rows |
| snapshot | only the server knows what old rows hold; the table is read anew beside the stream |
| refused | the statement is not understood, or turns the table into something that Towpath does not read |

A statement in several parts counts once, by its worst part. [Schema changes](../how-to/schema-changes.md) says what you
can set for each outcome.

## Counts

| origin | cases | {columns} |
|---|---|{dashes}|
"""


def predicted(case: Case) -> Verdict:
    """Returns Towpath's decision about a case, from its text alone."""
    server = next(name for name in SERVERS if name in case.servers)
    sql_server = SqlServer.parse(VERSIONS[server])
    before = {}
    for table in case.tables:
        (created,) = classify(table.create, "d", 0, sql_server).changes
        assert isinstance(created, CreateTable) and created.schema is not None
        before[table.name] = with_database_charset(created.schema, "utf8mb4", None)
    observed = Observed(case, before=before, statements=[(sql, case.sql_mode, _MOMENT) for sql in case.sql])
    return judge(observed, sql_server, compare=False)


def page() -> str:
    """The page's text."""
    cases = corpus()
    verdicts = {case.name: predicted(case) for case in cases}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for case in cases:
        counts[case.origin][verdicts[case.name].outcome] += 1
    text = _HEAD.format(
        statements=sum(len(case.sql) for case in cases), cases=len(cases),
        columns=" | ".join(OUTCOMES), dashes="|".join("---" for _ in OUTCOMES),
    )  # fmt: skip
    for origin, origin_counts in counts.items():
        text += f"| {origin} | {origin_counts.total()} | {' | '.join(str(origin_counts[outcome]) for outcome in OUTCOMES)} |\n"
    total = sum(counts.values(), Counter())
    text += f"| all | {total.total()} | {' | '.join(str(total[outcome]) for outcome in OUTCOMES)} |\n"
    for outcome, title in (("snapshot", "Statements that need a snapshot"), ("refused", "Refused statements")):
        text += f"\n## {title}\n\n| statement | reason |\n|---|---|\n"
        for case in cases:
            verdict = verdicts[case.name]
            if verdict.outcome == outcome:
                text += f"| {_code(case.sql)} | {_plain(verdict.reasons[0])} |\n"
    text += _EVIDENCE
    for case in cases:
        verdict = verdicts[case.name]
        if verdict.outcome == "followed" and verdict.evidence:
            text += f"| {_code(case.sql)} | {_plain('; '.join(verdict.evidence))} |\n"
    runs = read_counts()
    return text + _runs(runs) if runs else text


def read_counts() -> dict[str, dict[str, dict[str, int]]]:
    """Returns the counts of the last whole run on each server."""
    return {
        server: {
            origin: {kind: cases if isinstance(cases, int) else len(cases) for kind, cases in kinds.items()}
            for origin, kinds in origins.items()
        }
        for server, origins in _read().items()
    }


def read_outcomes(server: str) -> dict[str, str]:
    """Returns the outcome of each case in the last whole run on a server, by the case's name. Titles with other cases
    than the run had are left out."""
    outcomes: dict[str, str] = {}
    for origin, kinds in _read()[server].items():
        names = [case.name for case in cases_for(server) if case.origin == origin]
        named = {name: kind for kind, cases in kinds.items() if not isinstance(cases, int) for name in cases}
        if kinds.get("equal", 0) == len(names) - len(named) and named.keys() <= set(names):
            outcomes |= {name: named.get(name, "equal") for name in names}
    return outcomes


def _read() -> dict[str, dict[str, dict[str, Any]]]:
    content: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(COUNTS.read_text("utf-8")) if COUNTS.exists() else {}
    return content


def write_counts(server: str, outcomes: Sequence[ddl_loop.Outcome]) -> None:
    """Writes the outcomes of a whole run on a server, and the page."""
    by_origin: dict[str, dict[str, Any]] = defaultdict(dict)
    for outcome in outcomes:
        kinds = by_origin[outcome.case.origin]
        if outcome.kind == "equal":
            kinds["equal"] = kinds.get("equal", 0) + 1
        else:
            kinds.setdefault(outcome.kind, []).append(outcome.case.name)
    all_outcomes = _read() | {server: {origin: dict(sorted(kinds.items())) for origin, kinds in by_origin.items()}}
    ordered = {name: all_outcomes[name] for name in SERVERS if name in all_outcomes}
    COUNTS.write_text(yaml.safe_dump(ordered, sort_keys=False, allow_unicode=True, width=120), "utf-8")
    PAGE.write_text(page(), "utf-8")


def _runs(counts: dict[str, dict[str, dict[str, int]]]) -> str:
    text = _RUNS.format(columns=" | ".join(IN_DELTA), dashes="|".join("---" for _ in IN_DELTA))
    by_origin: dict[str, Counter[str]] = defaultdict(Counter)
    for server, origins in counts.items():
        for origin, kinds in origins.items():
            by_origin[origin].update(kinds)
        text += _row(_TITLES[server], sum((Counter(kinds) for kinds in origins.values()), Counter()))
    text += f"\n| origin, on all servers | cases | {' | '.join(IN_DELTA)} |\n"
    text += f"|---|---|{'|'.join('---' for _ in IN_DELTA)}|\n"
    for origin, outcomes in by_origin.items():
        text += _row(origin, outcomes)
    return text + _row("all", sum(by_origin.values(), Counter()))


def _row(title: str, outcomes: Counter[str]) -> str:
    return f"| {title} | {outcomes.total()} | {' | '.join(str(outcomes[kind]) for kind in IN_DELTA)} |\n"


_TITLES = {"mysql9": "MySQL 9", "mariadb11": "MariaDB 11.8", "mariadb10": "MariaDB 10.11", "mysql56": "MySQL 5.6"}


def _code(statements: tuple[str, ...]) -> str:
    shown = " ".join("; ".join(statements).split())
    shown = shown if len(shown) <= 160 else shown[:159] + "…"
    return (
        "<code>"
        + shown.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;").replace("`", "&#96;")
        + "</code>"
    )


def _plain(text: str) -> str:
    return text.partition(". Fill the table")[0].replace("|", "&#124;").replace("`", "")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(f"{PAGE.relative_to(Path.cwd())} written")
