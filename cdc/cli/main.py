"""The command ``cdc``: its global options, its commands, and the messages and exit codes of errors.

Exit codes: 0 done; 1 failed, and another try may succeed; 2 wrong usage, configuration or data.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cache
from importlib import import_module
from importlib.abc import MetaPathFinder
from inspect import cleandoc
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer

import cdc
from cdc.base.errors import CdcError
from cdc.base.log import configure
from cdc.cli.common import Globals, one_line

_HELP = (
    "Towpath moves the changes of MySQL and MariaDB into Delta Lake tables.\n\n"
    "A destination is one source server and what becomes of its changes. It is configured in one file, conf/DEST.yaml: "
    "write it with `cdc init`, and check it with `cdc check`. Then `cdc capture` reads the source into a store, and "
    "`cdc apply` merges the store into the Delta tables."
)

_LISTED = {
    "Set up": {
        "init": "Write a configuration file with comments, for a server and its tables.",
        "check": "Examine the source, the store, the meta, the target and Spark.",
        "deploy": "Get the files for Airflow, systemd, containers, Kubernetes and Prometheus.",
    },
    "Run": {
        "capture": "Read the source's changes into the store until stopped.",
        "apply": "Merge the store's changes into the Delta tables, batch after batch.",
        "push": "Send the changes in the store to Kafka until stopped.",
        "server": "Serve the stores of this machine to others until stopped.",
        "instance": "See and change the destinations that a running server runs.",
        "spark": "Run a Spark Connect server that stays warm between runs.",
        "standby": "Follow a master's store until stopped, to take over from it.",
    },
    "Tables": {
        "snapshot": "Fill tables with the rows of the source, while capture and apply go on.",
        "replay": "Build tables again from the store, or fill a range of changes again.",
        "adopt": "Take over a Delta table that another tool has made, without loading it again.",
        "remask": "Give the values that are in the lake the column policies that the configuration says now.",
        "verify": "Compare the Delta tables with the source, and the store with what the source executed.",
        "attest": "Check a signed document of an earlier verification.",
        "maintain": "Remove what is not needed any more, and compact the Delta tables.",
    },
    "Look": {
        "plan": "Say what a migration will do to the Delta tables, before it is executed.",
        "status": "Show positions, store, cursors, lag, outstanding batches and tables.",
        "diff": "Show which rows of a table differ between two transactions.",
        "history": "Show every change of one row that the store still has.",
        "tail": "Print changes as they come: rows and DDL statements.",
        "decode": "Print the rows of a table that binlog files hold.",
        "inspect": "Show and verify a store, segment, index, checkpoint, meta file or manifest.",
    },
    "By hand": {
        "batch": "Get, ack, roll back and list batches; manage subscribers.",
        "failover": "Show where capture could go on after a failover, or accept what it has lost.",
        "archive": "Copy the store to its archive, verify it, and restore a store from it.",
        "move": "Move a store to another folder or machine, and verify it there.",
        "remove": "Remove a destination: subscriptions, store, meta, names in the catalog; the lake if asked.",
        "alarm": "Send a test alarm, and list the alarms that are raised.",
    },
}
COMMANDS = tuple(name for commands in _LISTED.values() for name in commands)
"""The commands, in the order of the help. Each is a module of :mod:`cdc.cli`."""

_WITHOUT_PANDAS = ("decode",)
_RESEND_AFTER_S = 0.1


class LogFormat(StrEnum):
    console = "console"
    json = "json"


def _version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"towpath {cdc.__version__}")
        raise typer.Exit


def _main(
    ctx: typer.Context,
    conf_dir: Annotated[
        Path | None,
        typer.Option(
            "--conf-dir",
            envvar="CDC_CONF",
            help="Folder of the configuration files.",
            show_default="./conf",
            metavar="DIR",
        ),
    ] = None,
    log_format: Annotated[LogFormat, typer.Option(help="Format of the logs on standard error.")] = LogFormat.console,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Log debug messages, and show the tracebacks of errors.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    ctx.obj = Globals(conf_dir, log_format.value, verbose)
    configure(log_format.value, verbose)


@cache
def application(names: tuple[str, ...] = COMMANDS) -> typer.Typer:
    """Returns the command line with these commands. Their modules are imported, and no others."""
    app = _without_commands()
    for name in names:
        command = getattr(import_module(f"cdc.cli.{name}"), name)
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name)
        else:
            app.command(name)(command)
    _unwrap_help(app)
    return app


def _listing(arguments: list[str]) -> typer.Typer:
    """Returns the command line for its help, which imports no command. A command that is called after all is run."""
    app = _without_commands()
    for panel, commands in _LISTED.items():
        for name, sentence in commands.items():
            app.command(
                name,
                help=sentence,
                rich_help_panel=panel,
                add_help_option=False,
                context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
            )(_runner(name, arguments))
    return app


def _runner(name: str, arguments: list[str]) -> Callable[[], Any]:
    return lambda: _call(application((name,)), arguments)


def _call(app: typer.Typer, arguments: list[str]) -> Any:
    return app(args=arguments, prog_name="cdc", standalone_mode=False)


def _without_commands() -> typer.Typer:
    app = typer.Typer(
        name="cdc",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(help=_HELP)(_main)
    return app


def _unwrap_help(commands: typer.Typer) -> None:
    """Joins the lines of docstrings, whose ends Typer would keep as line breaks."""
    for command in commands.registered_commands:
        text = cleandoc(command.help or getattr(command.callback, "__doc__", None) or "")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _unwrap_help(group.typer_instance)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. Raises nothing: errors become a message and a code.

    ``argv``: the arguments; None for those of this process, which is then set up to run a command and nothing else.
    """
    if argv is not None:
        return _run(list(argv))
    arguments = sys.argv[1:]
    _start_quickly(_command_name(arguments))
    try:
        return _run(arguments)
    finally:
        gc.freeze()  # the interpreter's end looks at every object that is not frozen, one after the other


