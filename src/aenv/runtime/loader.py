"""Import an environment's code, with its modules under the names that authors expect.

The source folder is a package named after itself, so that relative imports work, and each of its modules is
also importable by its bare name, as it is when Python runs a script there. Both names give one and the same
module: loaded twice, it would declare every tool twice.

In a sandbox all modules of the project come from its read-only snapshot, see `aenv.runtime.imports`.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

from aenv.authoring.declarations import Registry, get_registry
from aenv.errors import LoadError, UsageError
from aenv.runtime.imports import Imports
from aenv.schema.requirements import REQUIREMENTS, lists_package

_NOT_OURS = {
    "__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist", "vendor", "third_party",
    "tests", "test",
}  # fmt: skip
_OTHER_PROJECT = ("pyproject.toml", "setup.py", "setup.cfg", ".git", "config.json")
_NOT_MODULES = {"setup.py", "conftest.py"}
_NEVER_THE_PROJECTS = sys.stdlib_module_names | {"aenv"}
"""Names that a file of the project cannot shadow: the runtime itself needs these modules."""


def load(path: Path, imports: Imports | None = None) -> Registry:
    """Import everything at ``path`` (a file, a folder, or a project with ``src/``); return its declarations.

    ``imports``: the import rules of a sandbox, which are sealed once everything is loaded. Without, modules come from
    the files at ``path``.

    Raises:
        UsageError: there is nothing at that path.
        LoadError: a file does not import, or nothing is declared.
    """
    path = path.resolve()
    if not path.exists():
        raise UsageError(f"no file or folder at {path}")
    if path.is_file():
        if path.suffix != ".py":
            raise UsageError(f"{path} is not a Python file")
        root, files = path.parent, [path]
    else:
        root = path / "src" if (path / "src").is_dir() else path
        files = list(_modules_below(root))
        if not files:
            raise LoadError(f"no Python files in {root}")
    package = _Package(root, imports)
    for file in files:
        package.load(file)
    if imports is not None:
        imports.seal()
    registry = get_registry()
    if not (registry.tools or registry.functions or registry.rewards):
        raise LoadError(
            f"nothing is declared in {path}: mark functions with @register_tool, @register_function or @register_reward"
        )
    return registry


def _modules_below(folder: Path) -> Iterator[Path]:
    """Iterate over the project's modules in a fixed order, without tests and vendored trees."""
    entries = sorted(folder.iterdir())
    for entry in entries:
        if entry.suffix == ".py" and entry.is_file() and not entry.name.startswith((".", "_")):
            is_test = entry.name.startswith("test_") or entry.name.endswith("_test.py")
            if not is_test and entry.name not in _NOT_MODULES and entry.stem.isidentifier():
                yield entry
    for entry in entries:
        if not entry.is_dir() or entry.name.startswith((".", "_")) or entry.name in _NOT_OURS:
            continue
        foreign = any((entry / mark).exists() for mark in _OTHER_PROJECT)
        if not foreign and entry.name.isidentifier():
            yield from _modules_below(entry)


class _Package:
    """The source folder as a package."""

    def __init__(self, root: Path, imports: Imports | None) -> None:
        self.root = root
        self.imports = imports
        if imports is not None:
            imports.install()
        self.name = self._free_name(root.name)
        if self.name not in sys.modules:
            self._import_root()
        sys.meta_path.insert(0, _BareNames(self))

    def _free_name(self, name: str) -> str:
        """Return the folder's name, or a made-up one if it is no identifier or taken by another module."""
        own = sys.modules.get(name)
        ours = own is not None and str(self.root) in list(getattr(own, "__path__", ()))
        if name.isidentifier() and (ours or (own is None and name not in sys.stdlib_module_names)):
            return name
        return "aenv_project_" + "".join(c if c.isalnum() else "_" for c in name)

    def _import_root(self) -> None:
        init = self.root / "__init__.py"
        spec = importlib.machinery.ModuleSpec(self.name, None, is_package=True)
        if init.exists():
            if self.imports is not None:
                found = self.imports.spec(self.name, str(init), is_package=True)
            else:
                found = importlib.util.spec_from_file_location(
                    self.name, init, submodule_search_locations=[str(self.root)]
                )
            assert found is not None
            spec = found
        spec.submodule_search_locations = [str(self.root)]
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.name] = module
        if spec.loader is not None:
            loader = spec.loader
            self._guard(lambda: loader.exec_module(module), init)

    def has(self, name: str) -> bool:
        """Return whether the folder has a module or a package of that name."""
        imports = self.imports
        roots = [self.root]
        if imports is not None:
            shipped = imports.shipped(str(self.root))
            roots = ([Path(shipped)] if shipped is not None else []) + ([] if imports.sealed else roots)
        return any((root / f"{name}.py").is_file() or _has_python(root / name) for root in roots)

    def load(self, file: Path) -> None:
        """Import one file of the folder."""
        dotted = ".".join(file.relative_to(self.root).with_suffix("").parts)
        self._guard(lambda: importlib.import_module(f"{self.name}.{dotted}"), file)

    def _guard(self, action: Callable[[], object], file: Path) -> None:
        try:
            action()
        except LoadError:
            raise
        except SyntaxError as error:
            at = f"{error.filename or file}:{error.lineno}"
            raise LoadError(f"{at}: {error.msg}\n    {(error.text or '').strip()}") from error
        except (Exception, SystemExit) as error:
            raise LoadError(_explain(error, file, self.root)) from error


class _BareNames(importlib.abc.MetaPathFinder):
    """``import helper`` finds ``src/helper.py``, as the very module that ``src.helper`` is."""

    def __init__(self, package: _Package) -> None:
        self._package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        head = fullname.partition(".")[0]
        if head in _NEVER_THE_PROJECTS or head == self._package.name or not self._package.has(head):
            return None
        return importlib.machinery.ModuleSpec(fullname, _Alias(f"{self._package.name}.{fullname}"))


class _Alias(importlib.abc.Loader):
    """Loads a module under a second name."""

    def __init__(self, real: str) -> None:
        self._real = real
        self._spec: importlib.machinery.ModuleSpec | None = None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._real)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has just set the alias's spec


def _has_python(folder: Path) -> bool:
    return folder.is_dir() and any(folder.glob("*.py"))


def _explain(error: BaseException, file: Path, root: Path) -> str:
    """Return the last line of the environment's code in the traceback, and the error's text."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(root)]
    at = f"{own[-1].filename}:{own[-1].lineno}" if own else str(file)
    line = f"\n    {own[-1].line}" if own and own[-1].line else ""
    hint = ""
    if isinstance(error, ModuleNotFoundError):
        hint = f"\n{_advice(str(error.name), root)}"
    return f"{at}: {type(error).__name__}: {error}{line}{hint}"


def _advice(module: str, root: Path) -> str:
    """Return what to do about a missing module."""
    package = module.partition(".")[0]
    for folder in (root, root.parent):
        try:
            text = (folder / REQUIREMENTS).read_text(errors="replace")
        except OSError:
            continue
        if lists_package(text, package):
            return f"{REQUIREMENTS} lists it, but it is not installed here: pip install -r {folder / REQUIREMENTS}"
        return f"Install it, and add the package that contains it to {REQUIREMENTS}: pip install {package}"
    return f"Install it, or add it to {REQUIREMENTS}: pip install {package}"
