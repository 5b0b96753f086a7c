"""Policies for columns and values: what becomes of which type, and that nothing else leaves the decoder."""

from __future__ import annotations

import contextlib
import hmac
import logging
import shutil
from collections import deque
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from structlog.testing import capture_logs

from cdc.base.errors import CdcError, ConfigError, MergeFailedError, TargetError, UnsupportedError
from cdc.batches.manifest import TableResult
from cdc.batches.results import run_stats
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
from cdc.binlog.table_map import ColumnType
from cdc.config import ApplyConfig, ColumnPolicy, DestinationConfig, parse
from cdc.decode import TableLayout, ValuePolicies, decode_range
from cdc.decode.column_types import DEFAULT_POLICIES
from cdc.decode.columns import Column
from cdc.decode.layout import METADATA_FIELDS, _alike
from cdc.decode.policies import (
    KEEP,
    ColumnPolicies,
    PolicedColumn,
    SourceColumn,
    as_select_prints,
    hashed,
    masked,
    police,
)
from cdc.lake.delta.log import DeltaState
from cdc.lake.delta.tables import COLUMNS_PROPERTY, Target, require_same_policies
from cdc.lake.rows import null_dates, split_reader
from cdc.lake.rows.column_types import from_arrow_schema, to_arrow
from cdc.lake.rows.columns import SourceColumns, TablePolicies, columns_of_layout, columns_of_schema
from cdc.lake.rows.data_source import ChangesReader
from cdc.lake.rows.input_splits import InputSplit
from cdc.lake.runtime import driver
from cdc.store.formats.index import make_header, seal
from cdc.store.formats.layout import index_path, segment_name, segments_folder
from tests.support.unit_decode import GOLDEN, TABLE, golden

KEY = b"Sesam, open the door"
HASH, DROP, NULL = (ColumnPolicy(kind=kind) for kind in ("hash", "drop", "null"))
RENAME = ColumnPolicy(kind="rename", name="other")


def mask(last: int) -> ColumnPolicy:
    return ColumnPolicy(kind="mask", last=last)


def digest(value: str | bytes, key: bytes = KEY) -> str:
    return hmac.digest(key, value if isinstance(value, bytes) else value.encode(), "sha256").hex()


@pytest.mark.parametrize(
    ("key", "data", "expected"),
    [  # RFC 4231, cases 1, 2, 3 and 6
        (b"\x0b" * 20, b"Hi There", "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"),
        (b"Jefe", b"what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"),
        (b"\xaa" * 20, b"\xdd" * 50, "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe"),
        (
            b"\xaa" * 131,
            b"Test Using Larger Than Block-Size Key - Hash Key First",
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54",
        ),
    ],
)
def test_hmac_sha_256(key: bytes, data: bytes, expected: str) -> None:
    assert hashed(pa.array([data, None, data], pa.binary()), key).to_pylist() == [expected, None, expected]


INSTANT = pa.timestamp("us", tz="UTC")
TEXTS: list[tuple[pa.DataType, list[Any], list[str], int]] = [
    (pa.string(), ["é😀", ""], ["é😀", ""], 0),
    (pa.bool_(), [True, False], ["1", "0"], 0),
    (pa.int8(), [-128, 7], ["-128", "7"], 0),
    (pa.int16(), [-1, 2024], ["-1", "2024"], 0),
    (pa.int32(), [2147483647], ["2147483647"], 0),
    (pa.int64(), [-9223372036854775808], ["-9223372036854775808"], 0),
    (pa.decimal128(20, 0), [Decimal(18446744073709551615)], ["18446744073709551615"], 0),
    (pa.decimal128(38, 10), [Decimal("0E-10"), Decimal("-1.5")], ["0.0000000000", "-1.5000000000"], 0),
    (pa.float32(), [0.1, 16777216.0, 1e20], ["0.1", "16777216", "1e20"], 0),
    (pa.float64(), [1e15, 1e14, 2.5e-7, 1e-15, 1e-16], ["1e15", "100000000000000", "0.00000025", "0.000000000000001", "1e-16"], 0),
    (pa.float64(), [-0.0, 3.0, 1.2345678901234568e17, -5e-324], ["-0", "3", "1.2345678901234568e17", "-5e-324"], 0),
    (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)], ["0001-01-01", "9999-12-31"], 0),
    (pa.timestamp("us"), [datetime.fromisoformat("1969-12-31T23:59:59")], ["1969-12-31 23:59:59"], 0),
    (pa.timestamp("us"), [datetime.fromisoformat("0001-01-01T00:00:00.120")], ["0001-01-01 00:00:00.120"], 3),
    (INSTANT, [datetime(2024, 2, 29, 1, 2, 3, 7, tzinfo=UTC)], ["2024-02-29 01:02:03.000007"], 6),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "values", "texts", "digits"), TEXTS, ids=lambda value: str(value)[:30])
