"""Load an object that is named as ``FILE.py:NAME`` or ``MODULE:NAME``."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

from aenv.errors import UsageError

_FILE = re.compile(r"(?P<place>.+\.py):(?P<name>[A-Za-z_]\w*)")
_MODULE = re.compile(r"(?P<place>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*)")


def names_object(text: str) -> bool:
    """Return whether the text has one of these forms."""
    return bool(_FILE.fullmatch(text) or _MODULE.fullmatch(text))


def load_object(text: str) -> Any:
    """Import the module or file, and return the object.

    Raises:
        UsageError: it cannot be imported, or has no such name.
    """
    file, module = _FILE.fullmatch(text), _MODULE.fullmatch(text)
    found = file or module
    if found is None:
        raise UsageError(f"invalid name {text!r}; expected FILE.py:NAME or MODULE:NAME")
    place, name = found["place"], found["name"]
    try:
        loaded = _load_file(Path(place)) if file else importlib.import_module(place)
    except Exception as error:
        raise UsageError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error
    if not hasattr(loaded, name):
        raise UsageError(f"{place} has no {name!r}")
    return getattr(loaded, name)


def _load_file(path: Path) -> Any:
    path = path.expanduser().resolve()
    name = f"aenv_loaded_{re.sub(r'[^A-Za-z0-9]', '_', path.stem)}_{abs(hash(path)):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
