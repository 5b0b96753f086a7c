"""The character sets in which every byte is a character, as the servers know them.

Most agree with one of Python's codecs, some but for a few bytes. Those are given here as runs of characters from a byte
on. A ``?`` above 7F is a byte without a meaning, which the servers show as ``?``. MySQL 5.6 and 9, MariaDB 10.11 and
11.8 nowhere disagree.
"""

from __future__ import annotations

from functools import cache

_CODECS: dict[str, tuple[str, dict[int, str]]] = {
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

SINGLE_BYTE: frozenset[str] = frozenset(_CODECS)
"""Their names."""


@cache
def characters(charset: str) -> tuple[str, ...]:
    """The character of each of the 256 bytes. Raises KeyError for a character set that is not one of these."""
    codec, exceptions = _CODECS[charset]
    made = [bytes([byte]).decode(codec, "replace").replace("\ufffd", "?") for byte in range(256)]
    for first, run in exceptions.items():
        made[first : first + len(run)] = run
    return tuple(made)
