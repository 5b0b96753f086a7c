"""The pages of reference that are made from the code: settings from the models, commands from Typer, the figures of the
benchmarks from the results of the last run that was kept.

``python -m tests.support.reference`` writes them anew; a test fails while one is out of date.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer.core
import typer.main

from benchmarks import page, results
from benchmarks.scale import page as scale_page
from benchmarks.scale import results as scale_results
from cdc.binlog import event_types
from cdc.binlog.event_types import Treatment
from cdc.cli import main as cli
from cdc.source.dump_errors import REFUSALS
from cdc.watch.metrics import catalogue
from tests.support import settings

ROOT = Path(__file__).resolve().parents[2]

_BEGIN = "<!-- sections: written by `make docs-reference` -->"
_END = "<!-- end of sections -->"
_COMMANDS_HEAD = """\
# Commands

<!-- Written by `make docs-reference` from cdc/cli: change the help texts there. -->

This page lists every command of `cdc` with its arguments and options. `cdc COMMAND --help` shows the same on a
terminal.

```text
cdc [OPTIONS] COMMAND [ARGS]...
```

`DEST` is the name of a configuration file without `.yaml`; leave it out if the folder holds only one. Commands that
answer a question take `--json` and then print one JSON document on standard output. Logs and progress go to standard
error.

SIGTERM and Ctrl-C end a command cleanly. SIGKILL loses nothing: the next run goes on from what is on the disk.

## Exit codes

| code | meaning |
|---|---|
| 0 | The command has done its work. |
| 1 | It failed, and another try may succeed: the source cannot be reached, another owner holds the batch, the disk is full. |
| 2 | Wrong usage, configuration or data. Another try fails too, until something is changed; the message says what. |

## Environment

| variable | meaning |
|---|---|
| `CDC_CONF` | Folder of the configuration files, as `--conf-dir`. |
| `CDC_SOURCE_PASSWORD` | Password of the source for `cdc init`. |
| `CDC_PLAN_PASSWORD` | Password of the server of `cdc plan --server URL`. |
| `CDC_SPARK_LOG` | Level of Spark's own log on standard error, like `info`. Without it Spark is quiet. |
| `TOWPATH_CACHE` | Folder of Delta's jars; the default is `towpath` in `$XDG_CACHE_HOME` or `~/.cache`. |
| `JAVA_HOME` | Java 17 or 21, for Spark. |
| `COLUMNS` | Width of the help texts, in characters. |

## Options of cdc

They are written before the command's name.
"""


def pages() -> dict[Path, str]:
    """Every generated page, by its path, with the text that it must have."""
    return {
        **{ROOT / "docs" / "reference" / "settings" / name: text for name, text in settings.render_pages().items()},
        ROOT / "docs" / "reference" / "conf.schema.json": settings.render_schema(),
        ROOT / "docs" / "reference" / "commands.md": commands(),
        ROOT / "docs" / "reference" / "metrics.md": metrics(),
        ROOT / "docs" / "reference" / "events.md": events(),
        ROOT / "docs" / "reference" / "dump-errors.md": dump_errors(),
        ROOT / "examples" / "shop.yaml": settings.example(),
        ROOT / "conf" / "README.md": _with_sections(ROOT / "conf" / "README.md"),
        **page.pages(results.load(results.KEPT)),
        scale_page.PAGE: scale_page.markdown(scale_results.load(scale_results.KEPT)),
    }


def _with_sections(page: Path) -> str:
    """The page of ``conf/`` with its table of sections as it must be."""
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n\n{settings.section_table('../docs/reference/settings/')}\n{_END}{after}"


_METRICS_HEAD = """\
# Metrics

<!-- Written by `make docs-reference` from cdc/watch/metrics/catalogue.py: change the meanings there. -->

This page lists every metric with its labels, and what Debezium and Canal call it. [Watch with
Prometheus](../how-to/metrics.md) says how to get them. Every metric also has the label `destination`: the name of the
configuration file without `.yaml`. The names are an interface: they keep their meaning.

