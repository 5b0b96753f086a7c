"""The errors of statements that are not applied: each names the statement, the policy and the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdc.base.errors import NeedsSnapshotError, UnsupportedDdlError

if TYPE_CHECKING:
    from cdc.lake.apply.schema.statements import DdlStatement
    from cdc.lake.delta.tables import Target

ROUTE = "tables.route"
"""The setting that refuses a change which the Delta table of several source tables cannot follow."""


def refusal(target: Target, statement: DdlStatement, what: str, policy: str) -> UnsupportedDdlError:
    """Returns the error for a statement that a policy refuses. ``what``: what it does, as a clause whose subject is the
    statement; ``policy``: the setting with its value."""
    key = policy.partition(":")[0]
    change = f"Change {key} for the table (tables.overrides) if its Delta table may follow; or load"
    if policy == ROUTE:
        change = (
            "Take the change back at the source, or lead the table to another Delta table (tables.route); then load"
        )
    return UnsupportedDdlError(
        f"the statement {what}, which {policy} does not allow: {statement.shown}",
        place=f"table {target.table}",
        remedy=f"{change} the table anew with `cdc snapshot {target.destination} {target.table}`; or exclude it "
        "(tables.exclude).",
    )


def unknown(
    target: Target, statement: DdlStatement, reason: str, columns: tuple[str, ...] = ()
) -> UnsupportedDdlError | NeedsSnapshotError:
    """Returns the error for a statement after which only the server knows the table's rows, or the values of these
    columns alone."""
    if target.apply.on_unknown_effect == "fail":
        return refusal(
            target, statement, f"changes rows in a way that only the server knows ({reason})", "on_unknown_effect: fail"
        )
    reads = f", which reads {', '.join(columns)} and the key again" if columns else ""
    return NeedsSnapshotError(
        f"only the server knows the table's rows after this statement ({reason}): {statement.shown}",
        place=f"table {target.table}",
        remedy=f"Run `cdc snapshot {target.destination} {target.table}`{reads}; the other tables go on "
        "(on_unknown_effect).",
        seq=statement.seq,
        columns=columns,
    )


def not_understood(target: Target, statement: DdlStatement, clause: str) -> UnsupportedDdlError:
    """Returns the error for a statement that is not understood, so that not even a snapshot makes it harmless."""
    return UnsupportedDdlError(
        f"the statement is not understood{f' ({clause})' if clause else ''}: {statement.shown}",
        place=f"table {target.table}",
        remedy=f"Exclude the table, go on, include it again and load it with `cdc snapshot {target.destination} "
        f"{target.table}`.",
    )
