"""Names and texts of the source in Spark's SQL, so that none of them is ever read as SQL."""

from __future__ import annotations


def quote(name: str) -> str:
    """Returns an identifier in backticks."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """Returns a string literal, for statements that accept nothing else, such as table properties.

    Valid only in a session with the settings of :data:`cdc.config.spark.FIXED_SETTINGS`. Use :func:`text_literal` for
    values of a table.
    """
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def text_literal(text: str) -> str:
    """Returns an expression for a string, in hexadecimal digits: no part of the text can be read as SQL."""
    return f"CAST(X'{text.encode().hex()}' AS STRING)"