Debezium's names are attributes of its MBeans, in milliseconds where ours are in seconds; Canal's are those of its
Prometheus endpoint. Where a cell is empty, they tell nothing like it.
"""
_METRICS_PARTS = (
    (
        "Metrics of a capture",
        """A capture serves these at `/metrics`, together with `process_cpu_seconds_total`, `process_resident_memory_bytes`
        and the other `process_…` metrics of Prometheus' client. Counters begin at 0 when the capture is started.""",
        catalogue.CAPTURE,
    ),
    (
        "Metrics of a run",
        """A run of `cdc apply`, or of the apply DAG, pushes these to `metrics.push`. They tell about the last run, and
        those with the label `table` about the last run that changed a table.""",
        catalogue.RUN,
    ),
    (
        "Metrics of a server",
        """`cdc server` serves these at `/metrics`, together with the `process_…` metrics of Prometheus' client.""",
        catalogue.SERVER,
    ),
    (
        "Metrics of a push",
        """`cdc push` serves these at `/metrics` if `mq.metrics_port` or `--metrics-port` is given, together with the
        `process_…` metrics of Prometheus' client. Counters begin at 0 when the push is started.""",
        catalogue.PUSH,
    ),
)


def metrics() -> str:
    """The page of metrics."""
    lines = [_METRICS_HEAD.rstrip()]
    for title, text, metrics_of_part in _METRICS_PARTS:
        lines += ["", f"## {title}", "", *textwrap.wrap(" ".join(text.split()), 120, break_on_hyphens=False), ""]
        lines += ["| metric | kind | labels | meaning | Debezium | Canal |", "|---|---|---|---|---|---|"]
        for metric in metrics_of_part:
            names = [
                ", ".join(f"`{name}`" for name in group if name)
                for group in (metric.labels, (metric.debezium,), (metric.canal,))
            ]
            lines.append(
                f"| `{metric.name}` | {metric.kind} | {names[0]} | {metric.meaning} | {names[1]} | {names[2]} |"
            )
    return "\n".join(lines) + "\n"


_EVENTS_HEAD = """\
# Binlog events

<!-- Written by `make docs-reference` from cdc/binlog/event_types.py: change the reasons there. -->

For administrators who want to know what capture does with an event of their server's binlog. The table has every event
type of MySQL 5.6 to 9.x and MariaDB 10.1 to 11.8. A type that is not in it stops capture with exit code 2; the message
has its number, the binlog file and the position, and nothing is skipped.

The framing loop is made from this table, and a test sends it one event of every type.
"""
_TREATMENTS = {
    Treatment.STORED: "Kept as received if its transaction changes a captured table, or if it is DDL of one.",
    Treatment.READ: "Describes the file or the stream. Segments have their own instead.",
    Treatment.SKIPPED: "Left out on purpose. No change of a row is lost.",
    Treatment.UNPACKED: "Left out itself. Each event in it is treated as if it had come alone.",
    Treatment.CONDITIONAL: "Left out if it changes no captured table; else capture stops, because it cannot store the "
    "change yet. [What stops capture](../how-to/run-capture.md#what-stops-capture) says how to go on.",
    Treatment.STOPS: "Capture stops, whatever table it concerns.",
}


def events() -> str:
    """The page of event types."""
    lines = [_EVENTS_HEAD.rstrip(), "", "| capture | meaning |", "|---|---|"]
    lines += [f"| {treatment} | {meaning} |" for treatment, meaning in _TREATMENTS.items()]
    lines += ["", "## Event types", "", "Empty version cells: no supported server of that kind writes the type.", ""]
    lines += ["| number | type | MySQL | MariaDB | capture | reason |", "|---|---|---|---|---|---|"]
    for info in event_types.TABLE:
        name = info.type.name.removeprefix("MARIADB_")
        cells = (str(int(info.type)), f"`{name}`", info.mysql, info.mariadb, str(info.treatment), info.reason)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


