"""The conversion of a JSON column's raw values to text."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.base.errors import UnsupportedError
from cdc.decode.binary_json import scalar_kernels as k
from cdc.decode.binary_json.diffs import apply_partial
from cdc.decode.binary_json.document_kernels import Container, DocumentArrays, measure_documents, write_documents
from cdc.decode.conversions.base import BadValueError, TextBuffers, binary_parts

_WHAT = {
    k.CUT: "a part reaches beyond the end of what holds it",
    k.BAD_TYPE: "a value has an unknown type",
    k.BAD_SCALAR: "a server never writes the bytes of a value",
    k.TOO_DEEP: f"arrays and objects are nested more than {k.MAX_DEPTH} deep",
    k.OVERLAP: "several values lie in the same bytes",
}
_MAX_DOUBLES = (2**31 - 1) // k.MAX_DOUBLE_BYTES


def json_text(raw: pa.Array) -> pa.Array:
    """Converts MySQL's binary JSON documents to text, exactly as MySQL 8 and later print them.

    A document followed by diffs, which :func:`cdc.decode.row_events.expand_partial` makes of a partial update, becomes
    the text of the document with the diffs applied. Raises BadValueError, and UnsupportedError for more than 2 GiB of
    text.
    Source: MySQL's ``sql-common/json_binary.h`` and ``Json_wrapper::to_string``.
    """
    texts, partial = documents(raw)
    if not partial.any():
        return texts
    rows = np.flatnonzero(partial)
    new = apply_partial(raw.take(pa.array(rows)), rows, lambda values: documents(values)[0])
    return pc.replace_with_mask(texts, pa.array(partial), new)


def json_text_of_mysql_5(raw: pa.Array) -> pa.Array:
    """Converts documents to text as MySQL 5.7 prints them: a whole number of floating point without ``.0``."""
    return documents(raw, of_mysql_5=True)[0]


def documents(raw: pa.Array, *, of_mysql_5: bool = False) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """The texts of all rows, and which rows are partial updates; the texts of these are empty."""
    parts = binary_parts(raw)
    rows = len(parts.nulls)
    size = int(parts.offsets[-1]) - int(parts.offsets[0])
    bits = np.empty(size // 8 + 1, dtype=np.int64)
    partial = np.zeros(rows, dtype=np.bool_)
    arrays = DocumentArrays(
        containers=Container.array(k.MAX_DEPTH),
        double_bits=bits,
        double_at=np.empty(0, dtype=np.int32),
        double_text=np.empty(0, dtype=np.uint8),
        out=np.empty(0, dtype=np.uint8),
        err=np.zeros(k.ERR_SIZE, dtype=np.int64),
    )
    total, doubles = measure_documents(parts.data, parts.offsets, parts.nulls, arrays, partial)
    if total < 0:
        raise _bad(arrays.err)
    at, text = double_texts(bits[:doubles].view(np.float64))
    if of_mysql_5:
        at, text = _without_zeros(at, text)
    texts = TextBuffers(parts, int(total) + int(at[-1]))
    arrays = arrays._replace(double_at=at, double_text=text, out=texts.data)
    if write_documents(parts.data, parts.offsets, parts.nulls, arrays, texts.offsets) < 0:
        raise _bad(arrays.err)
    array = texts.array()
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raise _not_utf8(array) from None
    return array, partial


def double_texts(doubles: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Finite numbers as the server prints them: the offset of each text (n + 1), and all texts in one array."""
    if len(doubles) > _MAX_DOUBLES:
        raise UnsupportedError(
            f"the JSON documents of one batch of rows hold {len(doubles)} floating-point numbers",
            remedy="Decode fewer rows at once.",
        )
    at = np.zeros(len(doubles) + 1, dtype=np.int32)
    if len(doubles) == 0:
        return at, np.empty(0, dtype=np.uint8)
    # Arrow finds the shortest digits, and the kernel rewrites them in the server's layout.
    shortest = binary_parts(pa.array(doubles).cast(pa.string()).cast(pa.binary()))
    out = np.empty(k.MAX_DOUBLE_BYTES * len(doubles), dtype=np.uint8)
    k.put_doubles(shortest.offsets, shortest.data, np.empty(400, dtype=np.uint8), at, out)
    return at, out


def _without_zeros(
    at: npt.NDArray[np.int32], text: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """The texts of numbers without a ``.0`` at their end."""
    begin, end = at[:-1], at[1:]
    whole = (end - begin > 2) & (text[end - 1] == ord("0")) & (text[end - 2] == ord("."))
    keep = np.ones(int(at[-1]), dtype=np.bool_)
    keep[end[whole] - 1] = keep[end[whole] - 2] = False
    shorter = at - np.concatenate([[0], 2 * np.cumsum(whole)])
    return shorter.astype(np.int32), text[: len(keep)][keep]


def _bad(err: npt.NDArray[np.int64]) -> BadValueError:
    what = _WHAT[int(err[k.ERR_CODE])]
    return BadValueError(int(err[k.ERR_ROW]), f"the JSON document is damaged at its byte {int(err[k.ERR_POS])}: {what}")


def _not_utf8(texts: pa.Array) -> BadValueError:
    for row, value in enumerate(texts.cast(pa.binary())):
        try:
            (value.as_py() or b"").decode()
        except UnicodeDecodeError:
            return BadValueError(row, "the JSON document holds text that is not UTF-8")
    raise AssertionError("the array was found invalid")
