"""Text of every character set of the servers, by Python's codecs and the servers' differences from them.

Read from MySQL 5.6 and 9.7 and MariaDB 10.11 and 11.8, which agree: each character that a character set has was
converted to it and back. What has no meaning becomes ``?``, as in SELECT.
"""

from __future__ import annotations

from collections.abc import Callable

Charset = Callable[[bytes, str], str]
"""From bytes and the name of their character set to text."""

_CODECS = {
    "utf8mb4": "utf-8", "utf8mb3": "utf-8", "utf8": "utf-8", "ascii": "ascii", "latin1": "cp1252",
    "ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be",
    "gbk": "gbk", "gb18030": "gb18030", "gb2312": "gb2312", "big5": "big5", "euckr": "cp949",
    "sjis": "shift_jis", "cp932": "cp932", "ujis": "euc_jp", "eucjpms": "euc_jp",
    "cp1250": "cp1250", "cp1251": "cp1251", "cp1256": "cp1256", "cp1257": "cp1257",
    "koi8r": "koi8_r", "koi8u": "koi8_u",
    "latin2": "iso8859_2", "latin5": "iso8859_9", "latin7": "iso8859_13", "greek": "iso8859_7", "hebrew": "iso8859_8",
    "cp850": "cp850", "cp852": "cp852", "cp866": "cp866", "tis620": "tis_620",
    "macroman": "mac_roman", "macce": "mac_latin2", "hp8": "hp_roman8",
    "dec8": "latin-1", "swe7": "ascii", "armscii8": "latin-1", "keybcs2": "latin-1", "geostd8": "latin-1",
}  # fmt: skip

# Upper halves of the character sets that Python does not know, from this byte on.
_UPPER = {
    "dec8": (
        0xA0,
        ("\xa0¡¢£?¥?§¤©ª«????°±²³?µ¶·?¹º»¼½?¿ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏ?ÑÒÓÔÕÖŒØÙÚÛÜŸ?ßàáâãäåæçèéêëìíîï?ñòóôõöœøùúûüÿ??"),
    ),
    "armscii8": (
        0xA0,
        ("\xa0❁§։)(»«—.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ’'"),
    ),
    "keybcs2": (
        0x80,
        (
            "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼"
            "╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\xa0"
        ),
    ),
    "geostd8": (
        0x80,
        (
            "€?‚?„…†‡?‰?‹?????‘’“”•–—???›????\xa0¡¢£¤¥¦§¨©ª«¬\xad®¯°±²³´µ¶·¸¹º»¼½¾¿აბგდევ"
            "ზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწჭხჴჯჰჵ???????????????????????№??"
        ),
    ),
}

_EXCEPTIONS: dict[str, dict[bytes, str]] = {
    "latin1": {bytes([code]): chr(code) for code in (0x81, 0x8D, 0x8F, 0x90, 0x9D)},
    "swe7": {bytes([code]): text for code, text in zip(b"@[\\]^`{|}~", "ÉÄÖÅÜéäöåü", strict=True)} | {b"\x7f": "?"},
    "sjis": {b"\x81\x5f": "\\"},
    "ujis": {b"\x8e\xa0": "??", b"\xa1\xc0": "\\"},
    "cp1256": dict.fromkeys((bytes([code]) for code in b"\x8a\x8f\x98\x9a\x9f\xaa\xc0\xff"), "?"),
    "big5": {bytes([0xF9, 0xD6 + n]): text for n, text in enumerate("碁銹裏墻恒粧嫺")}
    | dict.fromkeys(map(bytes.fromhex, ("a15a", "a1c3", "a1c5", "a1fe", "a240", "a2cc", "a2ce")), "�"),
    "hebrew": {b"\xaf": "‾"},
    "greek": {b"\xa1": "ʽ", b"\xa2": "ʼ", b"\xa4": "?", b"\xa5": "?", b"\xaa": "?"},
    "tis620": dict.fromkeys((bytes([code]) for code in b"\xa0\xdb\xdc\xdd\xde\xfc\xfd\xfe\xff"), "�"),
    "koi8u": {b"\x95": "•"},
    "cp866": {b"\xfc": "ⁿ", b"\xfd": "²"},
    "gb18030": {b"\x81\x35\xf4\x37": "\ue7c7", b"\xa8\xbc": "ḿ"},
    **{
        name: {bytes([first + n]): text for n, text in enumerate(upper)} for name, (first, upper) in _UPPER.items()
    },
}  # fmt: skip

