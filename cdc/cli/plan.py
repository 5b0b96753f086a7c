"""``cdc plan``: says what the statements of a migration will do to the Delta tables, before they are executed."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc.base.errors import ConfigError, UsageError
from cdc.cli.common import Json, load, one_line, out, print_json, say, working
from cdc.cli.server_url import ServerUrl, login_at
from cdc.client import open_meta
from cdc.config import DestinationConfig, SourceConfig
from cdc.lake.migration.trial import ServerToAsk
from cdc.source.connection import connect, require_server

if TYPE_CHECKING:
    from cdc.lake.migration.planner import Kind, TableVerdict
    from cdc.lake.migration.run import MigrationPlan, TableReport
    from cdc.lake.migration.trial import Answer, Trial

EXIT_CODES: dict[Kind, int] = {"wrong": 2, "snapshot": 3, "refused": 4}
"""By the gravest verdict; 0 for every other one."""
DIFFERENT = 5
"""A definition on the server is not the one that the plan expects."""
PASSWORD_VARIABLE = "CDC_PLAN_PASSWORD"
_WIDTH = 100
_SQL_MODE = "STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION"


def plan(
    ctx: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[DEST] FILE",
            help="The destination, which may be left out where there is only one, and a file of SQL statements; - is "
            "standard input.",
            show_default=False,
        ),
    ],
    database: Annotated[
        str, typer.Option(metavar="DB", help="Database of names without one, as after USE DB.", show_default=False)
    ] = "",
    sql_mode: Annotated[
        str, typer.Option(metavar="MODES", help="sql_mode of the session that will execute the statements.")
    ] = _SQL_MODE,
    time_zone: Annotated[str, typer.Option(metavar="ZONE", help="time_zone of that session.")] = "SYSTEM",
    schemas: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="File of table definitions (schemas/SEQ.json of a store), instead of the newest of the store.",
            show_default=False,
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="source|URL",
            help="A server that executes the statements on empty tables in schemas of their own, which it drops: the "
            f"source, or mysql://USER@HOST:PORT with the password in ${PASSWORD_VARIABLE}.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Say what a migration will do to the Delta tables, before it is executed.

    For each statement and table: followed in place, followed by writing rows anew, a snapshot beside the stream, or
    refused. The verdicts come from the code that apply runs. Without --server nothing is executed. With it the server
    says which statements it accepts, with which algorithm and lock, and whether the definitions become those that the
    plan expects.

    Exit code 0 means that every table follows, 3 that a table needs a snapshot or may need one, depending on its rows,
    4 that a statement is refused, 5 that a definition on the server is not the expected one, and 2 that the file cannot
    be planned, or that the server rejects a statement.
    """
    if len(words) not in (1, 2):
        raise UsageError(f"{len(words)} arguments are given instead of one or two", remedy="Give [DEST] FILE.")
    config = load(ctx, words[0] if len(words) == 2 else None)
    text = _read(words[-1])
    asked = None if server is None else _server(config, server, asks_meta=schemas is None)
    with nullcontext() if asked is None else working("Asking the server …"):
        migration = _plan(config, text, database, sql_mode, time_zone, schemas, asked)
    if as_json:
        print_json(_document(config.name, migration))
    else:
        _print(migration)
    raise typer.Exit(exit_code(migration))


def _server(config: DestinationConfig, name: str, *, asks_meta: bool) -> ServerToAsk:
    """Returns the server of ``--server``. Raises UsageError, ConfigError, and what the meta raises."""
    if asks_meta and (identity := open_meta(config).source()) is not None:
        config = config.at_server(identity.address)
    source = config.source
    if name == "source":
        require_server(source, "`--server source`")
        return ServerToAsk(lambda: connect(source))
    url = ServerUrl.parse(name)
    login = login_at(url, PASSWORD_VARIABLE)
    address = SourceConfig(url=url.url, server_id=1)
    return ServerToAsk(
        lambda: connect(address, password=login.password.encode()),
        None if source.folder is not None else lambda: connect(source),
    )