def test_values_are_hashed_as_select_prints_them(
    kind: pa.DataType, values: list[Any], texts: list[str], digits: int
) -> None:
    assert as_select_prints(pa.array(values, kind), digits).to_pylist() == texts
    given = pa.array([None, *values, *values, None], kind)
    expected = [None, *map(digest, texts), *map(digest, texts), None]
    assert hashed(given, KEY, digits).to_pylist() == expected
    assert hashed(given.slice(1, len(values)), KEY, digits).to_pylist() == expected[1 : len(values) + 1]
    assert hashed(pa.array([], kind), KEY, digits).to_pylist() == []
    assert hashed(pa.nulls(3, kind), KEY, digits).to_pylist() == [None, None, None]


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (0, ["******", "***", "", None, "**"]),
        (2, ["****ef", "*😀x", "", None, "ab"]),
        (9, ["abcdef", "é😀x", "", None, "ab"]),
    ],
)
def test_masks_keep_the_last_characters(last: int, expected: list[str | None]) -> None:
    given = pa.array(["abcdef", "é😀x", "", None, "ab"])
    assert masked(given, last).to_pylist() == expected
    assert masked(given.slice(2), last).to_pylist() == expected[2:]
    assert masked(pa.array([], pa.string()), last).to_pylist() == []


SCALARS = [kind for kind, *_ in TEXTS] + [pa.binary()]


@pytest.mark.parametrize("kind", [*dict.fromkeys(SCALARS), pa.list_(pa.float32())], ids=str)
def test_which_policy_fits_which_type(kind: pa.DataType) -> None:
    source = SourceColumn("c", kind)

    def becomes(policy: ColumnPolicy) -> pa.Field | None:
        applied = police("shop.t", source, policy)
        return None if applied is None else applied.field

    assert becomes(KEEP) == becomes(NULL) == pa.field("c", kind)
    assert becomes(RENAME) == pa.field("other", kind)
    assert becomes(DROP) is None
    if pa.types.is_list(kind):
        with pytest.raises(
            ConfigError, match=r"table shop\.t: columns\.c: the policy hash does not fit .* single values"
        ):
            becomes(HASH)
    else:
        assert becomes(HASH) == pa.field("c", pa.string())
    if pa.types.is_string(kind):
        assert becomes(mask(4)) == pa.field("c", pa.string())
    else:
        with pytest.raises(
            ConfigError, match=r"the policy mask: 4 does not fit .* only texts .* Write hash, drop or null"
        ):
            becomes(mask(4))


def policed(*columns: tuple[str, pa.DataType, ColumnPolicy]) -> ColumnPolicies:
    policies = [police("shop.t", SourceColumn(name, kind), policy) for name, kind, policy in columns]
    return ColumnPolicies(tuple(policy for policy in policies if policy is not None), KEY)


