"""Logs go to standard error through structlog, as text for people (``console``) or as JSON lines (``json``).

Standard output is for the answers of commands. Only the command line calls :func:`configure`: a program that runs
Towpath and has configured structlog itself, as Airflow has, keeps its configuration.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Literal, cast

import structlog

LogFormat = Literal["console", "json"]

_SECRET_KEY = re.compile(r"pass(word|wd)?$|secret|token$", re.IGNORECASE)
_SECRET_IN_URL = re.compile(r"(?P<head>[a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s/@]+@", re.IGNORECASE)


def configure(log_format: LogFormat = "console", verbose: bool = False) -> None:
    """Sends all logs, those of libraries included, to standard error.

    ``verbose`` adds the debug messages of Towpath. Libraries log their warnings only.
    """
    level = logging.DEBUG if verbose else logging.INFO
    renderer: structlog.typing.Processor
    if log_format == "json":
        renderer = structlog.processors.JSONRenderer(ensure_ascii=False)
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        _without_secrets,
    ]
    if log_format == "json":  # the console's renderer formats exceptions itself
        shared.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_stderr_logger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.captureWarnings(True)


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """Returns a logger whose lines name the module."""
    if not structlog.is_configured():
        _configure_quietly()
    return cast(structlog.typing.FilteringBoundLogger, structlog.get_logger(module=name))


def _configure_quietly() -> None:
    """Configures structlog for a library, since its default writes to standard output."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _without_secrets,
            structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=_stderr_logger,
        cache_logger_on_first_use=False,
    )


def _stderr_logger(*_: Any) -> structlog.PrintLogger:
    # Looked up at each use, so that a later redirection of standard error takes effect.
    return structlog.PrintLogger(sys.stderr)


def _without_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Masks passwords and tokens that were passed to a logger by mistake."""
    for key, value in event.items():
        if _SECRET_KEY.search(key):
            event[key] = "***"
        elif isinstance(value, str) and "://" in value:
            event[key] = hide_password(value)
    return event


def hide_password(text: str) -> str:
    """Masks the passwords of URLs in a text: ``mysql://user:secret@host`` → ``mysql://user:***@host``."""
    return _SECRET_IN_URL.sub(r"\g<head>:***@", text)
