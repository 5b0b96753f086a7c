"""Which character set a collation id means; the ids are the servers' own, and never change meaning.

Read from ``information_schema`` of MySQL 9.7 and MariaDB 10.11 and 11.8, which nowhere disagree.
"""

from __future__ import annotations

from cdc.decode.charsets.text import LATIN1, decode_text

__all__ = ["BINARY_COLLATION", "LATIN1", "charset_by_name", "charset_of", "decode_text"]

BINARY_COLLATION = 63
"""The "collation" of BINARY, VARBINARY and BLOB columns."""

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
    """``255`` → ``utf8mb4``; None for an id that no known server has."""
    return _CHARSET_BY_COLLATION.get(collation)


_ALIASES = {"utf8": "utf8mb3"}


def charset_by_name(name: str) -> str | None:
    """``utf8`` → ``utf8mb3``, ``GBK`` → ``gbk``; None for a name that no known server has."""
    lower = name.lower()
    found = _ALIASES.get(lower, lower)
    return found if found in _COLLATIONS else None