def test_a_batch_and_its_before_images() -> None:
    policies = policed(
        ("id", pa.int32(), KEEP),
        ("gone", pa.string(), DROP),
        ("mail", pa.string(), HASH),
        ("pay", pa.decimal128(8, 2), NULL),
        ("phone", pa.string(), mask(2)),
        ("nick", pa.string(), RENAME),
    )
    assert policies.sources == ("id", "mail", "phone", "nick")
    assert [f.name for f in policies.fields] == ["id", "mail", "pay", "phone", "other"]
    own = [pa.array([1, 2], pa.int32()), pa.array(["a@x", None]), pa.array(["12345", "6"]), pa.array(["A", "B"])]
    old = [pa.array([None, 2], pa.int32()), pa.array([None, "b@x"]), pa.array([None, "98765"]), pa.array([None, "C"])]
    meta = [pa.array([1, 2], METADATA_FIELDS[0].type), *(pa.nulls(2, f.type) for f in METADATA_FIELDS[1:])]
    before = pa.StructArray.from_arrays(old, names=list(policies.sources), mask=pa.array([True, False]))
    names = [f.name for f in METADATA_FIELDS] + list(policies.sources)
    batch = pa.RecordBatch.from_arrays([*meta, *own, before], names=[*names, "_before"])
    new: list[dict[str, Any]] = [
        {"id": 1, "mail": digest("a@x"), "pay": None, "phone": "***45", "other": "A"},
        {"id": 2, "mail": None, "pay": None, "phone": "6", "other": "B"},
    ]
    was = {"id": 2, "mail": digest("b@x"), "pay": None, "phone": "***65", "other": "C"}
    policed_batch = policies.apply(batch)
    policed_batch.validate(full=True)
    assert policed_batch.schema.names == [
        *(f.name for f in METADATA_FIELDS),
        "id",
        "mail",
        "pay",
        "phone",
        "other",
        "_before",
    ]
    rows = policed_batch.to_pylist()
    assert [{k: row[k] for k in new[0]} for row in rows] == new
    assert [row["_before"] for row in rows] == [None, was]
    assert [row["_op"] for row in rows] == [1, 2]
    assert policies.apply(batch.slice(1)).to_pylist() == rows[1:]
    assert policies.apply(batch.select(names)).to_pylist() == [
        {k: v for k, v in r.items() if k != "_before"} for r in rows
    ]


def test_a_hash_needs_its_key() -> None:
    policies = ColumnPolicies((PolicedColumn(SourceColumn("a", pa.string()), HASH, pa.field("a", pa.string())),))
    with pytest.raises(ConfigError, match="column a is to be hashed, but no key was given"):
        policies.apply(pa.RecordBatch.from_arrays([pa.array(["x"])], names=["a"]))


def test_the_key_is_never_shown() -> None:
    table_policies = TablePolicies("shop.t", columns={"a": HASH}, key=KEY)
    own = columns_of_schema(table(column("varchar", "varchar(9)", "a")), table_policies)
    target = Target("shop.t", "/lake", ApplyConfig(target="/lake"), "shop", table_policies)
    for shown in (repr(table_policies), str(own), repr(target), str(own.options()), str(own.labels)):
        assert "Sesam" not in shown
        assert KEY.hex() not in shown


# --- the data source, without Spark's JVM


@pytest.fixture
def input_split(tmp_path: Path) -> InputSplit:
    """A store's segment, made of a golden file."""
    segments_folder(tmp_path).mkdir()
    segment = segments_folder(tmp_path) / segment_name(0, 1, 4)
    shutil.copyfile(GOLDEN / "decode-mysql9.binlog", segment)
    entries = golden("mysql9").entries
    index_path(segment).write_bytes(make_header() + seal(entries))
    begin = int(entries["offset"][0])
    return InputSplit(str(segment), begin, int(entries["offset"][-1] + entries["length"][-1]) - begin)


def golden_layout(policies: ValuePolicies) -> TableLayout:
    from cdc.decode.layout import range_layouts

    return next(range_layouts(golden("mysql9"), {TABLE: None}, policies))[1]


