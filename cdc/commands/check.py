"""``cdc check``: examines source, store, meta, target and Spark, and prints each finding with its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cdc.commands.common import Destination, Json, load, out, print_json, working
from cdc.errors import CdcError

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.source.findings import Finding


def register(app: typer.Typer) -> None:
    """Adds the command to ``app``."""
    app.command("check")(check)


def check(ctx: typer.Context, dest: Destination = None, json: Json = False) -> None:
    """Examine the source, the store, the meta, the target and Spark.

    Exit code 0 means that nothing prevents capture and apply (warnings are possible), 2 that something has to be
    changed first, 1 that the source cannot be reached now.
    """
    config = load(ctx, dest)
    with working("Checking …"):
        findings, code = examine(config)
    if json:
        print_json(
            {
                "destination": config.name,
                "ok": code == 0,
                "findings": [
                    {"level": f.level, "subject": f.subject, "message": f.message, "remedy": f.remedy} for f in findings
                ],
            }
        )
    else:
        _print(config, findings)
    raise typer.Exit(code)


def examine(config: DestinationConfig) -> tuple[list[Finding], int]:
    """Returns all findings and the exit code, which is 1 if the only error is that the source does not answer."""
    from cdc.client import open_store
    from cdc.commands import check_local
    from cdc.source.findings import from_error
    from cdc.source.preflight import check_source
    from cdc.store.formats.state import is_locked

    findings: list[Finding] = []
    unreachable: list[Finding] = []
    local = check_local.examine(config)
    last_seq: int | None = None
    is_here = config.store.kind == "file"  # else capture runs where the server does
    first_start = running = False
    try:
        store = open_store(config)
        last_seq = store.last_seq()
        first_start = last_seq is None
        if not is_here:
            capture = store.capture_state()
            running = capture is not None and capture.running
    except CdcError as trouble:
        if not any(f.subject in ("store", "server") and f.level == "error" for f in local):
            findings.append(from_error("store", trouble))
    try:
        if is_here:
            running = config.store.path.is_dir() and is_locked(config.store.path)
        findings += check_source(config, own_capture_running=running, first_start=first_start)
        if is_here and last_seq is not None and not any(f.level == "error" for f in findings):
            findings.append(_history(config, last_seq))
    except CdcError as trouble:
        (unreachable if trouble.retryable else findings).append(from_error("source", trouble))
    findings += local
    if any(f.level == "error" for f in findings):
        return unreachable + findings, 2
    return unreachable + findings, 1 if unreachable else 0


def _history(config: DestinationConfig, last_seq: int) -> Finding:
    """Checks that the source still has the transactions that capture reads next, after those that the store holds.
    Raises retryable errors."""
    from cdc.capture.start import prove_start
    from cdc.meta import open_meta
    from cdc.source.connection import connect
    from cdc.source.findings import from_error, ok, warning

    subject = "source: history"
    conn = connect(config.source)
    try:
        proof = prove_start(config, conn, open_meta(config), last_seq)
    except CdcError as trouble:
        if trouble.retryable:
            raise
        return from_error(subject, trouble)
    finally:
        conn.close()
    if proof.doubt is not None:
        return warning(subject, proof.doubt, "Make sure that source.url still names the same server.")
    return ok(subject, f"the server has the history that the store was captured from: {'; '.join(proof.proved)}")


_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


def _print(config: DestinationConfig, findings: list[Finding]) -> None:
    from rich.text import Text

    console = out()
    for finding in findings:
        mark, colour = _MARKS[finding.level]
        console.print(Text.assemble((f"{mark} ", colour), (finding.subject, "bold"), f": {finding.message}"))
        if finding.remedy:
            console.print(Text(f"    → {finding.remedy}"))
    errors = sum(f.level == "error" for f in findings)
    warnings = sum(f.level == "warning" for f in findings)
    if errors:
        verdict = f"{config.name}: {_count(errors, 'error')}, {_count(warnings, 'warning')}"
    elif warnings:
        verdict = f"{config.name}: ready, with {_count(warnings, 'warning')}"
    else:
        verdict = f"{config.name}: ready"
    console.print()
    console.print(Text(verdict, "bold"))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
