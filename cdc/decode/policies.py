"""Applies column policies to decoded record batches, in the executors: a value that a user does not want in the lake
does not leave the decoder.

Columns that are dropped or made null are not decoded; hashing and masking work on the distinct values of a batch.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.base.errors import ConfigError
from cdc.config import ApplyConfig
from cdc.config.columns import ColumnPolicy
from cdc.decode.column_types import ValuePolicies
from cdc.decode.layout import BEFORE, TableLayout

KEEP = ColumnPolicy(kind="keep")
_BLOCK_BYTES = 64
"""The size of SHA-256's input blocks."""
_DIGITS = re.compile(r"(?:datetime|timestamp)\((\d)\)")


def value_policies(apply: ApplyConfig) -> ValuePolicies:
    """Returns ``zero_dates``, ``types``, and the columns that become text or bytes, in the decoder's form."""
    types = {kind.replace("(1)", "1"): to for kind, to in apply.types.items() if kind != "json"}
    values: dict[str, Any] = {"zero_dates": apply.zero_dates, **types}
    for kind in ("text", "bytes"):
        values[f"as_{kind}"] = tuple(sorted(name for name, policy in apply.columns.items() if policy.kind == kind))
    return ValuePolicies(**values)


def fraction_digits(column_type: str) -> int:
    """Returns the digits of the fraction of a DATETIME or TIMESTAMP by its column type, ``datetime(3)``; else 0."""
    match = _DIGITS.match(column_type)
    return int(match[1]) if match is not None else 0


def policies_of_layout(layout: TableLayout, apply: ApplyConfig, key: bytes | None) -> ColumnPolicies:
    """Returns the policies of ``apply`` for the columns of a layout; columns that cannot be decoded are left out.
    ``key``: the key of ``hash``. Raises ConfigError if a policy does not fit."""
    columns = []
    for column, (name, kind) in zip(layout.columns, layout.shape, strict=True):
        if kind is not None:
            source = SourceColumn(name, kind, column.scale or fraction_digits(column.column_type))
            columns.append(police(layout.table, source, apply.columns.get(name.lower(), KEEP)))
    return ColumnPolicies(tuple(policed for policed in columns if policed is not None), key)


def policy_label(policy: ColumnPolicy, key: bytes | None) -> str:
    """Returns a policy in words, empty for a column that is kept. A hash shows by which key, but not the key."""
    if policy.kind == "hash" and key is not None:
        return f"hash with key {hmac.digest(key, b'towpath: which key', hashlib.sha256).hex()[:8]}"
    return "" if policy.kind == "keep" else str(policy)


@dataclass(frozen=True)
class SourceColumn:
    """A source column as it is decoded without a policy."""

    name: str
    type: pa.DataType
    digits: int = 0
    """DATETIME, TIMESTAMP: digits of the fraction, which SELECT prints even if they are zeros."""


@dataclass(frozen=True)
class PolicedColumn:
    """A source column, its policy, and the column that it becomes in the lake."""

    source: SourceColumn
    policy: ColumnPolicy
    field: pa.Field
    """Its name and type in the lake."""

    @property
    def is_decoded(self) -> bool:
        return self.policy.kind != "null"


@dataclass(frozen=True)
class ColumnPolicies:
    """The policies of a table's columns. ``key`` is the key of ``hash``; it is never printed."""

    columns: tuple[PolicedColumn, ...]
    """The columns that are not dropped, in the table's order."""
    key: bytes | None = field(default=None, repr=False)

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns that must be decoded."""
        return tuple(column.source.name for column in self.columns if column.is_decoded)

    @property
    def fields(self) -> tuple[pa.Field, ...]:
        """Names and types in the lake."""
        return tuple(column.field for column in self.columns)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Replaces the source columns of a batch (of :func:`~cdc.decode.decode_range` with ``columns=self.sources``) by
        :attr:`fields`, in ``_before`` as well. Raises ConfigError if a key is needed and missing."""
        names = batch.schema.names
        first = len(names) - len(self.sources) - (1 if BEFORE in names else 0)
        fields = [batch.schema.field(i) for i in range(first)]
        new = [self._array(column, batch.column, len(batch)) for column in self.columns]
        arrays = [*batch.columns[:first], *new]
        fields += self._fields_of(new)
        if BEFORE in names:
            before = batch.column(BEFORE)
            old = [self._array(column, before.field, len(batch)) for column in self.columns]
            arrays.append(pa.StructArray.from_arrays(old, fields=self._fields_of(old), mask=before.is_null()))
            fields.append(pa.field(BEFORE, arrays[-1].type))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _fields_of(self, arrays: list[pa.Array]) -> list[pa.Field]:
        return [pa.field(policed.field.name, array.type) for policed, array in zip(self.columns, arrays, strict=True)]

    def _array(self, column: PolicedColumn, array_of: Callable[[str], pa.Array], rows: int) -> pa.Array:
        if not column.is_decoded:
            return pa.nulls(rows, column.field.type)
        array: pa.Array = array_of(column.source.name)
        if column.policy.kind == "hash":
            if self.key is None:
                raise ConfigError(
                    f"column {column.source.name} is to be hashed, but no key was given",
                    remedy="Name the key with apply.hash_key_env or apply.hash_key_file.",
                )
            return hashed(array, self.key, column.source.digits)
        return masked(array, column.policy.last) if column.policy.kind == "mask" else array