def _plan(
    config: DestinationConfig,
    text: str,
    database: str,
    sql_mode: str,
    time_zone: str,
    schemas: Path | None,
    server: ServerToAsk | None,
) -> MigrationPlan:
    if find_spec("pyspark") is None or find_spec("deltalake") is None:
        raise ConfigError(
            "PySpark and deltalake are not installed",
            remedy="Install towpath[spark]: `cdc plan` uses their types, and starts no Spark.",
        )
    from cdc.lake.migration.run import PlanSettings, plan_migration  # the core installs without PySpark

    return plan_migration(config, text, PlanSettings(database, sql_mode, time_zone, schemas, server))


def exit_code(migration: MigrationPlan) -> int:
    """Returns the exit code of a plan: a statement that cannot be planned or that the server rejects comes first, then
    a refused one, an unexpected definition, and a table that needs a snapshot."""
    trial, kinds = migration.trial, migration.kinds
    if "wrong" in kinds or (trial is not None and trial.rejects):
        return EXIT_CODES["wrong"]
    if "refused" not in kinds and trial is not None and trial.differs:
        return DIFFERENT
    return next((EXIT_CODES[kind] for kind in ("refused", "snapshot") if kind in kinds), 0)


def _read(name: str) -> str:
    try:
        return sys.stdin.buffer.read().decode() if name == "-" else Path(name).read_bytes().decode()
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", place=name) from None
    except UnicodeDecodeError as error:
        raise UsageError(f"is not in UTF-8: byte {error.start}", place=name, remedy="Convert the file.") from None


# --- JSON ------------------------------------------------------------------------------------------------------------


def _document(destination: str, migration: MigrationPlan) -> dict[str, Any]:
    trial = migration.trial
    answers: Sequence[Answer | None] = [None] * len(migration.statements) if trial is None else trial.answers
    return {
        "destination": destination,
        "exit_code": exit_code(migration),
        "remarks": list(migration.remarks),
        "server": None if trial is None else {"address": trial.place, "version": trial.version},
        "statements": [
            {
                "number": verdict.statement.number,
                "line": verdict.statement.line,
                "sql": verdict.statement.sql,
                "verdict": verdict.kind,
                "remark": verdict.error or verdict.remark or None,
                "tables": list(map(_table, reports)),
                "server": None if answer is None else _answer(answer),
            }
            for (verdict, reports), answer in zip(migration.statements, answers, strict=True)
        ],
    }


def _answer(answer: Answer) -> dict[str, Any]:
    return {
        "outcome": answer.outcome,
        "reason": answer.reason or None,
        "algorithm": answer.algorithm,
        "lock": answer.lock,
        "differences": list(answer.differences),
    }


def _table(report: TableReport) -> dict[str, Any]:
    verdict, changes, cost = report.verdict, report.changes, report.cost
    worse = verdict.unless
    return {
        "table": verdict.table,
        "mode": verdict.mode,
        **_outcome(verdict),
        "steps": list(verdict.steps),
        "otherwise": None if worse is None else {**_outcome(worse), "conditions": list(verdict.conditions)},
        "columns": {
            "added": list(changes.added),
            "dropped": list(changes.dropped),
            "renamed": [{"from": old, "to": new} for old, new in changes.renamed],
            "retyped": [{"column": name, "from": old, "to": new} for name, old, new in changes.retyped],
        },
        "features": [{"feature": feature, "readers": dict(readers)} for feature, readers in report.unread.items()],
        "cost": None if cost is None else {"rows": cost.rows, "bytes": cost.bytes, "seconds": cost.seconds},
    }


def _outcome(verdict: TableVerdict) -> dict[str, Any]:
    return {
        "verdict": verdict.kind,
        "reason": verdict.reason or None,
        "remedy": verdict.remedy or None,
        "reads_columns": list(verdict.columns),
    }


# --- for people ------------------------------------------------------------------------------------------------------