def _start_quickly(command: str | None) -> None:
    """Leaves out what only delays the start of a process that runs a command.

    Imports make tens of thousands of objects that stay, and the garbage collector would look at them again and again.
    Pydantic would look for plugins in the metadata of every distribution that is installed. PyArrow would import pandas
    at its first conversion, to know its objects; no command but those that run Spark has any.
    """
    gc.set_threshold(20_000, 20, 20)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    if command in _WITHOUT_PANDAS:
        sys.meta_path.insert(0, _WithoutPandas())


class _WithoutPandas(MetaPathFinder):
    """Finds that pandas is not installed."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is left out of this command", name=fullname)


def _run(arguments: list[str]) -> int:
    verbose = _wants_tracebacks(arguments)
    name = _command_name(arguments)
    try:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _terminate)
            if sys.unraisablehook is sys.__unraisablehook__:
                sys.unraisablehook = _resend_interrupt
        result = _call(_listing(arguments) if name is None else application((name,)), arguments)
    except CdcError as error:
        if verbose:
            traceback.print_exc()
        _print_error(str(error))
        return error.exit_code
    except typer.Abort:
        _print_error("Stopped.")
        return 1
    except typer.TyperException as error:  # a wrong command line
        return _usage_error(error)
    except KeyboardInterrupt:
        _print_error("Stopped.")
        return 1
    except SystemExit as stop:  # a closed pipe: `cdc decode … | head`
        return stop.code if isinstance(stop.code, int) else 1
    except Exception as error:  # noqa: BLE001 - the last resort: users get a message instead of a traceback
        return _unexpected_error(error, verbose)
    if result == 130:  # the exit code by which the parser reports an interrupt
        _print_error("Stopped.")
        return 1
    return result if isinstance(result, int) else 0


def _terminate(signum: int, frame: FrameType | None) -> None:
    """Makes SIGTERM end a command as Ctrl-C does. Commands that run for long set handlers of their own."""
    raise KeyboardInterrupt


def _resend_interrupt(lost: sys.UnraisableHookArgs) -> None:
    """Repeats an interrupt that was lost.

    Python can only print an exception that is raised in a destructor, or in a callback at a fork. The signal is sent
    again a moment later, to the main thread, so that a call that blocks there ends as well.
    """
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    timer = threading.Timer(_RESEND_AFTER_S, signal.pthread_kill, (main_thread, signal.SIGTERM))
    timer.daemon = True
    timer.start()


def _command_name(arguments: Sequence[str]) -> str | None:
    """Returns the command that is called; None if it is not clear, for the help or after a mistake."""
    rest = iter(arguments)
    for argument in rest:
        if argument in ("--conf-dir", "--log-format"):
            next(rest, None)
        elif argument not in ("-v", "--verbose") and not argument.startswith(("--conf-dir=", "--log-format=")):
            return argument if argument in COMMANDS else None
    return None


def _wants_tracebacks(arguments: Sequence[str]) -> bool:
    """Whether ``-v`` is given before the command's name. An error may occur before the options are parsed."""
    for argument in arguments:
        if argument in ("-v", "--verbose"):
            return True
        if argument in COMMANDS:
            return False
    return False


def _print_error(text: str) -> None:
    sys.stderr.write(f"cdc: {one_line(' '.join(text.split()))}\n")


def _usage_error(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "cdc"
    if type(error).__name__ == "NoArgsIsHelpError":
        sys.stderr.write(error.format_message().rstrip() + "\n")
        return error.exit_code
    message = error.format_message().strip()
    end = "" if message.endswith((".", "!", "?")) else "."
    _print_error(f"{message}{end} See `{path} --help`.")
    return error.exit_code


def _unexpected_error(error: Exception, verbose: bool) -> int:
    """Reports an error that Towpath did not raise on purpose: its own mistake, or one of a library or the system."""
    text = f"unexpected {type(error).__name__}: {error}" if str(error) else f"unexpected {type(error).__name__}"
    if verbose:
        traceback.print_exc()
        _print_error(text)
        return 1
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="cdc-", suffix=".traceback", delete=False, encoding="utf-8"
        ) as file:
            file.write(f"towpath {cdc.__version__}\n{traceback.format_exc()}")
        where = f"The traceback is in {file.name}; please report it."
    except OSError as trouble:
        where = f"The traceback could not be written ({trouble}); `cdc -v …` shows it."
    _print_error(f"{text}. {where}")
    return 1
