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

from cdc.decode.binary_json import scalar_kernels as k
from cdc.decode.binary_json.scalar_kernels import put_opaque, put_quoted, put_signed, put_unsigned, put_word
from cdc.decode.kernels.constants import JSON_DIFFS
from cdc.kernels.jit import inlined, njit
from cdc.kernels.memory import i64, u16, u32
from cdc.kernels.records import Record, Records
from cdc.kernels.texts import CLOSE_LIST, CLOSE_OBJECT, COLON, COMMA, OPEN_LIST, OPEN_OBJECT, SPACE

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class Container(Record):
    """An array or object around a value. Offsets of its parts count from ``start``."""

    start: int
    limit: int  # the offset behind it
    width: int  # bytes of an offset, a size and a number of elements
    head: int  # bytes before the keys
    count: int  # elements
    index: int  # the next one
    is_object: int


_ENDLESS = np.int64(0x7FF) << np.int64(52)
"""The exponent of infinities and NaN."""


@inlined
def number(buf: Bytes, p: int, width: int) -> int:
    """The unsigned number of 2 or 4 bytes at ``p``."""
    return u32(buf, p) if width == 4 else u16(buf, p)


@inlined
def bad(err: Longs, code: int, pos: int) -> tuple[int, int]:
    """Notes a fault and returns (-1, 0)."""
    err[k.ERR_CODE] = code
    err[k.ERR_POS] = pos
    return -1, 0


class DocumentArrays(NamedTuple):
    """The arrays that a pass over documents writes to. Both passes give arrays of the same types, so that they call
    the same compiled :func:`put_document`; those that a pass does not need are empty."""

    containers: Records[Container]
    """(MAX_DEPTH,): room for the containers around a value."""
    double_bits: Longs
    """First pass: room for the bits of all doubles, an eighth of the bytes of all documents."""
    double_at: Ints
    """(doubles + 1,), second pass: offset of each double's text in ``double_text``."""
    double_text: Bytes
    out: Bytes
    """Second pass: room for exactly the text of all documents."""
    err: Longs
    """(ERR_SIZE,)"""


@inlined
def put_character(character: int, out: Bytes, at: int, write: bool) -> int:
    if write:
        out[at] = np.uint8(character)
    return at + 1


@inlined
def open_container(buf: Bytes, p: int, stop: int, kind: int, container: Container) -> bool:
    """Reads the head of the array or object at ``p``. Returns False if it does not fit before ``stop``."""
    width = 4 if kind & 1 else 2
    if stop - p < 2 * width:
        return False
    count = number(buf, p, width)
    size = number(buf, p + width, width)
    head = 2 * width + count * ((2 * width + 3) if kind < k.SMALL_ARRAY else (width + 1))
    container.start = p
    container.limit = p + size
    container.width = width
    container.head = head
    container.count = count
    container.index = 0
    container.is_object = 1 if kind < k.SMALL_ARRAY else 0
    return bool(size <= stop - p and head <= size)


@inlined
def text_bounds(buf: Bytes, p: int, stop: int) -> tuple[int, int]:
    """The offset and the size of the text or opaque value whose length is at ``p``; size -1 if it does not fit before
    ``stop``."""
    size = np.int64(0)
    shift = 0
    while True:
        if p >= stop or shift > 28:
            return p, -1
        byte = np.int64(buf[p])
        p += 1
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    return p, size if size <= stop - p else -1


@inlined
def scalar_size(kind: int) -> int:
    """The bytes of a number or literal; 0 for a type that is none."""
    if kind == k.LITERAL:
        return 1
    if kind <= k.UINT16:
        return 2
    if kind <= k.UINT32:
        return 4
    return 8 if kind <= k.DOUBLE else 0


@inlined
def put_scalar(buf: Bytes, p: int, kind: int, out: Bytes, at: int, write: bool) -> int:
    """Writes a literal, or a number that is no double. Returns the offset behind it, or -1."""
    if kind == k.LITERAL:
        return put_word(np.int64(buf[p]), out, at, write)
    if kind == k.UINT64:
        return put_unsigned(i64(buf, p), out, at, write)
    if kind <= k.UINT16:
        value = u16(buf, p)
        if kind == k.INT16:
            value = (value ^ 0x8000) - 0x8000
    elif kind <= k.UINT32:
        value = u32(buf, p)
        if kind == k.INT32:
            value = (value ^ 0x80000000) - 0x80000000
    else:
        value = i64(buf, p)
    return put_signed(value, out, at, write)


