"""The servers' character sets as tables: which one a collation id means, and the characters of each.

The collation ids are read from ``information_schema`` of MySQL 9.7 and MariaDB 10.11 and 11.8, which agree on all of
them; an id never changes its meaning.

Most character sets agree with one of Python's codecs, some except for a few bytes or sequences, which are given here as
runs of characters. A ``?`` above 7F is a byte without a meaning, which the servers show as ``?``. MySQL 5.6 and 9,
MariaDB 10.11 and 11.8 agree on all well-formed texts.

In the East Asian character sets a character has one to four bytes. A well-formed sequence without a character is one
``?`` in the servers' answers. A byte that begins no well-formed sequence is a ``?`` by itself, and the next byte may
begin a sequence. The servers take only well-formed texts. In damaged ones, MySQL leaves out a cut sequence at the end
and may step over two bytes for one ``?``; Towpath does what MariaDB does, which drops nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import numpy.typing as npt

# ---------------------------------------------------------------- collations

BINARY_COLLATION = 63
"""The collation of BINARY, VARBINARY and BLOB columns."""

_COLLATIONS = {
    "big5": "1 84 1025 1108",
    "latin2": "2 9 21 27 77 1033 1101",
    "dec8": "3 69 1027 1093",
    "cp850": "4 80 1028 1104",
    "latin1": "5 8 15 31 47-49 94 1032 1071",
    "hp8": "6 72 1030 1096",
    "koi8r": "7 74 1031 1098",
    "swe7": "10 82 1034 1106",
    "ascii": "11 65 1035 1089",
    "ujis": "12 91 1036 1115",
    "sjis": "13 88 1037 1112",
    "cp1251": "14 23 50-52 1074-1075",
    "hebrew": "16 71 1040 1095",
    "tis620": "18 89 1042 1113",
    "euckr": "19 85 1043 1109",
    "latin7": "20 41-42 79 1065 1103",
    "koi8u": "22 75 1046 1099",
    "gb2312": "24 86 1048 1110",
    "greek": "25 70 1049 1094",
    "cp1250": "26 34 44 66 99 1050 1090",
    "gbk": "28 87 1052 1111",
    "cp1257": "29 58-59 1082-1083",
    "latin5": "30 78 1054 1102",
    "armscii8": "32 64 1056 1088",
    "utf8mb3": "33 76 83 192-215 223 576-579 1057 1107 1216 1238 2048-2215 2232-2247",
    "ucs2": "35 90 128-151 159 640-642 1059 1114 1152 1174 2560-2727 2744-2759",
    "cp866": "36 68 1060 1092",
    "keybcs2": "37 73 1061 1097",
    "macce": "38 43 1062 1067",
    "macroman": "39 53 1063 1077",
    "cp852": "40 81 1064 1105",
    "utf8mb4": "45-46 224-247 255-271 273-275 277-294 296-298 300 303-323 608-611 1069-1070 1248 1270 2304-2471 2488-2503",
    "utf16": "54-55 101-124 672-674 1078-1079 1125 1147 2816-2983 3000-3015",
    "utf16le": "56 62 1080 1086",
    "cp1256": "57 67 1081 1091",
    "utf32": "60-61 160-183 736-738 1084-1085 1184 1206 3072-3239 3256-3271",
    "binary": "63",
    "geostd8": "92-93 1116-1117",
    "cp932": "95-96 1119-1120",
    "eucjpms": "97-98 1121-1122",
    "gb18030": "248-250",
}
"""Ids of each character set's collations, as ranges."""


def _expand() -> dict[int, str]:
    table: dict[int, str] = {}
    for charset, ranges in _COLLATIONS.items():
        for part in ranges.split():
            first, _, last = part.partition("-")
            table.update((number, charset) for number in range(int(first), int(last or first) + 1))
    return table


_CHARSET_BY_COLLATION = _expand()


def charset_of(collation: int) -> str | None:
    """The character set of a collation id, such as ``utf8mb4`` for 255; None for an unknown id."""
    return _CHARSET_BY_COLLATION.get(collation)


_ALIASES = {"utf8": "utf8mb3"}


def charset_by_name(name: str) -> str | None:
    """The canonical name of a character set: ``utf8mb3`` for ``utf8``, ``gbk`` for ``GBK``; None for an unknown
    name."""
    lower = name.lower()
    canonical = _ALIASES.get(lower, lower)
    return canonical if canonical in _COLLATIONS else None


# ---------------------------------------------------------------- one byte a character

