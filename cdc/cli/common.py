"""Shared by the commands: the global options, the loaded configuration, and output for people and scripts."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc.base.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from cdc.config import DestinationConfig

Destination = Annotated[
    str | None,
    typer.Argument(
        metavar="DEST",
        help="Name of the destination: its file in the folder, without .yaml. Leave it out if there is only one.",
        show_default=False,
    ),
]
"""The ``DEST`` argument of all commands."""

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else.")]
"""The ``--json`` option of all commands that answer a question."""

SourceValues = Annotated[
    bool,
    typer.Option(
        "--source-values",
        help="Show values as the source has them: the column policies of the configuration do not apply.",
    ),
]
"""The ``--source-values`` option of the commands that show rows of a destination."""

SecondOpinion = Annotated[
    bool,
    typer.Option(
        "--second-opinion",
        help="Decode a sample once more with the independent library mysql-replication, and compare every value; exit "
        "code 2 if one differs.",
    ),
]
"""The ``--second-opinion`` option of the commands that decode rows or prove them."""

Decrypt = Annotated[
    bool,
    typer.Option("--decrypt", help="Open encrypted files, with the keys that the configurations name."),
]
"""The ``--decrypt`` option of the commands that read files without a configuration."""


Keys = Annotated[
    str | None,
    typer.Option(
        "--keys",
        metavar="KEY..KEY",
        help="Take only the rows whose keys lie between these two, both included, or the row of one key. Keys are "
        "written as for `cdc history`, and may differ in their last column.",
        show_default=False,
    ),
]
"""The ``--keys`` option of the commands that take a part of a table."""

Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help="Take only the rows that fulfil this condition, like \"tenant_id = 7 AND day >= '2026-03-01'\": columns, "
        "=, <, <=, >, >=, BETWEEN … AND … or IN (…), and literals, joined by AND. Texts are compared by their bytes.",
        show_default=False,
    ),
]
"""The ``--where`` option of the commands that take a part of a table."""


@dataclass(frozen=True)
class Globals:
    """The options that are written before the command's name."""

    given_conf_dir: Path | None
    log_format: str
    verbose: bool

    @property
    def conf_dir(self) -> Path:
        """The folder of the configuration files."""
        from cdc.config import conf_dir  # loads pydantic, which some commands do without

        return conf_dir(self.given_conf_dir)


def names_argument(without: str, *, metavar: str = "[DEST] [TABLE]…") -> Any:
    """Returns the argument that names a destination and tables; for :func:`destination_and_tables`. ``without``: what
    its help says about a call without tables."""
    text = "The destination, which may be left out where there is only one, and tables as DB.TABLE."
    return typer.Argument(metavar=metavar, help=f"{text} {without}".rstrip(), show_default=False)


def options(ctx: typer.Context) -> Globals:
    """Returns the global options of this invocation."""
    global_options = ctx.find_object(Globals)
    if global_options is None:  # a test called a command without the main callback
        raise RuntimeError("the command was not called through cdc.cli.main")
    return global_options


def load(ctx: typer.Context, dest: str | None) -> DestinationConfig:
    """Loads the configuration of a destination, on which this command works. Raises ConfigError."""
    from cdc.base.run_identity import remember_command  # loads pydantic, as the configuration does
    from cdc.config import load_destination

    remember_command(ctx.command_path)
    return load_destination(options(ctx).conf_dir, dest)


def load_keys(ctx: typer.Context) -> None:
    """Registers the keys of encrypted files that the configurations of the folder name. Raises ConfigError."""
    from cdc.config import destinations, load_destination
    from cdc.disk.encryption import keys  # needed by --decrypt alone

    folder = options(ctx).conf_dir
    for name in destinations(folder):
        try:
            load_destination(folder, name)
        except ConfigError as error:  # the keys of the others may be enough
            say(f"passed over: {error}")
    if not keys.has_sources():
        raise ConfigError(
            "no configuration in this folder names a key in store.encryption",
            place=str(folder),
            remedy="Name another folder with --conf-dir or $CDC_CONF, or leave out --decrypt.",
        )


def destination_and_tables(ctx: typer.Context, names: list[str]) -> tuple[DestinationConfig, list[str]]:
    """Loads the destination of a command with the arguments ``[DEST] [TABLE]…``, and returns the tables. The first name
    is the destination unless it is ``DB.TABLE`` and no configuration is called so. Raises ConfigError, UsageError."""
    from cdc.config import destinations

    is_first = bool(names) and (names[0] in destinations(options(ctx).conf_dir) or "." not in names[0])
    config = load(ctx, names[0] if is_first else None)
    return config, [config.tables.name(name) for name in names[is_first:]]


def print_json(obj: Any) -> None:
    """Prints a JSON document on standard output. Accepts pydantic models, dataclasses, datetimes and paths too."""
    sys.stdout.write(json.dumps(obj, indent=2, ensure_ascii=False, default=_plain) + "\n")
    sys.stdout.flush()


def print_json_line(obj: Any) -> None:
    """Prints a JSON document on one line of standard output."""
    sys.stdout.write(json.dumps(obj, ensure_ascii=False, default=_plain) + "\n")


def _plain(value: Any) -> Any:
    from pydantic import BaseModel

    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def iso(time: datetime) -> str:
    """Returns an aware datetime in ISO 8601 and UTC: ``2026-11-21T09:41:36.123456Z``."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


def out() -> Console:
    """Returns a console on standard output, for answers to people."""
    from cdc.cli.console import PlainConsole

    return PlainConsole(highlight=False, soft_wrap=not sys.stdout.isatty())


def tables() -> Console:
    """Returns a console for tables. Without a terminal its width is unlimited, so that no cell is folded or cut."""
    console = out()
    if not console.is_terminal:
        console.width = 10_000
    return console


def err() -> Console:
    """Returns a console on standard error, for progress and remarks."""
    from cdc.cli.console import PlainConsole

    return PlainConsole(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


def one_line(text: str) -> str:
    r"""Returns a text with its control characters escaped, line ends included (``\x1b``, ``\n``): a name of the source
    may hold any, and forge what a terminal shows."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def say(text: str) -> None:
    """Prints a remark for people on standard error."""
    if sys.stderr.isatty():
        err().print(text, markup=False)
    else:
        sys.stderr.write(f"{text}\n")


@contextmanager
def working(text: str) -> Iterator[None]:
    """Shows a text with a spinner on standard error while the context lasts, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    with err().status(text):
        yield