def _print(migration: MigrationPlan) -> None:
    from rich.table import Table
    from rich.text import Text

    console = out()
    console.width = min(console.width, _WIDTH) if console.is_terminal else _WIDTH
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), expand=True)
    table.add_column("line", justify="right")
    for header, ratio in (("statement", 7), ("table", 4), ("verdict", 3), ("Delta table", 6)):
        table.add_column(header, ratio=ratio, overflow="fold")
    for verdict, reports in migration.statements:
        cells = [str(verdict.statement.line), _cut(verdict.statement.sql)]
        if not reports:
            table.add_row(*map(Text, (*cells, "", verdict.kind, verdict.error or verdict.remark)))
        for report in reports:
            mode = "" if report.verdict.mode is None else f" ({report.verdict.mode})"
            cells += [one_line(report.verdict.table) + mode, _kind(report.verdict), _work(report)]
            table.add_row(*map(Text, cells))
            cells = ["", ""]
    console.print(table)
    for verdict, reports in migration.statements:
        for report in reports:
            for sentence in _sentences(report, verdict.statement.sql):
                text = f"line {verdict.statement.line}, {report.verdict.table}: {sentence}"
                console.print(f"\n{one_line(text)}", markup=False, soft_wrap=False)
    if migration.trial is not None:
        _print_trial(migration, migration.trial)
    for remark in migration.remarks:
        say(one_line(remark))


def _print_trial(migration: MigrationPlan, trial: Trial) -> None:
    """Prints what the server says, a line for each statement."""
    console = out()
    console.print(f"\nserver {one_line(trial.place)} ({one_line(trial.version)}):", markup=False)
    for (verdict, _), answer in zip(migration.statements, trial.answers, strict=True):
        text = answer.outcome if not answer.reason else f"{answer.outcome}: {answer.reason}"
        if answer.algorithm is not None:
            text += f", ALGORITHM={answer.algorithm}{'' if answer.lock is None else f', LOCK={answer.lock}'}"
        console.print(one_line(f"line {verdict.statement.line}: {text}"), markup=False, highlight=False)
        for difference in answer.differences:
            console.print(one_line(f"line {verdict.statement.line}: unexpected: {difference}"), markup=False)


def _kind(verdict: TableVerdict) -> str:
    return verdict.kind if verdict.unless is None else f"{verdict.kind}, or {verdict.unless.kind}: depends on rows"


def _work(report: TableReport) -> str:
    """Returns the cell about the Delta table: its columns, and what is written."""
    verdict = report.verdict
    if verdict.kind in ("none", "rows"):
        return verdict.reason
    texts = [] if verdict.kind == "refused" else [str(report.changes)]
    texts += [verdict.reason] if verdict.kind in ("in place", "rewrite") else []
    texts += [] if report.cost is None else [str(report.cost)]
    return "; ".join(filter(None, texts))


def _sentences(report: TableReport, sql: str) -> Iterator[str]:
    """Yields what the cells have no room for: reasons with remedies, and who has to follow."""
    verdict = report.verdict
    for part, condition in ((verdict, ""), (verdict.unless, " or ".join(verdict.conditions))):
        if part is not None and part.kind in ("snapshot", "refused", "wrong"):
            when = f"if a row has {condition}: " if condition else ""
            yield f"{when}{_without_statement(part.reason, sql)} {part.remedy}".strip()
    if verdict.kind == "refused":
        return
    shown = {"wrong": "shows wrong values", "refuses": "refuses it"}
    for feature, readers in report.unread.items():
        listed = ", ".join(f"{reader} {shown[how]}" for reader, how in readers.items())
        yield f"the Delta table gets {feature}: {listed}."
    if report.changes.breaks_views:
        yield f"queries and views of the Delta table that name these columns have to follow: {report.changes.broken}."


def _without_statement(reason: str, sql: str) -> str:
    """Returns the message of an error without the statement at its end, which the table shows."""
    head, _, tail = reason.partition(": ")
    while tail and not " ".join(sql.split()).startswith(tail.rstrip("…")):
        more, _, tail = tail.partition(": ")
        head = f"{head}: {more}"
    return head if head.endswith((".", "…")) else f"{head}."


def _cut(sql: str) -> str:
    text = one_line(" ".join(sql.split()))
    return text if len(text) <= 120 else f"{text[:119]}…"
