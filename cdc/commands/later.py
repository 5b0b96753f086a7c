"""Commands that the interface promises and that are not available yet. Each ends with one sentence and exit code 2."""

from __future__ import annotations

import typer

from cdc.errors import UsageError

_ANY_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True}

_COMMANDS = {
    "snapshot": (
        "Load or reload tables while capture runs (not available yet).",
        "Write start: earliest in the configuration: capture then reads the source's binlog from its first file.",
    ),
    "replay": (
        "Rebuild tables, or fill a range, from the store (not available yet).",
        "Start a new destination: it reads the source's binlog again.",
    ),
}
"""The help text of each command, and what to do instead."""


def register(app: typer.Typer) -> None:
    """Adds the commands to ``app``."""
    for name, (help_text, remedy) in _COMMANDS.items():
        _add(app, name, help_text, remedy)


def _add(app: typer.Typer, name: str, help_text: str, remedy: str) -> None:
    @app.command(name, help=help_text, context_settings=_ANY_ARGUMENTS, rich_help_panel="Planned")
    def refuse(ctx: typer.Context) -> None:
        raise UsageError(f"`cdc {name}` is not available yet", remedy=remedy)