_SINGLE_BYTE_CODECS: dict[str, tuple[str, dict[int, str]]] = {
    "armscii8": (
        "latin-1",
        {
            0xA1: "❁§։)(»«—.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ’'",
        },
    ),
    "ascii": ("ascii", {}),
    "cp1250": ("cp1250", {}),
    "cp1251": ("cp1251", {}),
    "cp1256": ("cp1256", {0x8A: "?", 0x8F: "?", 0x98: "?", 0x9A: "?", 0x9F: "?", 0xAA: "?", 0xC0: "?", 0xFF: "?"}),
    "cp1257": ("cp1257", {}),
    "cp850": ("cp850", {}),
    "cp852": ("cp852", {}),
    "cp866": ("cp866", {0xFC: "ⁿ²"}),
    "dec8": (
        "latin-1",
        {
            0xA4: "?",
            0xA6: "?",
            0xA8: "¤",
            0xAC: "????",
            0xB4: "?",
            0xB8: "?",
            0xBE: "?",
            0xD0: "?",
            0xD7: "Œ",
            0xDD: "Ÿ?",
            0xF0: "?",
            0xF7: "œ",
            0xFD: "ÿ??",
        },
    ),
    "geostd8": (
        "latin-1",
        {
            0x80: "€?‚?„…†‡?‰?‹?????‘’“”•–—???›????",
            0xC0: "აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწჭხჴჯჰჵ???????????????????????№??",
        },
    ),
    "greek": ("iso8859-7", {0xA1: "ʽʼ", 0xA4: "??", 0xAA: "?"}),
    "hebrew": ("iso8859-8", {0xAF: "‾"}),
    "hp8": ("hp-roman8", {}),
    "keybcs2": ("cp437", {0x80: "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ¼"}),
    "koi8r": ("koi8-r", {}),
    "koi8u": ("koi8-u", {0x95: "•"}),
    "latin1": ("cp1252", {0x81: "\x81", 0x8D: "\x8d", 0x8F: "\x8f\x90", 0x9D: "\x9d"}),
    "latin2": ("iso8859-2", {}),
    "latin5": ("iso8859-9", {}),
    "latin7": ("iso8859-13", {}),
    "macce": ("mac-latin2", {}),
    "macroman": ("mac-roman", {}),
    "swe7": ("ascii", {0x40: "É", 0x5B: "ÄÖÅÜ", 0x60: "é", 0x7B: "äöåü?"}),
    "tis620": ("tis-620", {0xA0: "\ufffd", 0xDB: "\ufffd" * 4, 0xFC: "\ufffd" * 4}),
}

SINGLE_BYTE: frozenset[str] = frozenset(_SINGLE_BYTE_CODECS)
"""The character sets in which every byte is a character."""


@cache
def characters(charset: str) -> tuple[str, ...]:
    """The character of each of the 256 bytes. Raises KeyError for a character set that is not in SINGLE_BYTE."""
    codec, exceptions = _SINGLE_BYTE_CODECS[charset]
    characters = [bytes([byte]).decode(codec, "replace").replace("\ufffd", "?") for byte in range(256)]
    for first, run in exceptions.items():
        characters[first : first + len(run)] = run
    return tuple(characters)


# ---------------------------------------------------------------- East Asian

DEEPER = 0
"""The entry of two bytes that do not suffice to tell the character."""
MEANINGLESS = "?"
_ROW_BYTES = 94
_ROW_FIRST = 0xA1

GB18030_BMP = 39420
"""The number of four-byte sequences of gb18030, counted from 81308130, that are characters up to U+FFFF."""
GB18030_ABOVE = 189000
"""The number of the four-byte sequence 90308130, which is U+10000; the following ones are in order."""


@dataclass(frozen=True)
class _Spec:
    """The rules by which a character set is made from one of Python's codecs. ``leads``, ``trails``: the bytes of well-formed two-byte
    sequences, as ranges. ``single``: bytes above 7F that are characters by themselves. ``after_8e``, ``after_8f``: the
    bytes that follow 8E (one byte) or 8F (two bytes)."""

    codec: str
    leads: str
    trails: str
    single: str = ""
    after_8e: str = ""
    after_8f: str = ""
    exceptions: Mapping[int, str] = field(default_factory=dict)
    three: Mapping[int, str] = field(default_factory=dict)
    """Exceptions among the sequences that begin with 8F, without that byte."""
    four: bool = False


def _private(first: int, count: int) -> str:
    """``count`` characters for private use, in order."""
    return "".join(map(chr, range(first, first + count)))


_MULTI_BYTE_CODECS = {
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

MULTI_BYTE: frozenset[str] = frozenset(_MULTI_BYTE_CODECS)
"""The East Asian character sets."""


@dataclass(frozen=True)
class MultiByteTables:
    """The tables of an East Asian character set for the kernels.

    An entry holds a character in UTF-8, the first byte lowest, in bits 0 to 23; the number of its bytes in UTF-8 in
    bits 24 to 27; and the number of its bytes in the text in bits 28 to 31.
    """

    pairs: npt.NDArray[np.uint32]
    """(65536,): the entry by a byte, in bits 8 to 15 of the index, and the byte after it, or zero after the last
    byte."""
    triples: npt.NDArray[np.uint32]
    """(65536,): the entry by the two bytes after 8F; empty in a character set without such sequences."""
    quads: npt.NDArray[np.uint32]
    """(39420,): the code points of gb18030's four-byte sequences up to U+FFFF; empty in other character sets."""


def entry(character: str, taken: int) -> int:
    """The entry of a character (up to U+FFFF) that has ``taken`` bytes in the text."""
    encoded = character.encode()
    return int.from_bytes(encoded, "little") | len(encoded) << 24 | taken << 28


def _bytes(ranges: str) -> list[int]:
    values: list[int] = []
    for part in ranges.split():
        first, _, last = part.partition("-")
        values.extend(range(int(first, 16), int(last, 16) + 1))
    return values


def _exceptions(runs: Mapping[int, str]) -> dict[int, str]:
    """Runs of more than one character stay within rows of 94, A1 to FE, in each byte."""
    exceptions = {}
    for code, run in runs.items():
        row, column = code >> 8, (code & 0xFF) - _ROW_FIRST
        for k, character in enumerate(run):
            place = code if len(run) == 1 else _cell(row, column + k)
            exceptions[place] = character
    return exceptions


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
    """The tables of a character set. Raises KeyError for one that is not in MULTI_BYTE."""
    spec = _MULTI_BYTE_CODECS[charset]
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
    """The number of a four-byte sequence of gb18030, counted from 81308130; -1 if it is not one."""
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
