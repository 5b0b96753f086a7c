"""``cdc batch accept-gap``: go on although transactions are missing, and keep that on record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdc.commands.batch import Subscriber, batch
from cdc.commands.common import Destination, Json, load, out, print_json
from cdc.errors import UsageError

if TYPE_CHECKING:
    from cdc.config import DestinationConfig
    from cdc.meta import Gap, TableRecord


def register(app: typer.Typer) -> None:
    """Adds it to the group ``cdc batch``, which is there already."""
    batch.command("accept-gap")(accept_gap)


def accept_gap(
    ctx: typer.Context,
    dest: Destination = None,
    subscriber: Subscriber = "apply",
    table: Annotated[
        list[str] | None,
        typer.Option(
            "--table",
            metavar="DB.TABLE",
            help="Accept a Delta table as it is now, or that it is gone and is made anew; may be repeated.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Accept that tables lack changes: those before the store's beginning, or, with --table, those that a Delta table
    has lost. The gap is recorded, shown by `cdc status` and carried by every later batch."""
    from cdc.batches.service import BatchService
    from cdc.batches.subscribers import accept_beginning, accept_tables

    config = load(ctx, dest)
    service = BatchService(config)
    if table:
        gaps = accept_tables(
            service.meta, subscriber, {name: table_record(config, name) for name in dict.fromkeys(table)}
        )
    else:
        gaps = accept_beginning(service, subscriber)
    if as_json:
        print_json({"subscriber": subscriber, "gaps": [plain_gap(gap) for gap in gaps]})
        return
    for gap in gaps:
        whose = "all tables" if gap.table is None else gap.table
        out().print(
            f"Accepted for {whose}: the changes behind {gap.after_seq} up to {gap.until_seq} may be missing.",
            markup=False,
            soft_wrap=True,
        )


def plain_gap(gap: Gap) -> dict[str, Any]:
    """An accepted gap as scripts find it."""
    return gap.model_dump(mode="json")


def table_record(config: DestinationConfig, table: str) -> TableRecord | None:
    """The table's record, made anew; None where there is no Delta table. Raises UsageError for a table that is not the
    destination's, TargetError and RetryableError for one that cannot be read."""
    from cdc.meta import TableRecord
    from cdc.targets import split_table, table_path
    from spark_jobs.delta.log import read_state

    if not config.tables.includes(*split_table(table)):
        raise UsageError(
            f"{table} is not a table of {config.name}", remedy="Write it as db.table, as `cdc status` does."
        )
    state = read_state(table_path(config.apply.target, *split_table(table)), config.name, table)
    return None if state is None else TableRecord(state.generation, state.version, state.applied_seq, state.id)
