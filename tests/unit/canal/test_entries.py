"""Entries against the values that SELECT shows, for every type of each server, and against a slow encoder."""

from __future__ import annotations

import zlib
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdc.base.errors import CdcError, ConfigError
from cdc.binlog.sql.schemas import quoted_members
from cdc.canal.encoder import EntryEncoder
from cdc.canal.kernels.entries import put_items
from cdc.canal.texts import as_text
from cdc.canal.zones import UTC, Zone, zone_of
from cdc.decode.transactions import Transactions
from tests.support.canal_proto import parsed
from tests.support.unit_decode import find_events, schemas_of, shown_values, typed

KINDS = ("mysql9", "mysql56", "mariadb10", "mariadb11")


def encoder(
    kind: str, zone: Zone = UTC, wanted: Any = lambda name: True, transactions: Transactions | None = None
) -> EntryEncoder:
    return EntryEncoder(
        [("golden", 0, 0)],
        schemas=schemas_of(kind),
        is_wanted=wanted,
        file_of=lambda seq: "binlog.000001",
        zone=zone,
        opener=lambda path, offset, length: transactions or typed(kind),
    )


def entries_of(entry_encoder: EntryEncoder, max_bytes: int = 1 << 22) -> list[Any]:
    """All entries, parsed."""
    entries = []
    while (taken := entry_encoder.take(max_bytes)) is not None:
        messages = parsed("Messages", bytes(taken.data)).messages
        assert len(messages) == taken.entries
        entries += [parsed("Entry", raw) for raw in messages]
    return entries


def rows_of(entries: list[Any], table: str = "kinds") -> list[tuple[Any, Any]]:
    """The header and row of each changed row of a table, in order."""
    rows = []
    for entry in entries:
        if entry.entry_type == 2 and entry.header.table_name == table:
            change = parsed("RowChange", entry.store_value)
            if not change.is_ddl:
                assert {p.key: p.value for p in entry.header.props}["rowsCount"] == str(len(change.row_datas))
                rows += [(entry.header, row) for row in change.row_datas]
    return rows


@pytest.mark.rule("canal-server-19")
@pytest.mark.parametrize("kind", KINDS)
def test_inserted_values_are_those_that_select_shows(kind: str) -> None:
    shown = shown_values(kind)["kinds"]["inserted"]
    schema = schemas_of(kind).tables["shop.kinds"]
    entries = entries_of(encoder(kind))
    inserted = [row for header, row in rows_of(entries) if header.event_type == 1]
    assert len(inserted) >= len(shown)
    compared = 0
    for row, values in zip(inserted, shown, strict=False):
        columns = {column.name: column for column in row.after_columns}
        assert not row.before_columns
        assert set(columns) >= set(values)
        for column_schema in schema.columns:
            column = columns[column_schema.name]
            assert column.mysql_type == column_schema.column_type
            assert column.updated
            assert column.is_key == (column_schema.name in schema.primary_key)
            if column_schema.name not in values:
                continue
            value = values[column_schema.name]
            assert column.is_null == (value is None and not zero_date(column)), column_schema.name
            if value is None:
                continue
            expected = expected_text(column_schema, value)
            assert column.value == expected, (column_schema.name, column_schema.column_type, value)
            compared += 1
    assert compared > 60


def zero_date(column: Any) -> bool:
    """Whether the golden values have null because Delta cannot hold the date."""
    return column.sql_type in (91, 93) and not column.is_null


def expected_text(column_schema: Any, value: Any) -> str:
    """Canal's text of a value in the golden file."""
    kind = column_schema.data_type
    if kind in ("enum", "set"):
        members = quoted_members(column_schema.column_type)
        if kind == "enum":
            return str(members.index(value) + 1) if value else "0"
        return str(sum(1 << members.index(member) for member in value.split(",")) if value else 0)
    if kind == "year":
        return f"{value:04d}"
    if kind == "float":
        return java_number(np.float32(value))
    if kind == "double":
        return java_number(np.float64(value))
    if kind in ("datetime", "timestamp"):
        digits = int(column_schema.column_type.partition("(")[2][:1] or 0)
        text = value.rstrip("Z").replace("T", " ")
        return str(text[: 20 + digits] if digits else text[:19])
    if isinstance(value, list):  # VECTOR
        return np.array(value, dtype=np.float32).tobytes().decode("latin-1")
    if (
        kind in ("binary", "varbinary")
        or kind.endswith("blob")
        or (column_schema.charset is None and is_hex(column_schema))
    ):
        return bytes.fromhex(value).decode("latin-1")
    return str(value)


