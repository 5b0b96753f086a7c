"""``cdc check``: examines source, store, meta, target and Spark, and prints each finding with its remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cdc import meta
from cdc.base.errors import CdcError
from cdc.binlog.positions import split_file_name, split_seq
from cdc.capture.proof import Proof
from cdc.capture.servers import open_folder
from cdc.capture.start import prove_start
from cdc.capture.tracked_schemas import given_schemas
from cdc.cli import check_local
from cdc.cli.common import Destination, Json, load, one_line, out, print_json, working
from cdc.client import open_meta, open_store
from cdc.config import DestinationConfig, StartPosition
from cdc.config.memory import in_memory
from cdc.source.connection import connect
from cdc.source.findings import Advice, Finding, error, from_error, ok, warning
from cdc.source.folder_checks import examine_folder
from cdc.source.preflight import check_source, check_standbys
from cdc.source.purge import REMEDY, PurgeWatch
from cdc.store.formats.state import is_locked

if TYPE_CHECKING:
    from collections.abc import Iterator


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
                "findings": [_as_json(finding) for finding in findings],
            }
        )
    else:
        _print(config, findings)
    raise typer.Exit(code)


def examine(config: DestinationConfig) -> tuple[list[Finding], int]:
    """Returns all findings and the exit code, which is 1 if the only error is that the source does not answer."""
    findings: list[Finding] = []
    unreachable: list[Finding] = []
    local = check_local.examine(config)
    config = in_memory(config)  # what the server on this machine may have
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
        if config.source.folder is not None:
            findings += _folder(config, last_seq)
        else:
            findings += check_source(_current(config), own_capture_running=running, first_start=first_start)
        if is_here and last_seq is not None and not any(f.level == "error" for f in findings):
            findings += _history(config, last_seq)
    except CdcError as trouble:
        (unreachable if trouble.retryable else findings).append(from_error("source", trouble))
    findings += _standbys(config)
    findings += local
    if any(f.level == "error" for f in findings):
        return unreachable + findings, 2
    return unreachable + findings, 1 if unreachable else 0


def _folder(config: DestinationConfig, last_seq: int | None) -> list[Finding]:
    """Examines a folder of binlog files."""
    begin = 0 if last_seq is None else split_seq(last_seq).file_number
    if last_seq is None and isinstance(config.source.start, StartPosition):
        begin = split_file_name(config.source.start.file)[1]
    return examine_folder(config, open_folder(config), given_schemas(config), begin)


def _current(config: DestinationConfig) -> DestinationConfig:
    """Returns the configuration with the server that capture reads, which may be a standby."""
    if not config.source.standbys or config.store.kind == "server":
        return config
    identity = open_meta(config).source()
    return config.at_server(None if identity is None else identity.address)


def _standbys(config: DestinationConfig) -> list[Finding]:
    """Examines the standbys. One that does not answer now is a warning, because capture does not need it now."""
    from dataclasses import replace

    if not config.source.standbys:
        return []
    try:
        findings = check_standbys(config, _current(config).source)
    except CdcError as trouble:
        return [
            warning("standbys", f"they cannot be compared with the server: {trouble.message}", trouble.remedy or "")
        ]
    return [replace(finding, level="warning") if finding.level == "error" else finding for finding in findings]


def _history(config: DestinationConfig, last_seq: int) -> list[Finding]:
    """Checks that the source still has the transactions that capture reads next, after those that the store holds, and
    that it does not purge them soon. Raises retryable errors."""

    subject = "source: history"
    config = _current(config)
    if config.source.folder is not None:
        return _folder_history(config, last_seq)
    conn = connect(config.source)
    try:
        proof, position = prove_start(config, conn, meta.open_meta(config), last_seq)
        margin = PurgeWatch(config.source).measure(conn, position)
    except CdcError as trouble:
        if trouble.retryable:
            raise
        return [from_error(subject, trouble)]
    finally:
        conn.close()
    history = _proved(proof)
    near = margin.left < config.source.purge_alarm_ratio
    unread = error("source: unread", str(margin), REMEDY) if near else ok("source: unread", str(margin))
    return [history, unread]


def _folder_history(config: DestinationConfig, last_seq: int) -> list[Finding]:
    """Checks that the folder continues the history of the store. Raises retryable errors."""

    folder = open_folder(config)
    config = config.model_copy(update={"source": folder.source})
    try:
        proof, _ = prove_start(config, folder, meta.open_meta(config), last_seq)
    except CdcError as trouble:
        if trouble.retryable:
            raise
        return [from_error("source: history", trouble)]
    return [_proved(proof)]


def _proved(proof: Proof) -> Finding:
    if proof.doubt is not None:
        return warning("source: history", proof.doubt, "Make sure that source.url still names the same server.")
    proved = "; ".join(proof.proved)
    return ok("source: history", f"the server has the history that the store was captured from: {proved}")


def _as_json(finding: Finding) -> dict[str, object]:
    document: dict[str, object] = {name: getattr(finding, name) for name in ("level", "subject", "message", "remedy")}
    advice = finding.advice
    if advice is not None:
        document |= {
            "value": advice.value,
            "why": advice.why,
            "statements": list(advice.statements),
            "keep": advice.keep,
        }
        document |= {"managed": dict(advice.managed), "then": advice.then}
    return document


_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "error": ("✗", "red")}


def _print(config: DestinationConfig, findings: list[Finding]) -> None:
    from rich.text import Text

    console = out()
    for finding in findings:
        mark, colour = _MARKS[finding.level]
        advice = finding.advice
        message = finding.message if advice is None else advice.value
        console.print(
            Text.assemble((f"{mark} ", colour), (one_line(finding.subject), "bold"), f": {one_line(message)}")
        )
        if advice is not None:
            for label, text in _advice_lines(advice):
                console.print(Text.assemble((f"    {label:<5} ", "dim"), one_line(text)))
        elif finding.remedy:
            console.print(Text(f"    → {one_line(finding.remedy)}"))
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


def _advice_lines(advice: Advice) -> Iterator[tuple[str, str]]:
    """Yields the parts of an advice: a word, and a text in one piece, so that statements can be copied."""
    yield "why", advice.why
    for statement in advice.statements:
        yield "run", statement
    if advice.keep:
        yield "keep", f"{advice.keep} (in the server's configuration)"
    for service, text in advice.managed.items():
        yield "or", f"{service}: {text}"
    if advice.then:
        yield "then", advice.then


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
