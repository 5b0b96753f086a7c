"""``cdc init``: asks the server, writes ``conf/DEST.yaml`` with comments, and says what to do next."""

from __future__ import annotations

import os
import random
import re
import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from cdc.base.errors import SourceRefusedError, StorageError, UsageError
from cdc.base.patterns import PatternError, TablePattern
from cdc.binlog.sql.schemas import Schemas
from cdc.cli.common import options, out, working
from cdc.cli.server_url import Login, ServerUrl, login_at
from cdc.config import SYSTEM_SCHEMAS, DestinationConfig, SourceConfig, TablesConfig, as_named, parse
from cdc.config.loading import server_ids
from cdc.config.reference import VALUES_IN_WORDS, Template, default, render_yaml
from cdc.source.connection import connect, query
from cdc.source.findings import Finding
from cdc.source.schemas import list_tables, read_schemas, silent_keys
from cdc.source.server import Connection, ServerInfo, describe, replicas, variables
from cdc.source.table_checks import check_foreign_keys

PASSWORD_VARIABLE = "CDC_SOURCE_PASSWORD"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_DATABASES = "SELECT SCHEMA_NAME AS name FROM information_schema.SCHEMATA ORDER BY SCHEMA_NAME"
_SHOWN_KEYS = (
    "source.start",
    "tables.exclude",
    "tables.overrides",
    "store.kind",
    "store.segment_bytes",
    "store.flush",
    "store.retain.acked_for",
    "meta.kind",
    "batch.max_bytes",
    "batch.max_transactions",
    "batch.max_row_events",
    "batch.max_wait_s",
    "batch.lease_s",
    "apply.mode",
    "spark.master",
    "spark.remote",
    "spark.conf",
)
"""The keys that are written with their defaults."""


