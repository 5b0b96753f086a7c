"""Logs go to standard error through structlog, as text for people (``console``) or as JSON lines (``json``).

structlog is loaded when the first line is logged: importing it takes longer than what many commands do.

Standard output is for the answers of commands. Only the command line calls :func:`configure`: a program that runs
Towpath and has configured structlog itself, as Airflow has, keeps its configuration.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import structlog

LogFormat = Literal["console", "json"]

_SECRET_KEY = re.compile(r"pass(word|wd)?$|secret|token$", re.IGNORECASE)
_SECRET_IN_URL = re.compile(r"(?P<head>[a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s/@]+@", re.IGNORECASE)


_wanted: tuple[LogFormat, bool] | None = None
"""The arguments of :func:`configure`, until the first line is logged."""
_is_json = False
"""Whether lines are JSON, by :func:`configure`."""


def configure(log_format: LogFormat = "console", verbose: bool = False) -> None:
    """Sends all logs, those of libraries included, to standard error.

    ``verbose`` adds the debug messages of Towpath. Libraries log their warnings only.
    """
    global _wanted, _is_json
    _wanted, _is_json = (log_format, verbose), log_format == "json"
    logging.basicConfig(handlers=[_FirstLine()], level=logging.WARNING, force=True)
    logging.captureWarnings(True)
    if "structlog" in sys.modules:
        _configure_as_wanted()


class _FirstLine(logging.Handler):
    """Configures the logs when a library logs the first line, and hands it on."""

    def emit(self, record: logging.LogRecord) -> None:
        _configure_as_wanted()
        for handler in logging.getLogger().handlers:
            handler.handle(record)


def _configure_as_wanted() -> None:
    """Does what :func:`configure` was asked for. A library that has not called it gets logs on standard error, since
    structlog's default writes to standard output."""
    global _wanted
    import structlog

    if _wanted is not None:
        arguments, _wanted = _wanted, None
        _configure(*arguments)
    elif not structlog.is_configured():
        _configure_quietly()


def _configure(log_format: LogFormat, verbose: bool) -> None:
    import structlog

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


class Logger:
    """A logger whose lines name a module: structlog's, made at the first line."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: Any = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "debug" and _wanted is not None and not _wanted[1]:
            return _ignore
        _configure_as_wanted()
        if self._logger is None:
            import structlog

            self._logger = structlog.get_logger(module=self._name)
        return getattr(self._logger, name)

    def say(self, sentence: str, event: str, **values: Any) -> None:
        """Logs, with the level of information, the sentence alone for people, and the event with its values as JSON. A
        program that has configured structlog itself, as Airflow has, gets the sentence."""
        if _is_json:
            self.info(event, **values)
            return
        _configure_as_wanted()
        import structlog

        structlog.get_logger().info(sentence)

    if TYPE_CHECKING:

        def debug(self, event: str, **values: Any) -> Any: ...
        def info(self, event: str, **values: Any) -> Any: ...
        def warning(self, event: str, **values: Any) -> Any: ...
        def error(self, event: str, **values: Any) -> Any: ...
        def exception(self, event: str, **values: Any) -> Any: ...


def _ignore(event: str, **values: Any) -> None:
    """Does what a logger does with a line below its level."""


def get_logger(name: str) -> Logger:
    """Returns a logger whose lines name the module."""
    if "structlog" in sys.modules:  # a program that uses it may change a configuration, so there has to be one
        _configure_as_wanted()
    return Logger(name)


def _configure_quietly() -> None:
    """Configures structlog for a library."""
    import structlog

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
    import structlog

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
