"""Logging: silent until the program that uses us asks for it, and never with arguments or variables in it."""

from __future__ import annotations

import logging
import os
import time

from aenv.errors import ConfigError
from aenv.tracing.correlation import about

LOG_FORMAT = "%(asctime)s.%(msecs)03d %(name)s %(levelname)s: %(message)s"
DATE_FORMAT = "%Y%m%d-%H:%M:%S"
LOGLEVEL = logging.INFO
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

_root = logging.getLogger("aenv")
_root.addHandler(logging.NullHandler())


def getLogger(name: str | None = None, type_: str | None = None) -> logging.Logger:
    """A logger below ``aenv``. ``type_`` is accepted from existing code and means nothing."""
    if not name or name == "aenv":
        return _root
    return logging.getLogger(name if name.startswith("aenv.") else f"aenv.{name}")


def setup_logging(handler: logging.Handler | None = None, level: int | str = logging.DEBUG) -> None:
    """Send the log to ``handler``, in our format unless it has its own; without one, be silent."""
    for old in list(_root.handlers):
        _root.removeHandler(old)
    if handler is None:
        _root.addHandler(logging.NullHandler())
    else:
        if handler.formatter is None:
            handler.setFormatter(logging.Formatter(LOG_FORMAT, DATE_FORMAT))
        _root.addHandler(handler)
    _root.propagate = False  # or a configured root logger prints every line a second time
    _root.setLevel(level)


class JsonFormatter(logging.Formatter):
    """A JSON object a line, with the ids of what it is about."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        from pydantic_core import to_json  # most who log do not log like this

        at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z"
        known = about.get()
        line = {"time": at, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        if known is not None:
            line |= known.fields()
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return to_json(line, fallback=str).decode()


def level_from_environment(default: str = "INFO") -> str:
    """The level that AENV_LOG_LEVEL asks for.

    Raises:
        ConfigError: there is no such level.
    """
    level = os.environ.get("AENV_LOG_LEVEL", default).upper()
    if level not in LEVELS:
        raise ConfigError(f"AENV_LOG_LEVEL={level}: use one of {', '.join(LEVELS)}")
    return level