@inlined
def put_next_double(bits: int, arrays: DocumentArrays, doubles: int, at: int, write: bool) -> int:
    """Collects a double's bits, or writes its text. Returns the offset behind it, or -1 for one that is no number."""
    if bits & _ENDLESS == _ENDLESS:
        return -1
    if write:
        for i in range(arrays.double_at[doubles], arrays.double_at[doubles + 1]):
            arrays.out[at] = arrays.double_text[i]
            at += 1
    else:
        arrays.double_bits[doubles] = bits
    return at


@inlined
def parts_of(container: Container) -> tuple[int, int, int, int, int, int, bool]:
    """The fields of a container, which the loop over its elements has in variables: it is a tenth faster."""
    return (
        container.start,
        container.limit,
        container.width,
        container.head,
        container.count,
        container.index,
        container.is_object == 1,
    )


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
    containers, err, out = arrays.containers, arrays.err, arrays.out
    unvisited = end - begin - 1
    kind = np.int64(buf[begin])
    p = begin + 1
    stop = end
    inline = False
    depth = 0
    start = limit = width = head = count = index = np.int64(0)
    is_object = False
    while True:
        if kind <= k.LARGE_ARRAY:
            if depth == k.MAX_DEPTH:
                return bad(err, k.TOO_DEEP, p)
            if depth > 0:
                containers[depth - 1].index = index
            if not open_container(buf, p, stop, kind, containers[depth]):
                return bad(err, k.CUT, p)
            start, limit, width, head, count, index, is_object = parts_of(containers[depth])
            unvisited -= head
            if unvisited < 0:
                return bad(err, k.OVERLAP, p)
            at = put_character(OPEN_OBJECT if is_object else OPEN_LIST, out, at, write)
            depth += 1
        elif kind in (k.STRING, k.OPAQUE):
            value = p
            if kind == k.OPAQUE and p < stop:
                p += 1
            p, size = text_bounds(buf, p, stop)
            if size < 0:
                return bad(err, k.CUT, value)
            unvisited -= p + size - value
            if unvisited < 0:
                return bad(err, k.OVERLAP, value)
            if kind == k.STRING:
                at = put_quoted(buf, p, size, out, at, write)
            else:
                at = put_opaque(np.int64(buf[value]), buf, p, size, out, at, write)
                if at < 0:
                    return bad(err, k.BAD_SCALAR, value)
        else:
            size = scalar_size(kind)
            if size == 0:
                return bad(err, k.BAD_TYPE, p - 1)
            if size > stop - p:
                return bad(err, k.CUT, p)
            if not inline:
                unvisited -= size
                if unvisited < 0:
                    return bad(err, k.OVERLAP, p)
            if kind == k.DOUBLE:
                at = put_next_double(i64(buf, p), arrays, doubles, at, write)
                doubles += 1
            else:
                at = put_scalar(buf, p, kind, out, at, write)
            if at < 0:
                return bad(err, k.BAD_SCALAR, p)
        while depth > 0 and index == count:
            at = put_character(CLOSE_OBJECT if is_object else CLOSE_LIST, out, at, write)
            depth -= 1
            if depth > 0:
                start, limit, width, head, count, index, is_object = parts_of(containers[depth - 1])
        if depth == 0:
            return at, doubles
        if index > 0:
            at = put_character(SPACE, out, put_character(COMMA, out, at, write), write)
        entry = start + 2 * width
        if is_object:
            entry += index * (width + 2)
            key = number(buf, entry, width)
            size = u16(buf, entry + width)
            if key < head or key + size > limit - start:
                return bad(err, k.CUT, entry)
            unvisited -= size
            if unvisited < 0:
                return bad(err, k.OVERLAP, entry)
            at = put_quoted(buf, start + key, size, out, at, write)
            at = put_character(SPACE, out, put_character(COLON, out, at, write), write)
            entry = start + 2 * width + count * (width + 2)
        entry += index * (width + 1)
        index += 1
        kind = np.int64(buf[entry])
        inline = (kind >= k.LITERAL and kind <= k.UINT16) or (width == 4 and (kind in (k.INT32, k.UINT32)))
        p = entry + 1
        stop = p + width
        if not inline:
            p = number(buf, p, width)
            if p < head or p >= limit - start:
                return bad(err, k.CUT, entry)
            p += start
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
                arrays.err[k.ERR_ROW] = row
                arrays.err[k.ERR_POS] -= begin
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
                    arrays.err[k.ERR_ROW] = row
                    arrays.err[k.ERR_POS] -= begin
                    return -1
        out_offsets[row + 1] = at
    return at
