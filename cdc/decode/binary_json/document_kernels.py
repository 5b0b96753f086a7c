"""The two compiled passes over JSON documents: measure them and collect their doubles, then write their text.

A document is a type byte and a value. An object or array holds its number of elements, its size, the entries of its
keys (offset and length), the entries of its values (type, and offset or the value itself), the keys, and the values.
Offsets count from the container's own beginning and have 2 bytes, or 4 in a large container.
Source: MySQL's ``sql-common/json_binary.h``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cdc.decode.binary_json.scalar_kernels import (
    BAD_SCALAR,
    BAD_TYPE,
    CUT,
    DOUBLE,
    ERR_CODE,
    ERR_POS,
    ERR_ROW,
    INT16,
    INT32,
    LARGE_ARRAY,
    LITERAL,
    MAX_DEPTH,
    OPAQUE,
    OVERLAP,
    SMALL_ARRAY,
    STRING,
    TOO_DEEP,
    UINT16,
    UINT32,
    UINT64,
    put_opaque,
    put_quoted,
    put_signed,
    put_unsigned,
    put_word,
)
from cdc.decode.kernels.constants import JSON_DIFFS
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import i64, u16, u32

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_BASE, _LIMIT, _COUNT, _INDEX, _KIND = 0, 1, 2, 3, 4
STACK_SHAPE = (MAX_DEPTH, 5)
"""The shape of ``DocumentArrays.stack``."""

_ENDLESS = np.int64(0x7FF) << np.int64(52)
"""The exponent of infinities and NaN."""


@inlined
def number(buf: Bytes, p: int, width: int) -> int:
    """The unsigned number of 2 or 4 bytes at ``p``."""
    return u32(buf, p) if width == 4 else u16(buf, p)


@inlined
def bad(err: Longs, code: int, pos: int) -> tuple[int, int]:
    """Notes a fault and returns (-1, 0)."""
    err[ERR_CODE] = code
    err[ERR_POS] = pos
    return -1, 0


class DocumentArrays(NamedTuple):
    """The arrays that a pass over documents writes to. Both passes give arrays of the same types, so that they call
    the same compiled :func:`put_document`; those that a pass does not need are empty."""

    stack: Longs
    """STACK_SHAPE: room for the containers around a value."""
    double_bits: Longs
    """First pass: room for the bits of all doubles, an eighth of the bytes of all documents."""
    double_at: Ints
    """(doubles + 1,), second pass: offset of each double's text in ``double_text``."""
    double_text: Bytes
    out: Bytes
    """Second pass: room for exactly the text of all documents."""
    err: Longs
    """(ERR_SIZE,)"""


