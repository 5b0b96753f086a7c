"""Commands that the interface names and that are not there yet: each ends with one sentence."""

from __future__ import annotations

import typer

from cdc.errors import UsageError

_ANY = {"ignore_unknown_options": True, "allow_extra_args": True}

_WHAT = {
    "snapshot": (
        "Load or reload tables beside the running capture (not available yet).",
        "Use start: earliest in the configuration, which reads the source's binlog from its first file.",
    ),
    "replay": (
        "Rebuild tables, or fill a range, from the store (not available yet).",
        "Write to a new destination, which reads the source's binlog again.",
    ),
    "verify": (
        "Prove that nothing is missing (not available yet).",
        "`cdc status` shows the applied position of each table.",
    ),
}


def register(app: typer.Typer) -> None:
    for name, (help_text, remedy) in _WHAT.items():
        _add(app, name, help_text, remedy)


def _add(app: typer.Typer, name: str, help_text: str, remedy: str) -> None:
    @app.command(name, help=help_text, context_settings=_ANY, rich_help_panel="Later")
    def refuse(ctx: typer.Context) -> None:
        raise UsageError(f"`cdc {name}` is not available yet", remedy=remedy)