def read(
    input_split: InputSplit, fields: list[t.StructField], options: dict[str, str], images: str = "after"
) -> pa.Table:
    schema = t.StructType([*from_arrow_schema(pa.schema(METADATA_FIELDS)), *fields])
    if images == "both":
        schema = schema.add("_before", t.StructType(fields))
    reader = ChangesReader({"table": TABLE, "images": images, **options}, schema, KEY)
    return pa.Table.from_batches(reader.read(input_split))


@pytest.mark.parametrize("images", ["after", "both"])
def test_the_data_source_decodes_what_the_schema_wants(
    input_split: InputSplit, images: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[Any] = []

    def seen(*arguments: Any, **options: Any) -> Any:
        wanted.append(options["options"].columns)
        return decode_range(*arguments, **options)

    monkeypatch.setattr(split_reader, "decode_range", seen)
    plain = [t.StructField("txt", t.StringType()), t.StructField("i8", t.ByteType())]
    without = read(input_split, plain, {}, images)
    assert wanted.pop() == ("txt", "i8")
    columns = {"txt": HASH, "dt3": HASH, "nm": mask(1), "bin": DROP, "large": NULL, "i8": RENAME, "u64": HASH}
    values = ValuePolicies(time="microseconds")
    policies = TablePolicies(TABLE, columns=columns, values=values, key=KEY)
    own = columns_of_layout(golden_layout(values), policies)
    fields = [f for f in own.read_fields if f.name in ("txt", "dt3", "nm", "large", "other", "u64", "skipped")]
    batch = read(input_split, fields, own.options(), images)
    assert set(wanted.pop()) == {"txt", "dt3", "nm", "i8", "u64", "skipped"}
    assert batch.num_rows == without.num_rows
    first = {**batch.to_pylist()[0], "_before": None}
    row = without.to_pylist()[0]
    assert first["txt"] == digest(row["txt"])
    assert first["dt3"] == digest("9999-12-31 23:59:59.999")
    assert first["u64"] == digest("18446744073709551615")
    assert (first["nm"], first["large"], first["other"]) == ("*b", None, row["i8"])
    assert first["skipped"] == -((12 * 60 + 34) * 60 + 56) * 1_000_000 - 780_000
    assert batch.schema.field("large").type == pa.decimal128(38, 10)
    if images == "both":
        old = [(a["txt"], b["txt"] and digest(b["txt"])) for a, b in zip(*befores(batch, without), strict=True) if b]
        assert old
        assert all(text == expected for text, expected in old)


def befores(*tables: pa.Table) -> list[list[Any]]:
    return [table.column("_before").to_pylist() for table in tables]


def test_counting_rows_decodes_no_column(input_split: InputSplit) -> None:
    whole = read(input_split, [t.StructField("i8", t.ByteType())], {}, "both")
    batch = read(input_split, [], {}, "both")
    assert batch.num_rows == whole.num_rows
    assert batch.column("_seq").to_pylist() == whole.column("_seq").to_pylist()


def test_dates_that_became_null_are_told(input_split: InputSplit, caplog: pytest.LogCaptureFixture) -> None:
    fields = [t.StructField("day", t.DateType()), t.StructField("id", t.LongType())]
    with caplog.at_level(logging.WARNING):
        rows = read(input_split, [*fields, null_dates.FIELD], {}).to_pylist()
    zero = [row["day"] for row in rows if row["id"] == 2**63 - 1]  # that row has one, and its copies in changes
    assert set(zero) == {None}
    (note,) = [record.getMessage() for record in caplog.records]
    assert note.startswith(f"table {TABLE}, column day: {len(zero)} zero or impossible dates became null (")
    assert [row.pop(null_dates.COLUMN) for row in rows] == [len(zero), *[0] * (len(rows) - 1)]
    caplog.clear()
    assert read(input_split, fields, {}).to_pylist() == rows
    assert not caplog.records  # the reading that counts tells of them
    with pytest.raises(RuntimeError, match=r"towpath-error:.*zero or impossible date"):
        read(input_split, [t.StructField("day", t.DateType())], {"values": '{"zero_dates": "fail"}'})


def test_columns_whose_dates_are_counted() -> None:
    columns = [
        column("date", "date", "d"),
        column("datetime", "datetime(3)", "dt"),
        column("timestamp", "timestamp", "ts"),
        column("date", "date", "hidden"),
        column("time", "time", "at"),
        column("varchar", "varchar(9)", "v"),
    ]
    table_policies = TablePolicies("shop.t", columns={"dt": HASH, "ts": RENAME, "hidden": DROP}, key=KEY)
    own = columns_of_schema(table(*columns), table_policies)
    assert own.dates == ["d", "dt", "other"]
    assert [f.name for f in own.only([*own.dates, "v"]).fields] == ["d", "dt", "other", "v"]
    strict = replace(table_policies, values=ValuePolicies(zero_dates="fail"))
    assert columns_of_schema(table(*columns), strict).dates == []


def test_a_run_tells_of_null_dates_once_a_table() -> None:
    def merged(table: str, count: int) -> TableResult:
        return TableResult(table=table, null_dates=count)

    with capture_logs() as logs, contextlib.suppress(MergeFailedError), run_stats() as report:
        report.add([merged("shop.a", 3), merged("shop.b", 0), merged("shop.c", 1)])
        report.add([merged("shop.a", 4), merged("shop.b", 0)])
        raise MergeFailedError("the third batch failed")
    warnings = [log for log in logs if log["log_level"] == "warning"]
    assert [(log["table"], log["values"]) for log in warnings] == [("shop.a", 7), ("shop.c", 1)]


def test_lines_of_executors_are_for_developers() -> None:
    with capture_logs() as logs:
        driver._relay(StringIO("Traceback …\n26/11/21 WARN table shop.t, column d: 3 dates\n"), deque())
    assert not [log for log in logs if log["log_level"] != "debug"]


# --- a table's own columns


def column(data_type: str, column_type: str | None = None, name: str = "c", default: str | None = None) -> ColumnSchema:
    return ColumnSchema(
        name=name,
        data_type=data_type,
        column_type=column_type or data_type,
        nullable=True,
        default=default,
        extra="",
        charset=None,
        collation=None,
    )


def table(*columns: ColumnSchema, key: tuple[str, ...] = ()) -> TableSchema:
    return TableSchema(columns=columns, primary_key=key)


ALL = ValuePolicies(tinyint1="boolean", bit1="boolean", time="microseconds")


def test_types_with_policies() -> None:
    schema = table(
        column("tinyint", "tinyint(1)", "a"),
        column("tinyint", "tinyint(4)", "b"),
        column("bit", "bit(1)", "c"),
        column("bit", "bit(2)", "d"),
        column("time", "time(3)", "e"),
        column("json", "json", "f"),
        column("longtext", "longtext", "g"),
        column("vector", "vector(3)", "h"),
        column("json", "json", "i"),
        column("datetime", "datetime(3)", "j"),
    )
    table_policies = TablePolicies(
        "shop.t", columns={"i": HASH, "h": RENAME, "j": HASH, "b": NULL}, values=ALL, json="variant", key=KEY
    )
    own = columns_of_schema(schema, table_policies)
    assert [(f.name, f.dataType.simpleString()) for f in own.fields] == [
        ("a", "boolean"),
        ("b", "tinyint"),
        ("c", "boolean"),
        ("d", "bigint"),
        ("e", "bigint"),
        ("f", "variant"),
        ("g", "string"),
        ("other", "array<float>"),
        ("i", "string"),
        ("j", "string"),
    ]
    assert own.read_fields[5].dataType == t.StringType()
    assert own.policies.columns[-1].source.digits == 3
    assert {k: v for k, v in own.labels.items() if v != own.labels["j"]} == {
        "a": "as boolean", "b": "null", "c": "as boolean", "e": "as microseconds", "f": "as variant", "h": "rename: other"
    }  # fmt: skip
    assert own.labels["i"] == own.labels["j"] == f"hash with key {digest('towpath: which key')[:8]}"
    assert to_arrow(own.read_fields[7].dataType).value_type == pa.float32()


def test_rows_and_schema_agree_on_types() -> None:
    """The table may be made from the one and filled from the other."""
    columns = (
        Column("a", ColumnType.TINY, declared="tinyint", column_type="tinyint(1)"),
        Column("b", ColumnType.BIT, length=1, declared="bit", column_type="bit(1)"),
        Column("c", ColumnType.TIME2, scale=3, declared="time", column_type="time(3)"),
        Column("d", ColumnType.JSON, length=4, declared="json", column_type="json"),
        Column("e", ColumnType.DATETIME2, scale=3, declared="datetime", column_type="datetime(3)"),
        Column("f", ColumnType.LONG, declared="int", column_type="int"),
    )
    schema = table(*(column(str(c.declared), c.column_type, c.name) for c in columns))
    for values, json in ((ValuePolicies(), "text"), (ALL, "variant")):
        for policies in ({}, {"e": HASH, "f": NULL, "d": RENAME}, {"a": DROP, "d": DROP, "b": HASH}):
            table_policies = TablePolicies("shop.t", columns=policies, values=values, json=json, key=KEY)
            layout = TableLayout("shop.t", columns, ("f",), values)
            of_rows, of_schema = columns_of_layout(layout, table_policies), columns_of_schema(schema, table_policies)
            assert of_rows.fields == of_schema.fields
            assert of_rows.labels == of_schema.labels
            assert of_rows.options()["columns"].replace('"digits": 3', '"digits": 0') == of_schema.options()[
                "columns"
            ].replace('"digits": 3', '"digits": 0')


def test_an_undecodable_column_can_be_dropped() -> None:
    columns = (Column("a", ColumnType.LONG), Column("b", 99))
    layout = TableLayout("shop.t", columns, ("a",))
    with pytest.raises(UnsupportedError, match="column b has the type type 99, which cannot be decoded"):
        columns_of_layout(layout, TablePolicies("shop.t"))
    own = columns_of_layout(layout, TablePolicies("shop.t", columns={"b": DROP}))
    assert [f.name for f in own.fields] == ["a"]
    # A batch in which it changes is one that can be decoded, too.
    assert _alike(layout, replace(layout, columns=(columns[0], Column("b", 98))))
    assert not _alike(layout, replace(layout, columns=(Column("a", ColumnType.LONGLONG), columns[1])))


VARCHAR = ("varchar", "varchar(9)")


def keyed(
    policy: ColumnPolicy, values: ValuePolicies = DEFAULT_POLICIES, kind: tuple[str, str] = VARCHAR
) -> SourceColumns:
    """The columns k, of this kind and with this policy, and n."""
    table_policies = TablePolicies("shop.t", columns={"k": policy}, values=values, json="variant", key=KEY)
    return columns_of_schema(table(column(*kind, "k"), column("int", "int", "n")), table_policies)


def test_keys_in_the_lake() -> None:
    assert keyed(KEEP).keys(["K", "n"]) == ("k", "n")
    assert keyed(RENAME).keys(["k"]) == ("other",)
    assert keyed(HASH).keys(["k"]) == ("k",)
    assert keyed(KEEP, ALL, ("bit", "bit(1)")).keys(["k"]) == ("k",)
    boolean, document = ("tinyint", "tinyint(1)"), ("json", "json")
    for own, words in (
        (keyed(DROP), "with the policy drop"),
        (keyed(NULL), "with the policy null"),
        (keyed(mask(2)), "with the policy mask: 2"),
        (keyed(KEEP, ALL, boolean), r"with the policy types: \{tinyint\(1\): boolean\}"),
        (keyed(HASH, ALL, boolean), r"with the policy types: \{tinyint\(1\): boolean\}"),
        (keyed(KEEP, ALL, document), r"with the policy types: \{json: variant\}"),
    ):
        with pytest.raises(ConfigError, match=f"table shop.t: the column k is part of the table's key, .* {words}"):
            own.keys(["k"])


def test_names_in_the_lake() -> None:
    table_policies = TablePolicies("shop.t", columns={"a": RENAME, "b": DROP}, required=frozenset({"a", "b"}))
    assert [table_policies.lake_name(name) for name in ("A", "B", "c")] == ["other", None, "c"]
    table_policies.require_there(["A", "b"])
    with pytest.raises(ConfigError, match=r"columns names b, which the table does not have \(it has a, c\)"):
        table_policies.require_there(["a", "c"])
    table_policies.require_names(["a", "b"])
    with pytest.raises(ConfigError, match=r"columns\.A: cannot be renamed to other, which the table has already"):
        table_policies.require_names(["A", "OTHER"])


def state_of(own: SourceColumns, labels: str | None) -> DeltaState:
    properties = {} if labels is None else {COLUMNS_PROPERTY: labels}
    return DeltaState("/lake/x", 3, properties, t.StructType(own.fields).json(), 7)


@pytest.mark.parametrize(
    ("labels", "made", "now", "expected"),
    [
        (None, KEEP, KEEP, None),
        ('{"k": "drop"}', DROP, DROP, None),
        (None, DROP, DROP, None),  # a column that came after the table was made
        ('{"k": "rename: other"}', RENAME, RENAME, None),
        (None, KEEP, DROP, "by the policy keep so far.* says drop"),
        (None, KEEP, RENAME, "by the policy keep so far.* says rename: other"),
        ('{"k": "drop"}', DROP, KEEP, "by the policy drop so far.* says keep"),
        ('{"k": "mask: 3"}', mask(3), mask(4), "by the policy mask: 3 so far.* says mask: 4"),
        ('{"k": "hash with key 00000000"}', HASH, HASH, "by the policy hash with key 00000000 so far.* hash with key "),
    ],
)
def test_policies_stay_as_they_were(
    labels: str | None, made: ColumnPolicy, now: ColumnPolicy, expected: str | None
) -> None:
    table_policies = TablePolicies("shop.t", columns={"k": now}, key=KEY)
    place = Target("shop.t", "/lake/x", ApplyConfig(target="/lake"), "shop", table_policies)
    state = state_of(keyed(made), labels)
    if expected is None:
        require_same_policies(state, place, keyed(now), ["k", "n"])
    else:
        with pytest.raises(TargetError, match=f"the column k was written {expected}"):
            require_same_policies(state, place, keyed(now), ["k", "n"])


# --- configuration and DDL


def config(columns: str, rest: str = "") -> DestinationConfig:
    text = (
        "source: {url: 'mysql://a@b', server_id: 5, start: earliest}\ntables: {include: ['shop\\..*']}\n"
        f"store: {{path: a/b}}\nmeta: {{path: a/c}}\napply: {{target: lake, columns: {{{columns}}}{rest}}}\n"
    )
    return parse(text, Path("/srv/conf/shop.yaml"))


def test_a_key_is_needed_only_where_columns_are_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "key"
    file.write_text("Sesam\nsecond line\n")
    by_file = ApplyConfig(target="x", hash_key_file=file)
    assert TablePolicies.of("shop.t", by_file.model_copy(update={"columns": {"a": HASH}})).key == b"Sesam"
    monkeypatch.delenv("TOWPATH_TEST_KEY", raising=False)
    by_env = ApplyConfig(target="x", hash_key_env="TOWPATH_TEST_KEY")
    assert TablePolicies.of("shop.t", by_env).key is None
    with pytest.raises(CdcError):
        TablePolicies.of("shop.t", by_env.model_copy(update={"columns": {"a": HASH}}))