def init(
    ctx: typer.Context,
    url: Annotated[
        str,
        typer.Argument(
            metavar="URL",
            help="Address of the server: mysql://USER@HOST:PORT or mariadb://USER@HOST:PORT.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str,
        typer.Option(
            metavar="URI",
            help="Folder or URI of the Delta tables. A relative folder is taken from the folder above conf/.",
            show_default=False,
        ),
    ],
    tables: Annotated[
        list[str] | None,
        typer.Option(
            metavar="REGEX",
            help=r"Tables to capture, as a regular expression over db.table like 'shop\..*'. May be repeated.",
            show_default="all",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            metavar="DEST", help="Name of the destination, and so of the file.", show_default="the database's"
        ),
    ] = None,
) -> None:
    """Write a configuration file with comments, for a server and its tables.

    The password is taken from the URL, else from $CDC_SOURCE_PASSWORD, else it is asked for. It is never written into
    the configuration: one from the URL or the terminal goes into DEST.password beside it, readable by you alone.
    """
    folder = options(ctx).conf_dir
    if name is not None:
        _new_file(folder, name)
    if url.startswith("binlog:"):
        raise UsageError(
            "a configuration is made from a server's answers, and a folder of binlog files has none",
            remedy="Write the file by hand: docs/how-to/binlog-files.md shows one.",
        )
    address = ServerUrl.parse(url)
    login = login_at(address, PASSWORD_VARIABLE)
    patterns = _patterns(tables)
    with working(f"Asking {address.place} …"):
        conn = connect(SourceConfig(url=address.url, server_id=1), password=login.password.encode())
        try:
            info = describe(conn)
            names = int(variables(conn, ("lower_case_table_names",)).get("lower_case_table_names", 0))
            databases = [str(row["name"]) for row in query(conn, _DATABASES) if row["name"] not in SYSTEM_SCHEMAS]
            taken = {info.server_id, *_replica_ids(conn), *server_ids(folder)}
            patterns = patterns or [f"{re.escape(db)}\\..*" for db in databases] or [r".*\..*"]
            chosen = TablesConfig(include=tuple(patterns), lower_case_table_names=names)
            names_of_tables = list_tables(conn, chosen)
            has_keys = bool(silent_keys(conn, chosen, names_of_tables))
            schemas = read_schemas(conn, chosen) if has_keys else Schemas(tables={})
            others = (
                []
                if names_of_tables
                else list_tables(conn, TablesConfig(include=(r".*\..*",), lower_case_table_names=names))
            )
        finally:
            conn.close()
    name = name or _default_name(names_of_tables, info)
    file = _new_file(folder, name)
    address = replace(address, scheme=info.flavor)
    text = render(
        Answers(
            name=name,
            url=address.url,
            password_in_environment=login.from_environment,
            password_place=PASSWORD_VARIABLE if login.from_environment else f"{name}.password",
            server_id=_free_server_id(taken),
            include=tuple(patterns),
            lower_case_table_names=names,
            target=target,
            product=info.product,
        )
    )
    config = parse(text, file)  # fails before anything is written, if it could not be read again
    _write(file, text, None if login.from_environment else login.password)
    silent = check_foreign_keys(config, schemas)
    _report(config, info, names_of_tables, login, silent, scheme_changed=not url.startswith(f"{info.flavor}:"))
    if not names_of_tables:
        _say(_without_tables(config.tables.include, others))
    else:
        _next_steps(config)


def _new_file(folder: Path, name: str) -> Path:
    """Returns the path of the new file. Raises UsageError if the name is taken or cannot name a file."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be the name of a destination",
            remedy="Use letters, digits, dots, hyphens and underscores: --name shop.",
        )
    file = folder / f"{name}.yaml"
    if file.exists() and not _is_empty(file):
        raise UsageError(
            "this configuration exists already, and is not overwritten",
            place=str(file),
            remedy="Choose another --name, or remove the file first.",
        )
    return file


def _is_empty(file: Path) -> bool:
    try:
        return not file.read_bytes().strip()
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", place=str(file)) from None


def _patterns(expressions: Sequence[str] | None) -> list[str]:
    for pattern in expressions or ():
        try:
            TablePattern(pattern)
        except PatternError as error:
            raise UsageError(f"--tables {error}", remedy=r"Write it like 'shop\..*'.") from None
    return list(expressions or ())


def _replica_ids(conn: Connection) -> set[int]:
    try:
        return {replica.server_id for replica in replicas(conn)}
    except SourceRefusedError:
        # Without the privilege to see the replicas, a random number of nine digits is unlikely to be taken. `cdc check`
        # names the missing privilege.
        return set()


def _free_server_id(taken: set[int]) -> int:
    while (number := random.randint(100_000_000, 999_999_999)) in taken:
        pass
    return number


def _default_name(tables: list[tuple[str, str]], info: ServerInfo) -> str:
    """Returns the name of the only database with tables, else the server's product."""
    databases = {db for db, _ in tables}
    if len(databases) == 1:
        name = re.sub(r"[^A-Za-z0-9_.-]", "_", databases.pop()).lstrip(".-")
        if name:
            return name
    return info.flavor


def _write(file: Path, text: str, password: str | None) -> None:
    """Writes both files or none, and never overwrites a configuration. Raises StorageError."""
    secret = file.with_suffix(".password")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if password is not None:
            _keep_out_of_git(file.parent)
            secret.unlink(missing_ok=True)  # a new file: others may read an old one
            descriptor = os.open(secret, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(password + "\n")
        if file.exists() and _is_empty(file):
            file.unlink()
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        if password is not None and not file.exists():
            with suppress(OSError):
                secret.unlink(missing_ok=True)
        raise StorageError(
            f"cannot be written: {error.strerror}",
            place=str(error.filename or file),
            remedy="Choose another --conf-dir.",
        ) from error


def _keep_out_of_git(folder: Path) -> None:
    ignore = folder / ".gitignore"
    if not ignore.exists():
        ignore.write_text("# Passwords do not belong into a repository.\n*.password\n", encoding="utf-8")


@dataclass(frozen=True)
class Answers:
    """The values that differ from one file to the next."""

    name: str
    url: str
    """Without the password."""
    password_in_environment: bool
    password_place: str
    """Name of the environment variable, or of the file beside this one."""
    server_id: int
    include: tuple[str, ...]
    lower_case_table_names: int
    target: str
    product: str


def render(answers: Answers) -> str:
    """Returns the text of the configuration file: the keys that a first file needs, with their descriptions."""
    values: dict[str, Any] = {path: default(path) for path in _SHOWN_KEYS}
    values |= {
        "source.url": answers.url,
        f"source.password_{'env' if answers.password_in_environment else 'file'}": answers.password_place,
        "source.server_id": answers.server_id,
        "tables.include": list(answers.include),
        "store.path": f"./data/{answers.name}/store",
        "meta.path": f"./data/{answers.name}/meta",
        "apply.target": answers.target,
    }
    if answers.lower_case_table_names:
        values["tables.lower_case_table_names"] = answers.lower_case_table_names
    return render_yaml(
        Template(
            values=values,
            head=(
                f"Destination {answers.name}: one source server, and what becomes of its changes.",
                f"`cdc check {answers.name}` examines these settings. docs/reference/settings has every key.",
                VALUES_IN_WORDS,
            ),
            notes={
                "source": f"It was {answers.product} when this file was written.",
                "source.server_id": "This number was free when this file was written.",
            },
        )
    )


def _say(text: str) -> None:
    out().print(text, markup=False)


def _report(
    config: DestinationConfig,
    info: ServerInfo,
    table_names: list[tuple[str, str]],
    login: Login,
    findings: Iterable[Finding],
    *,
    scheme_changed: bool,
) -> None:
    shown = os.path.relpath(config.file)
    file = shown if not shown.startswith("..") else str(config.file)
    databases = sorted({db for db, _ in table_names})
    what = (
        f"{len(table_names)} table{'s' * (len(table_names) != 1)} of {', '.join(databases)}"
        if table_names
        else "no table yet"
    )
    source = f"{config.source.host}:{config.source.port}"
    _say(f"Wrote {file}: {info.product} at {source}, {what}, into {config.apply.target}")
    if scheme_changed:
        _say(f"The server is {info.product}, so the URL there begins with {info.flavor}://.")
    if login.from_environment:
        _say(f"The password stays in ${PASSWORD_VARIABLE}; it must be set for `cdc check` and `cdc capture`.")
    else:
        _say(f"The password is in {Path(file).with_suffix('.password')}, readable by you alone.")
    for finding in findings:
        _say(f"{finding.subject}: {finding.message}. {finding.remedy}")


def _without_tables(patterns: Sequence[str], tables: Sequence[tuple[str, str]]) -> str:
    """Returns what to do if the expressions match none of the server's tables."""
    text = f"No table matches {', '.join(patterns)}: correct tables.include before you go on."
    if not tables:
        return f"{text} The user sees no table at all; `cdc check` says which privileges it needs."
    for pattern in patterns:
        expression = TablePattern(pattern)
        for database, table in tables:
            if expression.matches(table) or expression.matches(database):
                suggested = re.escape(database) + r"\." + (re.escape(table) if expression.matches(table) else ".*")
                return f"{text} Expressions match the whole of db.table: write {suggested}."
    return f"{text} Expressions match the whole of db.table, such as {'.'.join(tables[0])}."


def _next_steps(config: DestinationConfig) -> None:
    folder = config.file.parent
    options = "" if folder == as_named(Path("conf")) else f" --conf-dir {shlex.quote(str(folder))}"
    _say("\nThen:")
    for command, what in (
        ("check", "finds what is missing, and says how to repair it"),
        ("capture", "reads the binlog into the store, until stopped: leave it running"),
        ("snapshot", "fills the Delta tables with the rows that are there now"),
        ("apply", "merges a batch of changes into the Delta tables (--until-empty: all batches)"),
    ):
        _say(f"  cdc{options} {f'{command} {config.name}':<20}  {what}")
