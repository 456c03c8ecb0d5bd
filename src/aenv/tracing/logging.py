"""Logging of the ``aenv`` package: silent until a program configures it, and without arguments or variables."""

from __future__ import annotations

import logging
import os
import time

from aenv.errors import ConfigError
from aenv.tracing.correlation import current

LOG_FORMAT = "%(asctime)s.%(msecs)03d %(name)s %(levelname)s: %(message)s"
DATE_FORMAT = "%Y%m%d-%H:%M:%S"
LOGLEVEL = logging.INFO
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_root = logging.getLogger("aenv")
_root.addHandler(logging.NullHandler())


def getLogger(name: str | None = None, type_: str | None = None) -> logging.Logger:
    """Return a logger below ``aenv``. ``type_`` is ignored; existing code passes it."""
    if not name or name == "aenv":
        return _root
    return logging.getLogger(name if name.startswith("aenv.") else f"aenv.{name}")


def setup_logging(handler: logging.Handler | None = None, level: int | str = logging.DEBUG) -> None:
    """Send the log to ``handler``, in our format unless it has a formatter; without a handler, be silent."""
    for old in list(_root.handlers):
        _root.removeHandler(old)
    if handler is None:
        _root.addHandler(logging.NullHandler())
    else:
        if handler.formatter is None:
            handler.setFormatter(logging.Formatter(LOG_FORMAT, DATE_FORMAT))
        _root.addHandler(handler)
    _root.propagate = False  # otherwise a configured root logger would print every line again
    _root.setLevel(level)


def log_if_asked() -> None:
    """Send the log to stderr, in our format, if AENV_LOG_LEVEL is set and the program has not configured logging."""
    if "AENV_LOG_LEVEL" not in os.environ or logging.getLogger().handlers:
        return
    if all(isinstance(handler, logging.NullHandler) for handler in _root.handlers) and _root.propagate:
        setup_logging(logging.StreamHandler(), level_from_environment())


class JsonFormatter(logging.Formatter):
    """Formatter that writes each line as a JSON object, with correlation ids."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line of JSON."""
        from pydantic_core import to_json  # few programs use this formatter

        at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"
        known = current.get()
        line = {"time": at, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if known is not None:
            line |= known.fields()
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return to_json(line, fallback=str).decode()


def level_from_environment(default: str = "INFO") -> str:
    """Return the level that AENV_LOG_LEVEL sets.

    Raises:
        ConfigError: the level is unknown.
    """
    level = os.environ.get("AENV_LOG_LEVEL", default).upper()
    if level not in LEVELS:
        raise ConfigError(f"invalid AENV_LOG_LEVEL {level!r}; expected one of {', '.join(LEVELS)}")
    return level
