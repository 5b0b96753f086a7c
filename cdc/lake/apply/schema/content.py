"""The statement of a DDL batch that changes a table's rows and carries its applied position, as SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import types as t

from cdc.base.targets import SOURCE_COLUMN
from cdc.lake.apply.schema.plan import NOTHING, differs
from cdc.lake.delta.layout import Layout, layout_of
from cdc.lake.delta.sql import literal, quote
from cdc.lake.delta.tables import BEFORE, Target, ddl_type, delta_schema, sql_properties

if TYPE_CHECKING:
    from cdc.lake.apply.schema.plan import PlannedColumn
    from cdc.lake.apply.schema.statements import DdlStatement
    from cdc.lake.delta.log import DeltaState


def fill_statement(target: Target, values: Mapping[str, str]) -> str:
    """Returns the UPDATE that gives old rows their values, SQL by the names of columns, after these have their names
    and types."""
    values = {quote(name): value for name, value in values.items()}
    conditions = [] if target.own_rows is None else [target.own_rows]
    if all(value == NOTHING or name in value for name, value in values.items()):  # files without a change stay
        conditions.append(f"({' OR '.join(differs(name, value) for name, value in values.items())})")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    listed = ", ".join(f"{name} = {value}" for name, value in values.items())
    return f"UPDATE {target.sql} SET {listed}{where}"  # noqa: S608 - names are quoted, values are literals


def delete_statement(target: Target) -> str:
    """Returns the DELETE of all rows that are the member's own."""
    own = "" if target.own_rows is None else f" WHERE {target.own_rows}"
    return f"DELETE FROM {target.sql}{own}"  # noqa: S608


def truncate_statement(target: Target, statement: DdlStatement, applied_seq: int) -> str:
    """Returns what TRUNCATE TABLE means in the table's mode: no rows, rows marked as deleted, no current version, or
    one more change."""
    if target.apply.mode != "append":
        return removal_statement(target, statement)
    time, gtid = _time(statement), _gtid(statement)
    row = f"'truncate' AS _op, {statement.seq}L AS _seq, 0L AS _row, {time} AS _commit_time, {gtid} AS _gtid"
    names = "_op, _seq, _row, _commit_time, _gtid"
    own = ""
    if target.apply.shared:
        row, names = f"{row}, {literal(target.member)} AS {SOURCE_COLUMN}", f"{names}, {SOURCE_COLUMN}"
        own = f" AND t.{target.own_rows}"
    return (
        f"MERGE INTO {target.sql} t USING (SELECT {row}) s "  # noqa: S608
        f"ON t._seq = s._seq AND t._row = s._row AND t._seq > {applied_seq}L{own} "
        f"WHEN NOT MATCHED THEN INSERT ({names}) VALUES (s.{names.replace(', ', ', s.')})"
    )


def removal_statement(target: Target, statement: DdlStatement, where: str | None = None) -> str:
    """Returns what the removal of rows by a statement means in a mode other than ``append``: they go, are marked as
    deleted, or are closed. ``where``: the condition of the rows; None for all of them."""
    conditions = [*([] if where is None else [f"({where})"]), *([] if target.own_rows is None else [target.own_rows])]
    own = "".join(f" AND {condition}" for condition in conditions)
    time = _time(statement)
    if target.apply.mode == "soft_delete":
        return (
            f"UPDATE {target.sql} SET _deleted = true, _commit_time = {time}, _seq = {statement.seq}L "  # noqa: S608
            f"WHERE NOT _deleted{own}"
        )
    if target.apply.mode == "scd2":
        return (
            f"UPDATE {target.sql} SET _valid_to = greatest(_valid_from, {time}), _current = false "  # noqa: S608
            f"WHERE _current{own}"
        )
    chosen = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"DELETE FROM {target.sql}{chosen}"  # noqa: S608