# IBM's extensions in eucjpms: 8F F3 F3 to 8F F3 FC, two more, then 8F F4 AE and on.
_IBM = (  # compatibility ideographs as escapes: editors may normalize them
    "炻仼僴凬匇匤\ufa0e咊坙\ufa0f\ufa10增寬峵嵓\ufa11德悅愠敎昻晥\ufa12\uf929栁\ufa13\ufa14"
    "橫櫢淸淲瀨\ufa15\ufa16甁皂皞\ufa17礰\ufa18\ufa19\ufa1a\ufa1b竧\ufa1c\ufa1d綠緖\ufa1e荢\ufa1f薰\ufa20\ufa21"
    "蠇\ufa22譿賴赶\ufa23\ufa24\ufa25郞\ufa26鄕\ufa27\ufa28閒\uf9dc\ufa29霻靍靑\ufa2a\ufa2b\ufa2c馞髙魲\ufa2d黑"
)
_EXCEPTIONS["eucjpms"] = {
    b"\x8e\xa0": "??",
    **{bytes([0xA1, code]): text for code, text in zip(b"\xc1\xc2\xdd\xf1\xf2", "～∥－￠￡", strict=True)},
    b"\xa2\xcc": "￢",
    b"\x8f\xa2\xc3": "￤",
    b"\x8f\xf4\xa9": "＇",
    b"\x8f\xf4\xaa": "＂",
    **{bytes([0x8F, 0xF3, 0xF3 + n]): text for n, text in enumerate("ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹ")},
    **{bytes([0x8F, 0xF4, 0xAE + n]): text for n, text in enumerate(_IBM)},
}


def text(raw: bytes, charset: str) -> str:
    """The text that SELECT shows for the bytes. Raises LookupError for an unknown character set."""
    codec = _CODECS[charset]
    exceptions = _EXCEPTIONS.get(charset, {})
    if not exceptions:
        try:
            return raw.decode(codec)
        except UnicodeDecodeError:
            if charset in ("ucs2", "utf16", "utf16le", "utf32", "utf8", "utf8mb3", "utf8mb4"):
                raise  # no server stores such bytes
    out = ""
    at = 0
    while at < len(raw):
        unit = raw[at : at + _unit(raw, at, charset)]
        at += len(unit)
        out += exceptions[unit] if unit in exceptions else _character(unit, charset, codec)
    return out


def _unit(raw: bytes, at: int, charset: str) -> int:
    """Bytes of the character there."""
    first = raw[at]
    if charset in ("ujis", "eucjpms"):
        return 3 if first == 0x8F else 2 if first == 0x8E or first >= 0xA1 else 1
    if charset in ("sjis", "cp932"):
        return 2 if 0x81 <= first <= 0x9F or 0xE0 <= first <= 0xFC else 1
    if charset == "gb18030":
        return 1 if first < 0x81 else 4 if raw[at + 1 : at + 2] in (b"%d" % n for n in range(10)) else 2
    return 2 if charset in ("big5", "gbk", "gb2312", "euckr") and first >= 0x81 else 1


def _character(unit: bytes, charset: str, codec: str) -> str:
    try:
        return unit.decode(codec)
    except UnicodeDecodeError:
        return (_private_use(unit) or _nec_row(unit, charset) or "?") if codec == "euc_jp" else "?"


def _private_use(unit: bytes) -> str | None:
    """The last ten rows of each plane of EUC are for users' own characters."""
    if len(unit) < 2:
        return None
    rows = (unit[0] - 0xF5) * 94 if len(unit) == 2 else 940 + (unit[1] - 0xF5) * 94
    return chr(0xE000 + rows + unit[-1] - 0xA1) if unit[-2] >= 0xF5 else None


def _nec_row(unit: bytes, charset: str) -> str | None:
    """eucjpms has NEC's characters in the same rows as cp932."""
    if charset != "eucjpms" or len(unit) != 2:
        return None
    row, cell = unit[0] - 0xA0, unit[1] - 0xA0
    lead = (row + 1) // 2 + (0x80 if row <= 62 else 0xC0)
    trail = cell + 0x9E if row % 2 == 0 else cell + (0x3F if cell < 64 else 0x40)
    try:
        return bytes([lead, trail]).decode("cp932")
    except ValueError:
        return None
