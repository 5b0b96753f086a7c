"""The East Asian character sets, in which a character has one to four bytes, as tables for the compiled kernels.

Most agree with one of Python's codecs, some but for a few sequences, which are given here as runs of characters from
a sequence on. A sequence that is well formed and has no character is one ``?`` in the servers' answers; a byte that
begins no well-formed sequence is a ``?`` by itself, and the next byte may begin one. The servers take only well-formed
texts. In those MySQL 5.6 and 9, MariaDB 10.11 and 11.8 nowhere disagree. In damaged ones, MySQL leaves out a cut
sequence at the end and may step over two bytes for one ``?``; here all is as MariaDB does it, which drops nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt

DEEPER = 0
"""In the place of an entry: two bytes do not suffice to tell."""
MEANINGLESS = "?"
_ROW_BYTES = 94
_ROW_FIRST = 0xA1

GB18030_BMP = 39420
"""So many four-byte sequences of gb18030, counted from 81308130, stand for characters up to U+FFFF."""
GB18030_ABOVE = 189000
"""Number of the four-byte sequence 90308130, which is U+10000; the others follow in order."""


@dataclass(frozen=True)
class _Spec:
    """``leads``, ``trails``: the bytes of well-formed two-byte sequences, as ranges. ``single``: bytes above 7F that
    are characters by themselves. ``after_8e``, ``after_8f``: the bytes that follow 8E (one) or 8F (two)."""

    codec: str
    leads: str
    trails: str
    single: str = ""
    after_8e: str = ""
    after_8f: str = ""
    exceptions: Mapping[int, str] = field(default_factory=dict)
    three: Mapping[int, str] = field(default_factory=dict)
    """Exceptions among the sequences that begin with 8F, which is left out here."""
    four: bool = False


def _private(first: int, count: int) -> str:
    """Characters for private use, in order."""
    return "".join(map(chr, range(first, first + count)))


_SPECS = {
    "big5": _Spec(
        "big5", "a1-f9", "40-7e a1-fe",
        exceptions=dict.fromkeys((0xA15A, 0xA1C3, 0xA1C5, 0xA1FE, 0xA240, 0xA2CC, 0xA2CE), "\ufffd")
        | {0xF9D6: "碁銹裏墻恒粧嫺"},
    ),
    "cp932": _Spec("cp932", "81-9f e0-fc", "40-7e 80-fc", "a1-df"),
    "eucjpms": _Spec(
        "euc_jp", "a1-fe", "a1-fe", after_8e="a1-df", after_8f="a1-fe",
        exceptions={
            0xA1C1: "～∥", 0xA1DD: "－", 0xA1F1: "￠￡", 0xA2CC: "￢",
            0xADA1: "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ",
            0xADC0: "㍉㌔㌢㍍㌘㌧㌃㌶㍑㍗㌍㌦㌣㌫㍊㌻㎜㎝㎞㎎㎏㏄㎡",
            0xADDF: "㍻〝〟№㏍℡㊤㊥㊦㊧㊨㈱㈲㈹㍾㍽㍼≒≡∫∮∑√⊥∠∟⊿∵∩∪",
            0xF5A1: _private(0xE000, 940),
        },
        three={
            0xA2B7: "～", 0xA2C3: "￤",
            0xF3F3: (
                "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ＇＂㈱№℡炻仼僴凬匇匤﨎咊坙﨏塚增寬峵嵓﨑德悅愠敎昻晥晴朗栁﨓﨔橫"
                "櫢淸淲瀨凞猪甁皂皞益礰礼神祥福竧靖精綠緖羽荢﨟薰蘒﨡蠇諸譿賴赶﨣﨤逸郞都鄕﨧﨨閒隆﨩霻靍靑飯飼館馞髙魲鶴黑"
            ),
            0xF5A1: _private(0xE3AC, 940),
        },
    ),
    "euckr": _Spec("cp949", "81-fe", "41-5a 61-7a 81-fe"),
    "gb18030": _Spec("gb18030", "81-fe", "40-7e 80-fe", exceptions={0xA8BC: "ḿ"}, four=True),
    "gb2312": _Spec("gb2312", "a1-f7", "a1-fe"),
    "gbk": _Spec("gbk", "81-fe", "40-7e 80-fe"),
    "sjis": _Spec("shift_jis", "81-9f e0-fc", "40-7e 80-fc", "a1-df", exceptions={0x815F: "\\"}),
    "ujis": _Spec(
        "euc_jp", "a1-fe", "a1-fe", after_8e="a1-df", after_8f="a1-fe",
        exceptions={0xA1C0: "\\", 0xF5A1: _private(0xE000, 940)},
        three={0xF5A1: _private(0xE3AC, 940)},
    ),
}  # fmt: skip

_GB18030_FOUR = {0x8135F437: "\ue7c7"}

MULTI_BYTE: frozenset[str] = frozenset(_SPECS)
"""Their names."""


@dataclass(frozen=True)
class MultiByteTables:
    """An entry holds a character in UTF-8, the first byte lowest, in bits 0 to 23; how many bytes it has there in bits
    24 to 27; and how many bytes of the text it stands for in bits 28 to 31."""

    pairs: npt.NDArray[np.uint32]
    """(65536,): the entry for a byte, in bits 8 to 15, and the next one, or zero after the last."""
    triples: npt.NDArray[np.uint32]
    """(65536,): the entry for the two bytes after 8F; empty where there are no such sequences."""
    quads: npt.NDArray[np.uint32]
    """(39420,): the code points of gb18030's four-byte sequences up to U+FFFF; empty elsewhere."""