_DUMP_ERRORS_HEAD = """\
# Error 1236

<!-- Written by `make docs-reference` from cdc/source/dump_errors.py: change the texts there. -->

For operators whose server ends the stream with `Got fatal error 1236` or a text of this page. A server has this one
number for nearly everything that can go wrong while it sends its binlog, so look for a part of its text. Capture knows
the texts of MySQL 5.6 to 9 and MariaDB 10 and 11, says the cause, and ends with exit code 2 where another try cannot
help. Everything before the position is in the store.

| cause | server's text | capture |
|---|---|---|
"""


def dump_errors() -> str:
    """The page of error 1236."""
    lines = [_DUMP_ERRORS_HEAD.rstrip()]
    for refusal in REFUSALS:
        anchor = re.sub(r"[^\w\- ]", "", refusal.title.lower()).replace(" ", "-")
        texts = "<br>".join(f"`{text}`" for text in refusal.texts)
        ends = "tries again" if refusal.error.retryable else "ends with exit code 2"
        lines.append(f"| [{refusal.title}](#{anchor}) | {texts} | {ends} |")
    for refusal in REFUSALS:
        lines += ["", f"## {refusal.title}", ""]
        lines += textwrap.wrap(refusal.cause, 120, break_on_hyphens=False, break_long_words=False)
        lines += ["", *textwrap.wrap(refusal.remedy, 120, break_on_hyphens=False, break_long_words=False)]
    return "\n".join(lines) + "\n"


def commands() -> str:
    """The page of commands."""
    main = typer.main.get_command(cli.application())
    lines = [_COMMANDS_HEAD.rstrip(), "", *_parameters(main)]
    for path, command in _leaves(main, "cdc"):
        lines += ["", f"## {path}", "", *_help(command), "", "```text", _usage(path, command), "```"]
        rows = _parameters(command)
        lines += ["", *rows] if rows else []
    return "\n".join(lines) + "\n"


def _leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its full name."""
    for name, below in command.commands.items():
        if hasattr(below, "commands"):
            yield from _leaves(below, f"{path} {name}")
        else:
            yield f"{path} {name}", below


def _usage(path: str, command: Any) -> str:
    words = [path]
    if any(_is_option(parameter) for parameter in command.params):
        words.append("[OPTIONS]")
    arguments = [parameter for parameter in command.params if not _is_option(parameter)]
    words += [_argument(argument) if argument.required else f"[{_argument(argument)}]" for argument in arguments]
    return " ".join(words)


def _help(command: Any) -> list[str]:
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(command.help or ""))
    lines: list[str] = []
    for paragraph in paragraphs:
        lines += ["", *textwrap.wrap(" ".join(paragraph.split()), 120, break_on_hyphens=False)]
    return lines[1:]


def _parameters(command: Any) -> list[str]:
    rows = [_row(parameter) for parameter in command.params]
    return ["| argument or option | default | meaning |", "|---|---|---|", *rows] if rows else []


def _row(parameter: Any) -> str:
    cells = [f"`{_name(parameter)}`", _default(parameter), _meaning(parameter)]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _is_option(parameter: Any) -> bool:
    return isinstance(parameter, typer.core.TyperOption)


def _name(parameter: Any) -> str:
    if not _is_option(parameter):
        return _argument(parameter)
    opts = ", ".join(parameter.opts)
    return opts if parameter.is_flag else f"{opts} {_value(parameter)}"


def _argument(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _value(parameter: Any) -> str:
    kind = parameter.type_descriptor.annotation
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "|".join(str(member.value) for member in kind)
    return str(parameter.metavar or parameter.name.upper())


def _default(parameter: Any) -> str:
    if parameter.required:
        return "required"
    if isinstance(parameter.show_default, str):
        return str(parameter.show_default).replace("<", "&lt;")
    if parameter.default in (None, False):
        return ""
    return f"`{getattr(parameter.default, 'value', parameter.default)}`"


def _meaning(parameter: Any) -> str:
    text = " ".join((parameter.help or "").split())
    if _is_option(parameter) and parameter.multiple and "repeated" not in text:
        text += " May be repeated."
    return f"{text} Environment: `{parameter.envvar}`." if parameter.envvar else text


def main() -> int:
    """Writes every page that is out of date."""
    for path, text in pages().items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