def deletes_statement(target: Target, statement: DdlStatement, view: str, columns: Sequence[str]) -> str:
    """Returns the MERGE that adds a row with ``_op`` ``delete`` to a changelog for each row of a view, which has the
    source's columns in Delta, and ``_row``."""
    image = ", ".join(f"{literal(name)}, s.{quote(name)}" for name in columns)
    values = {
        **{quote(name): f"s.{quote(name)}" for name in columns},
        BEFORE: f"named_struct({image})", "_op": "'delete'", "_seq": f"{statement.seq}L", "_row": "s._row",
        "_commit_time": _time(statement), "_gtid": _gtid(statement),
        **({SOURCE_COLUMN: literal(target.member)} if target.apply.shared else {}),
    }  # fmt: skip
    return (
        f"MERGE INTO {target.sql} t USING {view} s ON t._seq = {statement.seq}L AND t._row = s._row"  # noqa: S608
        f"{'' if target.own_rows is None else f' AND t.{target.own_rows}'} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(values)}) VALUES ({', '.join(values.values())})"
    )


def _time(statement: DdlStatement) -> str:
    return f"timestamp_micros({round(statement.commit_time.timestamp() * 1_000_000)}L)"


def _gtid(statement: DdlStatement) -> str:
    return "CAST(NULL AS STRING)" if statement.gtid is None else literal(statement.gtid)


def rewrite_statement(
    target: Target,
    columns: Sequence[PlannedColumn],
    properties: dict[str, str],
    source: DeltaState | None,
    *,
    is_empty: bool = False,
    joined: str = "",
) -> str:
    """Returns the statement that replaces the table by what ``columns`` make of a version of a table, in one commit.
    None as the source, and ``is_empty``: by no rows. ``joined``: a JOIN with other rows, whose values the columns
    use."""
    empty = is_empty or source is None
    rows = rows_query(target, columns, None if empty else source, joined=joined)
    return (
        f"CREATE OR REPLACE TABLE {target.sql} USING delta{planned_layout(target, columns, source).clause} "
        f"TBLPROPERTIES ({sql_properties(properties)}) AS {rows}"
    )


def rows_query(
    target: Target, columns: Sequence[PlannedColumn], source: DeltaState | None, *, joined: str = "", where: str = ""
) -> str:
    """Returns the query for what ``columns`` make of a version of a table, and the columns of the mode. None as the
    source: for no rows. ``joined``: as for :func:`rewrite_statement`; ``where``: a condition of the rows."""
    kinds = {field.name: field.dataType for field in delta_schema([], target.apply.mode).fields}
    empty = source is None
    selected = [f"{_value(c, '', is_empty=empty)} AS {quote(c.name)}" for c in columns]
    for name, kind in kinds.items():
        if name == BEFORE:
            selected.append(f"{_before(columns, is_empty=empty)} AS {BEFORE}")
        else:
            selected.append(f"CAST(NULL AS {ddl_type(kind)}) AS {name}" if empty else name)
    taken = " WHERE false"
    if source is not None:
        taken = f" FROM delta.{quote(source.path)} VERSION AS OF {source.version}{joined}{where and f' WHERE {where}'}"
    return f"SELECT {', '.join(selected)}{taken}"


def planned_layout(target: Target, columns: Sequence[PlannedColumn], former: DeltaState | None) -> Layout:
    """Returns the layout of a new generation with these columns. ``former``: the table whose rows it gets. Raises
    ConfigError."""
    fields = [t.StructField(column.name, column.type) for column in columns]
    return layout_of(target, [*fields, *delta_schema([], target.apply.mode).fields], former)


def _value(column: PlannedColumn, prefix: str, *, is_empty: bool) -> str:
    """Returns the SQL of a column's values, of exactly its type."""
    kind = ddl_type(column.type)
    if is_empty or (column.was is None and (column.value is None or prefix)):
        return f"CAST(NULL AS {kind})"
    old = "" if column.was is None else prefix + quote(column.was.name)
    value = old if column.value is None else column.value(old)
    return value if column.was is not None and column.was.type == column.type else f"CAST({value} AS {kind})"


def _before(columns: Sequence[PlannedColumn], *, is_empty: bool) -> str:
    fields = ", ".join(f"{literal(c.name)}, {_value(c, f'{BEFORE}.', is_empty=is_empty)}" for c in columns)
    return f"CASE WHEN {'false' if is_empty else f'{BEFORE} IS NOT NULL'} THEN named_struct({fields}) END"
