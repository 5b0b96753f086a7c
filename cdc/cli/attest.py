"""``cdc attest``: verifies what ``cdc verify --attest`` has signed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cdc.cli.common import Json, out, print_json, tables
from cdc.cli.verify import verifying
from cdc.lake.attestation.check import TableCheck, check_tables, exit_code
from cdc.lake.attestation.envelope import key_id, read_public_key, unseal
from cdc.lake.attestation.statement import require_readable

attest = typer.Typer(no_args_is_help=True, help="Check a signed document of an earlier verification.")

_VERDICTS = {"intact": "as signed", "changed": "CHANGED", "unknown": "not known"}


@attest.callback()
def _attest() -> None:
    """Check a signed document of an earlier verification."""


@attest.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file that `cdc verify --attest` wrote.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="TABLE…", help="Tables to check. Leave them out for all.", show_default=False),
    ] = None,
    key: Annotated[
        Path, typer.Option("--key", metavar="PEM", help="The public key of the one who signed it.", show_default=False)
    ] = ...,  # type: ignore[assignment]  # it is required
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            metavar="URI",
            help="Folder or URI of the tables, if they lie elsewhere than when they were verified.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check the signature, and that the Delta tables are as they were when it was signed.

    Needs neither the source nor the store nor Spark. Exit code 0: the tables are as signed, and they were proved. 2:
    something was changed, or differed when it was signed. 1: it could not be told, or not everything was proved.
    """
    public_key = read_public_key(key)
    statement = unseal(file, public_key)
    require_readable(statement, str(file))
    with verifying("checking") as progress:
        checks = check_tables(statement, target, names or (), progress)
    code = exit_code(statement, checks)
    if as_json:
        print_json(_document(statement, key_id(public_key), checks, code))
    else:
        _show(statement, key_id(public_key), checks, code)
    raise typer.Exit(code)


def _document(statement: dict[str, Any], signer: str, checks: list[TableCheck], code: int) -> dict[str, Any]:
    predicate = statement["predicate"]
    return {
        "ok": code == 0,
        "destination": predicate["destination"],
        "created": predicate["created"],
        "signed_by": signer,
        "verified": predicate["state"],
        "source": predicate["source"],
        "tables": [
            {
                "table": table_check.table,
                "state": table_check.state,
                "verified": table_check.verified,
                "path": table_check.path,
                "version": table_check.version,
                "newest_version": table_check.newest_version,
                "files": table_check.files,
                "faults": table_check.faults,
                "unknown": table_check.unknown,
            }
            for table_check in checks
        ],
    }


def _show(statement: dict[str, Any], signer: str, checks: list[TableCheck], code: int) -> None:
    from rich.table import Column, Table

    predicate = statement["predicate"]
    entries = {entry["table"]: entry for entry in predicate["tables"]}
    console = tables()
    console.print(f"{predicate['destination']}, verified at {predicate['created']}", markup=False)
    console.print(f"signed by {signer}", markup=False, soft_wrap=True)
    console.print()
    table = Table(
        Column("table", overflow="fold"), "rows", "version", "files", "verified", "now", box=None, pad_edge=False
    )
    for table_check in checks:
        rows = entries[table_check.table]["rows"]
        table.add_row(
            table_check.table,
            "–" if rows is None else str(rows),
            "–" if table_check.version is None else str(table_check.version),
            str(table_check.files),
            table_check.verified,
            _VERDICTS[table_check.state],
        )
    console.print(table, markup=False)
    for table_check in checks:
        lines = [*table_check.faults, *table_check.unknown]
        if lines:
            console.print()
            console.print(f"{table_check.table}:", markup=False)
        for line in lines:
            console.print(f"  {line}", markup=False, soft_wrap=True)
    text = {
        0: "The tables are as they were signed, and they were proved.",
        1: "Not everything was proved, or could be checked.",
        2: "Something was changed, or differed from the source when it was signed.",
    }[code]
    out().print(f"\n{text}", markup=False)
