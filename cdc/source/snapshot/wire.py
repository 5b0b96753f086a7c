"""The columns of a result set as the server describes them, and values in binary form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdc.base.errors import DamagedError

Kind = Literal["integer", "single", "double", "date", "datetime", "time", "bytes"]

_INTEGERS = {1: 1, 2: 2, 13: 2, 3: 4, 9: 4, 8: 8}
"""TINY, SHORT, YEAR, LONG, INT24 and LONGLONG, with their bytes."""
_YEAR, _SINGLE, _DOUBLE, _TIME = 13, 4, 5, 11
_DATES = {10, 14}
_DATETIMES = {7, 12}
_BYTES = {0, 15, 16, 242, 245, 246, 247, 248, 249, 250, 251, 252, 253, 254, 255}
"""DECIMAL, VARCHAR, BIT, VECTOR, JSON, NEWDECIMAL, ENUM, SET, the BLOBs, VAR_STRING, STRING and GEOMETRY: values that
are sent as in the text protocol."""
_UNSIGNED = 32
_TAIL_BYTES = 13
_WIDTHS = {_SINGLE: 4, _DOUBLE: 8, **_INTEGERS}


@dataclass(frozen=True)
class WireColumn:
    """A column of a result set."""

    type: int
    """The protocol's number of the type."""
    unsigned: bool
    decimals: int
    """Digits of the fraction; 31 if they vary."""

    @classmethod
    def of(cls, packet: bytes) -> WireColumn:
        """Reads a packet that defines a column. Raises DamagedError."""
        tail = packet[-_TAIL_BYTES:]
        if len(tail) < _TAIL_BYTES or tail[0] != _TAIL_BYTES - 1:
            raise DamagedError("the server's definition of a column cannot be read")
        return cls(tail[7], bool(int.from_bytes(tail[8:10], "little") & _UNSIGNED), tail[10])

    @property
    def kind(self) -> Kind | None:
        """The form of the values of a prepared statement; None for a type that is not known."""
        if self.type in _INTEGERS:
            return "integer"
        if self.type in _DATES:
            return "date"
        if self.type in _DATETIMES:
            return "datetime"
        if self.type in _BYTES:
            return "bytes"
        return {_SINGLE: "single", _DOUBLE: "double", _TIME: "time"}.get(self.type)  # type: ignore[return-value]

    @property
    def width(self) -> int:
        """The bytes of each value in binary form; 0 if each begins with its length."""
        return _WIDTHS.get(self.type, 0)

    def printed(self, value: bytes) -> bytes:
        """Returns a value in binary form as the text protocol has it, without leading zeros of ZEROFILL. Numbers with
        a floating point are not supported."""
        if self.kind == "integer":
            number = int.from_bytes(value, "little", signed=not self.unsigned)
            return b"%04d" % number if self.type == _YEAR else b"%d" % number
        if self.kind == "time":
            filled = value.ljust(12, b"\0")
            days, us = int.from_bytes(filled[1:5], "little"), int.from_bytes(filled[8:12], "little")
            sign = b"-" if filled[0] else b""
            clock = b"%02d:%02d:%02d" % (days * 24 + filled[5], filled[6], filled[7])
            return sign + clock + self._fraction(us)
        if self.kind in ("date", "datetime"):
            filled = value.ljust(11, b"\0")
            date = b"%04d-%02d-%02d" % (int.from_bytes(filled[:2], "little"), filled[2], filled[3])
            if self.kind == "date":
                return date
            us = int.from_bytes(filled[7:11], "little")
            return date + b" %02d:%02d:%02d" % (filled[4], filled[5], filled[6]) + self._fraction(us)
        return value

    def _fraction(self, us: int) -> bytes:
        digits = self.decimals if self.decimals <= 6 else 6 if us else 0
        return b"." + (b"%06d" % us)[:digits] if digits else b""
