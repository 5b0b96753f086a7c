"""``cdc remove``: removes a destination, and says before what goes and what stays."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cdc.base.units import human_bytes
from cdc.cli.common import Json, one_line, options, out, print_json, say, tables
from cdc.lifecycle.removal.plan import Options, Part, Plan
from cdc.lifecycle.removal.removal import Removal, require_name


def remove(
    ctx: typer.Context,
    dest: Annotated[str, typer.Argument(metavar="DEST", help="Name of the destination.", show_default=False)],
    yes: Annotated[
        bool | None,
        typer.Option(
            "--yes/--dry-run",
            help="Remove it, or only say what would be removed. With neither a terminal asks for the name.",
        ),
    ] = None,
    lake: Annotated[bool, typer.Option("--lake", help="Remove the destination's Delta tables, too.")] = False,
    archive: Annotated[bool, typer.Option("--archive", help="Remove its archive, too.")] = False,
    dags: Annotated[
        bool,
        typer.Option("--dags", help="Let Airflow forget its DAGs, by the program `airflow` of this environment."),
    ] = False,
    incomplete: Annotated[
        bool,
        typer.Option("--incomplete", help="Remove what there is, although the store or the meta is missing."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove a destination: subscriptions, meta, store, names in the catalog, stage and metrics.

    Without --yes, and with --dry-run, it says what it would remove, with sizes, what stays and why, and what prevents
    it. Delta tables and archive stay unless --lake and --archive are given. It is refused while capture, a server, a
    job or a standby works on the destination, and while a batch is outstanding. Call it again after an interruption: it
    goes on.

    Exit code 0 means that it is removed, or could be; 1 that somebody works on it; 2 that it cannot be removed here.
    """
    folder = options(ctx).conf_dir
    require_name(folder, dest)
    removal = Removal(folder, dest, Options(lake, archive, dags, incomplete))
    plan = removal.plan()
    if not as_json:
        _show(plan)
    if plan.obstacles:
        if as_json:
            print_json(plan.document(removed=False))
        for obstacle in plan.obstacles[1:]:
            say(f"cdc: {one_line(str(obstacle))}")
        raise plan.obstacles[0]
    may_ask = yes is None and not as_json and sys.stdin.isatty()
    if not yes and not (may_ask and _is_confirmed(dest)):
        if as_json:
            print_json(plan.document(removed=False))
        else:
            out().print("Nothing was removed. Add --yes to remove it.", markup=False)
        return
    removal.run(plan, progress=lambda step: say(one_line(step)))
    if as_json:
        print_json(plan.document(removed=True))
        return
    out().print(f"{dest} is removed.", markup=False)


def _is_confirmed(dest: str) -> bool:
    typed: str = typer.prompt(f"Type {dest} to remove all of this", default="", show_default=False)
    return typed == dest


def _show(plan: Plan) -> None:
    from rich.table import Table

    if plan.begun:
        out().print("A removal of this destination was cut off; it goes on.", markup=False)
    for title, parts in (("Removed:", plan.removed), ("Stays:", plan.staying)):
        if not parts:
            continue
        out().print(title, markup=False)
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for _ in range(4):
            table.add_column(overflow="fold")
        for part in parts:
            table.add_row(f"  {part.kind}", one_line(part.place), _size(part), one_line(_words(part)))
        tables().print(table, markup=False)
    for remark in plan.remarks:
        out().print(f"Note: {one_line(remark)}.", markup=False)
    if plan.commands:
        out().print("Left to you:", markup=False)
        for command in plan.commands:
            out().print(f"  {one_line(command)}", markup=False)


def _size(part: Part) -> str:
    words = [] if part.files is None else [f"{part.files:,} files" if part.files != 1 else "1 file"]
    return ", ".join(words + ([] if part.bytes is None else [human_bytes(part.bytes)]))


def _words(part: Part) -> str:
    return "; ".join(word for word in (part.detail, part.stays) if word)