def entry(character: str, taken: int) -> int:
    """The entry of a character (up to U+FFFF) that is ``taken`` bytes of the text."""
    encoded = character.encode()
    return int.from_bytes(encoded, "little") | len(encoded) << 24 | taken << 28


def _bytes(ranges: str) -> list[int]:
    found: list[int] = []
    for part in ranges.split():
        first, _, last = part.partition("-")
        found.extend(range(int(first, 16), int(last, 16) + 1))
    return found


def _exceptions(runs: Mapping[int, str]) -> dict[int, str]:
    """Runs of more than one character stay within rows of 94, A1 to FE, in each byte."""
    found = {}
    for code, run in runs.items():
        row, column = code >> 8, (code & 0xFF) - _ROW_FIRST
        for k, character in enumerate(run):
            place = code if len(run) == 1 else _cell(row, column + k)
            found[place] = character
    return found


def _cell(row: int, column: int) -> int:
    return (row + column // _ROW_BYTES) << 8 | column % _ROW_BYTES + _ROW_FIRST


def _character(raw: bytes, codec: str) -> str:
    try:
        text = raw.decode(codec)
    except UnicodeDecodeError:
        return MEANINGLESS
    return text if len(text) == 1 else MEANINGLESS


@cache
def tables(charset: str) -> MultiByteTables:
    """Make the tables of a character set. Raises KeyError for one that is not of these."""
    spec = _SPECS[charset]
    pairs = np.full(65536, entry(MEANINGLESS, 1), dtype=np.uint32)
    for byte in [*range(128), *_bytes(spec.single)]:
        pairs[byte << 8 : (byte + 1) << 8] = entry(bytes([byte]).decode(spec.codec), 1)
    exceptions = _exceptions(spec.exceptions)
    for leads, trails in ((_bytes(spec.leads), _bytes(spec.trails)), ([0x8E], _bytes(spec.after_8e))):
        for lead in leads:
            for trail in trails:
                code = lead << 8 | trail
                character = exceptions.get(code) or _character(bytes([lead, trail]), spec.codec)
                pairs[code] = entry(character, 2)
    triples = np.zeros(0, dtype=np.uint32)
    if spec.after_8f:
        triples = np.full(65536, entry(MEANINGLESS, 1), dtype=np.uint32)
        pairs[0x8F00:0x9000] = DEEPER
        exceptions = _exceptions(spec.three)
        for second in _bytes(spec.after_8f):
            for third in _bytes(spec.after_8f):
                code = second << 8 | third
                character = exceptions.get(code) or _character(bytes([0x8F, second, third]), spec.codec)
                triples[code] = entry(character, 3)
    quads = np.zeros(0, dtype=np.uint32)
    if spec.four:
        quads = _quads(spec.codec)
        for lead in _bytes(spec.leads):
            pairs[lead << 8 | 0x30 : lead << 8 | 0x3A] = DEEPER
    return MultiByteTables(pairs, triples, quads)


def quad_number(raw: bytes) -> int:
    """Which of gb18030's four-byte sequences this is, counted from 81308130; -1: none."""
    a, b, c, d = raw
    if not (0x81 <= a <= 0xFE and 0x30 <= b <= 0x39 and 0x81 <= c <= 0xFE and 0x30 <= d <= 0x39):
        return -1
    return ((a - 0x81) * 10 + b - 0x30) * 1260 + (c - 0x81) * 10 + d - 0x30


def _quads(codec: str) -> npt.NDArray[np.uint32]:
    quads = np.empty(GB18030_BMP, dtype=np.uint32)
    for number in range(GB18030_BMP):
        a, rest = divmod(number, 12600)
        b, rest = divmod(rest, 1260)
        c, d = divmod(rest, 10)
        quads[number] = ord(_character(bytes([0x81 + a, 0x30 + b, 0x81 + c, 0x30 + d]), codec))
    for code, character in _GB18030_FOUR.items():
        quads[quad_number(code.to_bytes(4, "big"))] = ord(character)
    return quads
