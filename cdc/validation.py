"""Describes what pydantic finds wrong with documents and messages. The configuration has messages of its own
(:mod:`cdc.config.messages`)."""

from __future__ import annotations

from pydantic import ValidationError


def first_fault(error: ValidationError, *, within: str = "", whole: str = "") -> str:
    """Returns the first fault as ``path.of.keys: sentence``, without the input, which may be a secret.

    ``within`` begins the path. ``whole`` names the document if the fault is in no key of it.
    """
    fault = error.errors(include_input=False, include_url=False)[0]
    path = ".".join(str(step) for step in (*filter(None, [within]), *fault["loc"])) or whole
    message = fault["msg"].removeprefix("Value error, ")
    text = message[:1].lower() + message[1:]
    return f"{path}: {text}" if path else text