def police(table: str, source: SourceColumn, policy: ColumnPolicy) -> PolicedColumn | None:
    """A column with its policy; None if it is dropped. Raises ConfigError if the policy does not fit the type."""
    if policy.kind == "drop":
        return None
    name, kind = source.name, source.type
    if policy.kind == "hash":
        if pa.types.is_nested(kind):
            raise _misfit(table, source, policy, "only single values can be hashed", "drop or null")
        kind = pa.string()
    elif policy.kind == "mask" and not pa.types.is_string(kind):
        raise _misfit(table, source, policy, "only texts can be masked", "hash, drop or null")
    elif policy.kind == "rename":
        name = policy.name
    return PolicedColumn(source, policy, pa.field(name, kind))


def _misfit(table: str, source: SourceColumn, policy: ColumnPolicy, why: str, instead: str) -> ConfigError:
    return ConfigError(
        f"columns.{source.name}: the policy {policy} does not fit a column that is decoded as {source.type}: {why}",
        place=f"table {table}",
        remedy=f"Write {instead} instead, or remove the policy.",
    )


def hashed(array: pa.Array, key: bytes, digits: int = 0) -> pa.StringArray:
    """The HMAC-SHA-256 of each value in 64 hexadecimal digits: of texts in UTF-8, of bytes unchanged, of other values
    as SELECT prints them; null stays null."""
    encoded = array.dictionary_encode()
    values = as_select_prints(encoded.dictionary, digits)
    # The same as hmac.digest(). The two halves that depend on the key alone are prepared once, because there may be
    # millions of distinct values; that takes a third of the time.
    if len(key) > _BLOCK_BYTES:
        key = hashlib.sha256(key).digest()
    block = key.ljust(_BLOCK_BYTES, b"\0")
    inner, outer = (hashlib.sha256(bytes(byte ^ pad for byte in block)) for pad in (0x36, 0x5C))
    digests = []
    for value in values.cast(pa.binary()).to_pylist():
        inner_hash, outer_hash = inner.copy(), outer.copy()
        inner_hash.update(value)
        outer_hash.update(inner_hash.digest())
        digests.append(outer_hash.digest())
    text = b"".join(digests).hex().encode()
    offsets = np.arange(len(digests) + 1, dtype=np.int32) * 64
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(digests), buffers).take(encoded.indices)


def masked(array: pa.StringArray, last: int) -> pa.StringArray:
    """Replaces all characters but the last ``last`` ones by ``*``; null stays null."""
    encoded = array.dictionary_encode()
    values = encoded.dictionary
    lengths = pc.utf8_length(values)
    hidden = pc.max_element_wise(pc.subtract(lengths, pa.scalar(last, lengths.type)), pa.scalar(0, lengths.type))
    stars = pc.binary_repeat(pa.repeat(pa.scalar("*"), len(values)), hidden)
    shown = pc.utf8_slice_codeunits(values, start=-last) if last else pa.repeat(pa.scalar(""), len(values))
    return pc.binary_join_element_wise(stars, shown, "").take(encoded.indices)


def as_select_prints(values: pa.Array, digits: int = 0) -> pa.Array:
    """Converts single values without nulls to ``string``; ``binary`` is returned unchanged. ``digits``: the number of
    digits of a timestamp's fraction.

    BIT is printed as a number and TIMESTAMP in UTC. A FLOAT has the digits that distinguish it from its neighbours;
    servers print six.
    """
    kind = values.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        return values
    if pa.types.is_boolean(kind):
        return values.cast(pa.int8()).cast(pa.string())
    if pa.types.is_decimal(kind):
        return pa.array([format(value, "f") for value in values.to_pylist()], pa.string())
    if pa.types.is_floating(kind):
        return pa.array([_float_text(value) for value in values.to_numpy(zero_copy_only=False)], pa.string())
    if pa.types.is_timestamp(kind):
        full = values.cast(pa.timestamp("us")).cast(pa.string())  # 2024-02-29 12:34:56.789000
        return pc.utf8_slice_codeunits(full, start=0, stop=19 + (digits + 1 if digits else 0))
    return values.cast(pa.string())


def _float_text(value: np.floating) -> str:
    """The shortest text that is read as the same number, with an exponent only if servers print one."""
    size = abs(value)
    if size == 0 or 1e-15 <= size < 1e15:
        return np.format_float_positional(value, trim="-")
    mantissa, _, exponent = np.format_float_scientific(value, trim="-").partition("e")
    return f"{mantissa}e{int(exponent)}"