@njit
def put_document(
    buf: Bytes, begin: int, end: int, arrays: DocumentArrays, doubles: int, at: int, write: bool
) -> tuple[int, int]:
    """Measures or writes the document in ``buf[begin:end]``, at least one byte; ``doubles`` is the number of doubles
    before it.

    Every byte of a sound document belongs to one value only. So the bytes that are visited are counted against the
    document's size, and offsets that lead to the same bytes again and again end there. Returns (offset behind the text,
    doubles so far), or (-1, 0) with a fault noted.
    """
    stack, err = arrays.stack, arrays.err
    double_bits, double_at, double_text, out = arrays.double_bits, arrays.double_at, arrays.double_text, arrays.out
    unvisited = end - begin - 1
    kind = np.int64(buf[begin])
    p = begin + 1
    stop = end
    inline = False
    depth = 0
    base = limit = count = index = head = width = np.int64(0)
    is_object = False
    while True:
        if kind <= LARGE_ARRAY:
            if depth == MAX_DEPTH:
                return bad(err, TOO_DEEP, p)
            if depth > 0:
                stack[depth - 1, _INDEX] = index
            width = 4 if kind & 1 else 2
            if stop - p < 2 * width:
                return bad(err, CUT, p)
            is_object = kind < SMALL_ARRAY
            count = number(buf, p, width)
            size = number(buf, p + width, width)
            head = 2 * width + count * ((2 * width + 3) if is_object else (width + 1))
            if size > stop - p or head > size:
                return bad(err, CUT, p)
            unvisited -= head
            if unvisited < 0:
                return bad(err, OVERLAP, p)
            base = p
            limit = p + size
            index = 0
            stack[depth, _BASE] = base
            stack[depth, _LIMIT] = limit
            stack[depth, _COUNT] = count
            stack[depth, _KIND] = kind
            depth += 1
            if write:
                out[at] = np.uint8(123 if is_object else 91)
            at += 1
        elif kind in (STRING, OPAQUE):
            start = p
            opaque_kind = np.int64(0)
            if kind == OPAQUE:
                if p >= stop:
                    return bad(err, CUT, p)
                opaque_kind = np.int64(buf[p])
                p += 1
            size = np.int64(0)
            shift = 0
            while True:
                if p >= stop or shift > 28:
                    return bad(err, CUT, start)
                byte = np.int64(buf[p])
                p += 1
                size |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    break
            if size > stop - p:
                return bad(err, CUT, start)
            unvisited -= p + size - start
            if unvisited < 0:
                return bad(err, OVERLAP, start)
            if kind == STRING:
                at = put_quoted(buf, p, size, out, at, write)
            else:
                at = put_opaque(opaque_kind, buf, p, size, out, at, write)
                if at < 0:
                    return bad(err, BAD_SCALAR, start)
        else:
            if kind == LITERAL:
                size = 1
            elif kind <= UINT16:
                size = 2
            elif kind <= UINT32:
                size = 4
            elif kind <= DOUBLE:
                size = 8
            else:
                return bad(err, BAD_TYPE, p - 1)
            if size > stop - p:
                return bad(err, CUT, p)
            if not inline:
                unvisited -= size
                if unvisited < 0:
                    return bad(err, OVERLAP, p)
            if kind == LITERAL:
                at = put_word(np.int64(buf[p]), out, at, write)
                if at < 0:
                    return bad(err, BAD_SCALAR, p)
            elif kind == DOUBLE:
                bits = i64(buf, p)
                if bits & _ENDLESS == _ENDLESS:
                    return bad(err, BAD_SCALAR, p)
                if write:
                    text = double_at[doubles]
                    for i in range(text, double_at[doubles + 1]):
                        out[at] = double_text[i]
                        at += 1
                else:
                    double_bits[doubles] = bits
                doubles += 1
            elif kind == UINT64:
                at = put_unsigned(i64(buf, p), out, at, write)
            else:
                if size == 2:
                    value = u16(buf, p)
                    if kind == INT16:
                        value = (value ^ 0x8000) - 0x8000
                elif size == 4:
                    value = u32(buf, p)
                    if kind == INT32:
                        value = (value ^ 0x80000000) - 0x80000000
                else:
                    value = i64(buf, p)
                at = put_signed(value, out, at, write)
        while depth > 0 and index == count:
            if write:
                out[at] = np.uint8(125 if is_object else 93)
            at += 1
            depth -= 1
            if depth > 0:
                base = stack[depth - 1, _BASE]
                limit = stack[depth - 1, _LIMIT]
                count = stack[depth - 1, _COUNT]
                index = stack[depth - 1, _INDEX]
                kind = stack[depth - 1, _KIND]
                width = 4 if kind & 1 else 2
                is_object = kind < SMALL_ARRAY
                head = 2 * width + count * ((2 * width + 3) if is_object else (width + 1))
        if depth == 0:
            return at, doubles
        if index > 0:
            if write:
                out[at] = np.uint8(44)
                out[at + 1] = np.uint8(32)
            at += 2
        entry = base + 2 * width
        if is_object:
            entry += index * (width + 2)
            key = number(buf, entry, width)
            size = u16(buf, entry + width)
            if key < head or key + size > limit - base:
                return bad(err, CUT, entry)
            unvisited -= size
            if unvisited < 0:
                return bad(err, OVERLAP, entry)
            at = put_quoted(buf, base + key, size, out, at, write)
            if write:
                out[at] = np.uint8(58)
                out[at + 1] = np.uint8(32)
            at += 2
            entry = base + 2 * width + count * (width + 2)
        entry += index * (width + 1)
        index += 1
        kind = np.int64(buf[entry])
        inline = (kind >= LITERAL and kind <= UINT16) or (width == 4 and (kind in (INT32, UINT32)))
        if inline:
            p = entry + 1
            stop = p + width
        else:
            p = number(buf, entry + 1, width)
            if p < head or p >= limit - base:
                return bad(err, CUT, entry)
            p += base
            stop = limit


@njit
def measure_documents(
    buf: Bytes, offsets: Ints, nulls: Bools, arrays: DocumentArrays, partial: Bools
) -> tuple[int, int]:
    """First pass over the documents between ``offsets`` (rows + 1) of ``buf``.

    Collects the bits of all doubles in their order. Marks the rows that are partial updates in ``partial`` (rows,) and
    leaves them out. Returns (bytes of text without the doubles' text, number of doubles), or (-1, 0) with a fault
    noted.
    """
    total = np.int64(0)
    doubles = np.int64(0)
    write = arrays.out.shape[0] > 0  # not a constant, with which all would be compiled twice
    for row in range(nulls.shape[0]):
        if nulls[row]:
            continue
        begin = np.int64(offsets[row])
        end = np.int64(offsets[row + 1])
        if begin == end:  # the server stores this when it fills in a JSON column that has no default
            total += 4
        elif buf[begin] == JSON_DIFFS:
            partial[row] = True
        else:
            total, doubles = put_document(buf, begin, end, arrays, doubles, total, write)
            if total < 0:
                arrays.err[ERR_ROW] = row
                arrays.err[ERR_POS] -= begin
                return -1, 0
    return total, doubles


@njit
def write_documents(buf: Bytes, offsets: Ints, nulls: Bools, arrays: DocumentArrays, out_offsets: Ints) -> int:
    """Second pass: writes the text of the documents that the first pass found sound, and no text for partial updates.
    ``out_offsets`` (rows + 1) gets the end of each text.

    Returns the bytes written, or -1 with a fault noted if the documents changed since the first pass.
    """
    at = np.int64(0)
    doubles = np.int64(0)
    write = out_offsets.shape[0] > 0
    for row in range(nulls.shape[0]):
        begin = np.int64(offsets[row])
        end = np.int64(offsets[row + 1])
        if not nulls[row]:
            if begin == end:
                at = put_word(0, arrays.out, at, write)
            elif buf[begin] != JSON_DIFFS:
                at, doubles = put_document(buf, begin, end, arrays, doubles, at, write)
                if at < 0:
                    arrays.err[ERR_ROW] = row
                    arrays.err[ERR_POS] -= begin
                    return -1
        out_offsets[row + 1] = at
    return at
