"""Commands that the interface promises and that are not available yet. Each ends with one sentence and exit code 2."""

from __future__ import annotations

import typer

from cdc.errors import UsageError

_ANY_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True}

_COMMANDS = {
    "verify": (
        "Prove that no change is missing (not available yet).",
        "`cdc status` shows the applied position of each table.",
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
