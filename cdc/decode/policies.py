"""Column policies over decoded record batches: what a user does not want in the lake does not leave the decoder.

Columns that are dropped or made null are not decoded at all; hashing and masking work on a batch's distinct values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.config.columns import ColumnPolicy
from cdc.decode.layout import BEFORE
from cdc.decode.select_text import as_select_prints
from cdc.errors import ConfigError

KEEP = ColumnPolicy(kind="keep")
_BLOCK_BYTES = 64
"""SHA-256 takes its input in blocks of so many bytes."""


@dataclass(frozen=True)
class SourceColumn:
    """A column as it is decoded without a policy."""

    name: str
    type: pa.DataType
    digits: int = 0
    """DATETIME, TIMESTAMP: digits of the fraction, which SELECT prints even where they are zeros."""


@dataclass(frozen=True)
class PolicedColumn:
    """A source's column, and what of it stands in the lake."""

    source: SourceColumn
    policy: ColumnPolicy
    field: pa.Field
    """Its name and type in the lake."""

    @property
    def is_decoded(self) -> bool:
        return self.policy.kind != "null"


@dataclass(frozen=True)
class ColumnPolicies:
    """What becomes of a table's columns; ``key`` is that of ``hash``, and never shown."""

    columns: tuple[PolicedColumn, ...]
    """Without the dropped ones, in the table's order."""
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
        """The batch (of :func:`~cdc.decode.decode_range` with ``columns=self.sources``) with :attr:`fields` in place
        of the source's columns, in ``_before`` as well. Raises ConfigError without a key where one is needed."""
        names = batch.schema.names
        first = len(names) - len(self.sources) - (1 if BEFORE in names else 0)
        fields = [batch.schema.field(i) for i in range(first)]
        own = [self._array(one, batch.column, len(batch)) for one in self.columns]
        arrays = [*batch.columns[:first], *own]
        fields += self._fields_of(own)
        if BEFORE in names:
            before = batch.column(BEFORE)
            old = [self._array(one, before.field, len(batch)) for one in self.columns]
            arrays.append(pa.StructArray.from_arrays(old, fields=self._fields_of(old), mask=before.is_null()))
            fields.append(pa.field(BEFORE, arrays[-1].type))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def _fields_of(self, arrays: list[pa.Array]) -> list[pa.Field]:
        return [pa.field(one.field.name, array.type) for one, array in zip(self.columns, arrays, strict=True)]

    def _array(self, column: PolicedColumn, of: Callable[[str], pa.Array], rows: int) -> pa.Array:
        if not column.is_decoded:
            return pa.nulls(rows, column.field.type)
        array: pa.Array = of(column.source.name)
        if column.policy.kind == "hash":
            if self.key is None:
                raise ConfigError(
                    f"column {column.source.name} is to be hashed, but no key was given",
                    remedy="Name the key with apply.hash_key_env or apply.hash_key_file.",
                )
            return hashed(array, self.key, column.source.digits)
        return masked(array, column.policy.last) if column.policy.kind == "mask" else array


def police(table: str, source: SourceColumn, policy: ColumnPolicy) -> PolicedColumn | None:
    """What becomes of one column; None when it is dropped. Raises ConfigError where policy and type do not fit."""
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
    """HMAC-SHA-256 in 64 hexadecimal digits: of a text in UTF-8, of bytes as they are, of other values as SELECT
    prints them; null stays null."""
    encoded = array.dictionary_encode()
    values = as_select_prints(encoded.dictionary, digits)
    # What hmac.digest() computes. The two halves that depend on the key alone are prepared once, since there may be
    # millions of distinct values: a third of the time.
    if len(key) > _BLOCK_BYTES:
        key = hashlib.sha256(key).digest()
    block = key.ljust(_BLOCK_BYTES, b"\0")
    inner, outer = (hashlib.sha256(bytes(byte ^ pad for byte in block)) for pad in (0x36, 0x5C))
    digests = []
    for value in values.cast(pa.binary()).to_pylist():
        one, two = inner.copy(), outer.copy()
        one.update(value)
        two.update(one.digest())
        digests.append(two.digest())
    text = b"".join(digests).hex().encode()
    offsets = np.arange(len(digests) + 1, dtype=np.int32) * 64
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(digests), buffers).take(encoded.indices)


def masked(array: pa.StringArray, last: int) -> pa.StringArray:
    """All characters but the last so many become ``*``; null stays null."""
    encoded = array.dictionary_encode()
    values = encoded.dictionary
    lengths = pc.utf8_length(values)
    hidden = pc.max_element_wise(pc.subtract(lengths, pa.scalar(last, lengths.type)), pa.scalar(0, lengths.type))
    stars = pc.binary_repeat(pa.repeat(pa.scalar("*"), len(values)), hidden)
    shown = pc.utf8_slice_codeunits(values, start=-last) if last else pa.repeat(pa.scalar(""), len(values))
    return pc.binary_join_element_wise(stars, shown, "").take(encoded.indices)