def is_hex(column_schema: Any) -> bool:
    return column_schema.data_type in ("geometry", "point", "linestring", "polygon")


def java_number(value: Any) -> str:
    """``Double.toString`` with the shortest digits."""
    if value == 0:
        return "-0.0" if np.signbit(value) else "0.0"
    sign = "-" if value < 0 else ""
    digits, _, exponent = np.format_float_scientific(abs(value), trim="-").partition("e")
    if 1e-3 <= abs(value) < 1e7:
        text = format(Decimal(np.format_float_positional(abs(value), trim="-")), "f")
        return sign + (text if "." in text else f"{text}.0")
    return f"{sign}{digits if '.' in digits else digits.rstrip('.') + '.0'}E{int(exponent)}"


@pytest.mark.parametrize("kind", KINDS)
def test_updates_and_deletes_have_the_rows_that_select_showed(kind: str) -> None:
    """Old rows equal the new rows before them, and only what changed is marked."""
    state: dict[tuple[str, str], list[Any]] = {}
    seen = {2: 0, 3: 0}
    for table in ("kinds", "old"):
        for header, row in rows_of(entries_of(encoder(kind)), table):
            before = [(column.name, column.is_null, column.value) for column in row.before_columns]
            after = [(column.name, column.is_null, column.value) for column in row.after_columns]
            if before:
                assert state.pop((table, before[0][2])) == before
                assert not any(column.updated for column in row.before_columns)
                seen[header.event_type] += 1
            if after:
                state[table, after[0][2]] = after
            if before and after:
                marked = [column.updated for column in row.after_columns]
                changed = [new != old for new, old in zip(after, before, strict=True)]
                different = [c for c in range(len(marked)) if marked[c] != changed[c]]
                # The bytes of a document may change although its text does not.
                assert all(row.after_columns[c].sql_type == 12 for c in different), different
    assert min(seen.values()) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_entries_are_the_same_in_any_batches_and_after_any_rollback(kind: str) -> None:
    whole = [entry.SerializeToString() for entry in entries_of(encoder(kind))]
    entry_encoder = encoder(kind)
    marks, raw_entries = [entry_encoder.mark()], []
    while (taken := entry_encoder.take(1)) is not None:
        raw_entries += [bytes(raw) for raw in parsed("Messages", bytes(taken.data)).messages]
        marks.append(entry_encoder.mark())
    assert [parsed("Entry", raw).SerializeToString() for raw in raw_entries] == whole
    assert len(marks) == len(whole) + 1
    for number in (3, 0, len(whole) // 2, len(whole) - 1, 1):
        entry_encoder.seek(marks[number])
        assert [entry.SerializeToString() for entry in entries_of(entry_encoder)] == whole[number:]
    entry_encoder.seek(marks[-1])
    assert entry_encoder.take(1) is None


def test_small_chunks_make_the_same_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    from cdc.canal import encoder as module

    whole = [entry.SerializeToString() for entry in entries_of(encoder("mysql9"))]
    monkeypatch.setattr(module, "CHUNK_BYTES", 1)
    entry_encoder = encoder("mysql9")
    marks = [entry_encoder.mark()]
    while entry_encoder.take(1) is not None:
        marks.append(entry_encoder.mark())
    for number in (0, 5, 2):
        entry_encoder.seek(marks[number])
        assert [entry.SerializeToString() for entry in entries_of(entry_encoder)] == whole[number:]


@pytest.mark.parametrize("kind", KINDS)
def test_an_entry_is_encoded_as_protobuf_would(kind: str) -> None:
    """Field by field, in the order of their numbers and without a byte more."""
    entry_encoder = encoder(kind)
    while (taken := entry_encoder.take(1 << 22)) is not None:
        for raw in parsed("Messages", bytes(taken.data)).messages:
            entry = parsed("Entry", raw)
            assert entry.SerializeToString(deterministic=True) == raw
            name = {1: "TransactionBegin", 2: "RowChange", 3: "TransactionEnd"}[entry.entry_type]
            value = parsed(name, entry.store_value)
            assert value.SerializeToString(deterministic=True) == entry.store_value


def test_only_rows_of_wanted_tables_come() -> None:
    assert entries_of(encoder("mariadb10", wanted=lambda name: name == "shop.none")) == []
    names = {e.header.table_name for e in entries_of(encoder("mariadb10", wanted=lambda name: name == "shop.old"))}
    assert names == {"", "old"}


def test_a_timestamp_is_shown_in_the_time_zone() -> None:
    def shown(zone: Zone) -> str:
        row = rows_of(entries_of(encoder("mysql9", zone)))[0][1]
        return next(str(column.value) for column in row.after_columns if column.name == "ts3")

    assert shown(UTC) == "2024-02-29 12:34:56.789"
    assert shown(zone_of("Asia/Shanghai")) == "2024-02-29 20:34:56.789"
    assert shown(zone_of("America/New_York")) == "2024-02-29 07:34:56.789"
    with pytest.raises(ConfigError, match="is no time zone"):
        zone_of("Mars/Olympus")


def test_a_text_that_is_not_utf8_is_repaired_like_the_decoder_does() -> None:
    transactions = typed("mysql56")
    buf = np.array(transactions.buf)
    count = 0
    for pos, length in find_events(transactions, {30, 31, 32}):
        stop = pos + length - transactions.tail
        event = buf[pos:stop].tobytes()
        at = event.find("€".encode())
        while at >= 0:
            buf[pos + at] = 0xFF
            count += 1
            at = event.find("€".encode(), at + 1)
        if transactions.has_checksum:
            checksum = zlib.crc32(buf[pos:stop].tobytes()).to_bytes(4, "little")
            buf[stop : stop + 4] = np.frombuffer(checksum, dtype=np.uint8)
    assert count
    broken = encoder("mysql56", transactions=replace(transactions, buf=buf))
    sound = [column.value for _, row in rows_of(entries_of(encoder("mysql56"))) for column in row.after_columns]
    values = [column.value for _, row in rows_of(entries_of(broken)) for column in row.after_columns]
    changed = [(old, new) for old, new in zip(sound, values, strict=True) if old != new]
    assert any("€" in old and "?" in new for old, new in changed)


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_events_raise_errors_and_nothing_else(kind: str) -> None:
    """Every byte of a small file in turn, with the right checksum for what it became."""
    transactions = typed(kind)
    rng = np.random.default_rng(5)
    for _ in range(60):
        buf = np.array(transactions.buf)
        for entry in transactions.entries:
            pos, end = int(entry["offset"]), int(entry["offset"] + entry["length"])
            while pos < end:
                length = int.from_bytes(buf[pos + 9 : pos + 13].tobytes(), "little")
                if int(buf[pos + 4]) in (23, 24, 25, 30, 31, 32, 19) and length > 40 and rng.random() < 0.3:
                    buf[pos + 19 + int(rng.integers(0, length - 23))] ^= np.uint8(rng.integers(1, 256))
                    stop = pos + length - 4
                    buf[stop : stop + 4] = np.frombuffer(
                        zlib.crc32(buf[pos:stop].tobytes()).to_bytes(4, "little"), dtype=np.uint8
                    )
                pos += length
        entry_encoder = encoder(kind, transactions=replace(transactions, buf=buf))
        try:
            while (taken := entry_encoder.take(1 << 22)) is not None:
                for raw in parsed("Messages", bytes(taken.data)).messages:
                    entry = parsed("Entry", raw)
                    if entry.entry_type == 2:
                        parsed("RowChange", entry.store_value)
        except CdcError:
            pass


def test_transactions_without_gtids_need_no_other_kernel() -> None:
    """Compiling one takes a minute, while a client waits for its answer."""
    transactions = typed("mysql56")
    entries_of(encoder("mysql56"))
    compiled = len(put_items.signatures)
    entries = transactions.entries.copy()
    for name in entries.dtype.names or ():
        if "gtid" in name:
            entries[name] = np.zeros(1, dtype=entries.dtype[name])[0]
    encoded = entries_of(encoder("mysql56", transactions=replace(transactions, entries=entries)))
    assert {entry.header.gtid for entry in encoded} == {""}
    assert len(put_items.signatures) == compiled


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (123456789.125, "1.23456789125E8"),
        (-2.25e300, "-2.25E300"),
        (5e-324, "4.9E-324"),
        (-1e-323, "-9.9E-324"),
        (3.46e-322, "3.46E-322"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (100.0, "100.0"),
        (0.1, "0.1"),
    ],
)
def test_numbers_are_printed_as_java_does(value: float, text: str) -> None:
    texts = as_text(pa.array([None, value])).to_pylist()
    assert texts == [None, text.encode()]
