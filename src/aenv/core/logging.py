"""Earlier import path of the logging set-up; the code is in ``aenv.tracing.logging``."""

from aenv.tracing.logging import DATE_FORMAT, LOG_FORMAT, LOGLEVEL, getLogger, setup_logging

__all__ = ["DATE_FORMAT", "LOGLEVEL", "LOG_FORMAT", "getLogger", "setup_logging"]
