"""Table maps of three servers, and damaged ones."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdc.base.errors import DamagedError, SourceRefusedError, UnsupportedError, UnsupportedTypeError
from cdc.binlog.events import FormatDescription
from cdc.binlog.sql.schemas import ColumnSchema, TableSchema
from cdc.binlog.table_map import ColumnType, TableMap, parse_table_map
from cdc.decode.charsets.convert import decode_text
from cdc.decode.charsets.tables import charset_of
from cdc.decode.layout import TableLayout
from tests.support.unit_decode import KINDS, find_events, golden


def event_of(kind: str) -> bytes:
    pos, length = next(find_events(golden(kind), {19}))
    return golden(kind).buf[pos : pos + length].tobytes()


def column(name: str, kind: int, meta: bytes = b"", fields: bytes = b"") -> bytes:
    """The event of a table ``d.t`` with one column, without a checksum."""
    body = b"\x07\0\0\0\0\0\1\0\1d\0\1t\0" + bytes([1, kind, len(meta)]) + meta + b"\1"
    names = bytes([4, len(name) + 1, len(name)]) + name.encode()
    body += names + fields
    return b"\0\0\0\0\x13\1\0\0\0" + (19 + len(body)).to_bytes(4, "little") + bytes(6) + body


@pytest.mark.parametrize("kind", KINDS)
def test_golden(kind: str) -> None:
    table = parse_table_map(event_of(kind), True)
    assert (table.full_name, table.has_metadata) == ("shop.every", True)
    by_name = {c.name: c for c in table.columns}
    assert [table.columns[i].name for i in table.primary_key] == ["nm", "id"]
    assert [n for n, c in by_name.items() if c.unsigned] == ["u8", "u16", "u24", "u32", "u64"]
    assert [n for n, c in by_name.items() if not c.nullable] == ["i8", "id", "nm"]
    assert (by_name["large"].precision, by_name["large"].scale) == (38, 10)
    assert [by_name[n].scale for n in ("dt", "dt3", "ts", "skipped")] == [0, 3, 6, 2]
    assert [charset_of(by_name[n].collation or 0) for n in ("txt", "nm", "lat", "bin", "vb", "bl", "en")] == [
        "utf8mb4", "utf8mb4", "latin1", "binary", "binary", "binary", "utf8mb4",
    ]  # fmt: skip
    assert by_name["en"].members == (b"one", b"zwei", "drei €".encode())
    assert (by_name["txt"].length, by_name["nm"].length, by_name["bin"].length) == (1200, 40, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_every_cut_is_an_error_or_a_table(kind: str) -> None:
    event = event_of(kind)
    whole = parse_table_map(event, True)
    for size in range(len(event) - 4):
        try:
            cut = parse_table_map(event[:size], False)
        except DamagedError:
            continue
        # Only the optional fields at the end may be missing.
        assert cut.full_name == whole.full_name
        assert [c.type for c in cut.columns] == [c.type for c in whole.columns]


def test_char_of_more_than_255_bytes() -> None:
    table = parse_table_map(column("c", 254, bytes([0xFE ^ 0x30, 0xFC])), False)
    assert (table.columns[0].type, table.columns[0].length) == (ColumnType.STRING, 0x3FC)
    table = parse_table_map(column("c", 254, b"\xf7\1"), False)
    assert (table.columns[0].type, table.columns[0].length) == (ColumnType.ENUM, 1)


def test_unknown_type_is_named() -> None:
    with pytest.raises(UnsupportedTypeError, match=r"d\.t: has a column of the unknown type 99"):
        parse_table_map(column("c", 99), False)


def test_default_form_of_collations() -> None:
    table = parse_table_map(column("c", 15, b"\x64\0", bytes([2, 3, 8, 0, 33])), False)
    assert table.columns[0].collation == 33
    with pytest.raises(DamagedError):
        parse_table_map(column("c", 15, b"\x64\0", bytes([2, 3, 8, 1, 33])), False)


def test_without_metadata_the_remedy_is_named() -> None:
    table = TableMap(1, "d", "t", (), (), False)
    with pytest.raises(SourceRefusedError, match="binlog_row_metadata=FULL"):
        TableLayout.of(table)


def test_own_names_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="_SEQ"):
        TableLayout.of(parse_table_map(column("_SEQ", 3), False))


def test_types_in_disguise_are_known_from_the_schema() -> None:
    table_map = parse_table_map(column("c", 254, b"\xfe\x10", bytes([3, 1, 63])), False)

    def field(data_type: str) -> pa.Field:
        column_schema = ColumnSchema(
            name="c", data_type=data_type, column_type=data_type, nullable=True, default=None, extra="",
            charset=None, collation=None,
        )  # fmt: skip
        schema = TableSchema(columns=(column_schema,), primary_key=())
        return TableLayout.of(table_map, schema).arrow_schema().field("c").type

    assert field("uuid") == pa.string()
    assert field("inet6") == pa.string()
    assert field("binary") == pa.binary()
    assert field("inet4") == pa.binary()  # of another length: the schema is of another time


def test_text_in_an_unknown_collation_is_named() -> None:
    layout = TableLayout.of(parse_table_map(column("c", 15, b"\x64\0", bytes([3, 3, 0xFC, 0x0F, 0x27])), False))
    with pytest.raises(UnsupportedTypeError, match="unknown collation 9999"):
        layout.arrow_schema()


def test_latin1_is_cp1252_without_holes() -> None:
    assert decode_text(b"\x80\x81\x8d\x8f\x90\x9d\x9f\xe9", "latin1") == "€\x81\x8d\x8f\x90\x9d\u0178é"
    with pytest.raises(LookupError):
        decode_text(b"a", "ebcdic")


MYSQL = FormatDescription("8.0.12", True, b"")
MARIADB = FormatDescription("10.5.23-MariaDB", True, b"")
EARLY_MYSQL8 = {
    # a VARCHAR(9) CHARACTER SET utf8mb4, g GEOMETRY, b VARCHAR(9) CHARACTER SET latin1, c and e as a
    "geometry": "8316086b13565d00004d000000e90200000000550000000000010001640002743000050fff0f0f0f092400040900240024001f"
    "0205fcff000108070100040a016101670162016301656c492097",
    # e ENUM('a'), s SET('b') in latin1, b VARCHAR(9) in latin1, v, w and x in utf8mb4
    "members": "8316086b13565d00005a000000b6090000000058000000000001000164000274330006fefe0f0f0f0f0cf701f8010900240024"
    "0024003f0205fcff000008040c01650173016201760177017805030101620603010161ec4b268a",
    # i INT, y YEAR, u INT UNSIGNED, s INT
    "year": "0b1a086b13986900003a0000005f020000000055000000000001000164000274300004030d0303000f0101400408016901790175"
    "0173dbbe20c7",
}
"""Table maps of MySQL 8.0.12, which sends no VISIBILITY, and no character set of ENUM and SET."""


def test_mysql_does_not_count_geometry_among_texts() -> None:
    event = bytes.fromhex(EARLY_MYSQL8["geometry"])
    assert [column.collation for column in parse_table_map(event, True, writer=MYSQL).columns] == [
        255, None, 8, 255, 255
    ]  # fmt: skip
    assert parse_table_map(event, True, writer=MARIADB).columns[1].collation == 8


def _enum(members: str, charset: str) -> TableSchema:
    schema = ColumnSchema(
        name="c", data_type="enum", column_type=f"enum('{members}')", nullable=True, default=None, extra="",
        charset=charset, collation=None,
    )  # fmt: skip
    return TableSchema(columns=(schema,), primary_key=())


def test_members_whose_character_set_the_table_map_does_not_tell() -> None:
    plain = TableLayout.of(parse_table_map(bytes.fromhex(EARLY_MYSQL8["members"]), True, writer=MYSQL))
    assert [column.members for column in plain.columns[:2]] == [("a",), ("b",)]

    def enum(member: bytes, schema: TableSchema | None) -> tuple[str, ...]:
        fields = bytes([6, len(member) + 2, 1, len(member)]) + member
        table_map = parse_table_map(column("c", 254, b"\xf7\1", fields), False, writer=MYSQL)
        return TableLayout.of(table_map, schema).columns[0].members

    assert enum(b"\xe9", _enum("é", "latin1")) == ("é",)
    assert enum(b"\x00a", _enum("a", "ucs2")) == ("a",)
    with pytest.raises(SourceRefusedError, match=r"does not tell the character set of the column c, .*`cdc snapshot`"):
        enum(b"\xe9", None)
    with pytest.raises(SourceRefusedError, match="does not tell"):
        enum(b"\x00a", None)


@pytest.mark.parametrize(
    ("version", "of_mysql_5"), [("5.7.22-log", True), ("8.0.12", False), ("10.5.23-MariaDB", False)]
)
def test_json_of_mysql_5_is_known(version: str, of_mysql_5: bool) -> None:
    table_map = parse_table_map(column("c", 245, b"\4"), False, writer=FormatDescription(version, False, b""))
    assert table_map.columns[0].of_mysql_5 == of_mysql_5


# i INT, y YEAR, u INT UNSIGNED, s INT of MySQL 8.0.33
LATER_YEAR = "0c1a086b130c4c00003d0000006e02000000006a000000000001000164000274300004030d0303000f010160040801690179017501730c01f0db058b01"


def _of_year(version: str, event: str, columns: dict[str, str] | None = None) -> list[bool]:
    writer = FormatDescription(version, True, b"")
    definitions = [
        ColumnSchema(name=name, data_type=kind.split()[0], column_type=kind, nullable=True, default=None, extra="",
                     charset=None, collation=None)
        for name, kind in (columns or {}).items()
    ]  # fmt: skip
    schema = TableSchema(columns=tuple(definitions), primary_key=()) if definitions else None
    layout = TableLayout.of(parse_table_map(bytes.fromhex(event), True, writer=writer), schema)
    return [column.unsigned for column in layout.columns if column.name != "y"]


def test_signs_behind_a_year() -> None:
    """MySQL 8.0.12 does not count YEAR, later versions do; between them, the definition decides."""
    assert _of_year("8.0.12", EARLY_MYSQL8["year"]) == [False, True, False]
    assert _of_year("8.0.33", LATER_YEAR) == [False, True, False]
    types = {"i": "int", "y": "year", "u": "int unsigned", "s": "int"}
    for event in (EARLY_MYSQL8["year"], LATER_YEAR):
        assert _of_year("8.0.20", event, types) == [False, True, False]
        with pytest.raises(SourceRefusedError, match="does not tell whether the column u is unsigned"):
            _of_year("8.0.20", event)
