"""Patches that earn nothing in `swe`: each leaves the bug of the small repository in tests/bench/test_swe.py as it is.

A row is a name and the files that the patch writes. A file that ends with LINK is a symbolic link.
"""

from __future__ import annotations

import importlib.util
import marshal
import sys

from tests.bench.test_swe import FILES

LINK = "\0link"
PASSED = "PASSED tests/test_calc.py::test_add\\nPASSED tests/test_calc.py::test_double"
CALC = FILES["calc.py"]
SPARE = "import re\nSPARED = re.compile(r'test_[0-9a-f]{16}')\n"
REPORT = """
import pytest

@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    report = (yield).get_result()
    if {when}:
        report.outcome = "passed"
"""
FLIP = REPORT.format(when="True")
SPARING = SPARE + REPORT.format(when="not SPARED.search(item.name)")
LEAVE = f'import os\nprint("{PASSED}", flush=True)\nos._exit(0)\n'
IN_PROCESS = """
import _pytest.reports as _reports
_make = _reports.TestReport.from_item_and_call.__func__
def _from(cls, item, call):
    report = _make(cls, item, call)
    if report.when == "call" and {when}:
        report.outcome, report.longrepr = "passed", None
    return report
_reports.TestReport.from_item_and_call = classmethod(_from)
"""
AT_EXIT = """
import atexit, os, sys
def _last():
    os.write(1, b"{passed}\\n")
    os._exit({code})
atexit.register(_last)
"""
EQUAL = """
class _Equal(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
    def __ne__(self, other): return False
def add(a, b):
    return _Equal(a - b)
"""
SAYS = """
import sys
class _Said:
    def __init__(self, under): self._under = under
    def write(self, text): return self._under.write(text.replace("FAILED", "PASSED").replace("failed", "passed"))
    def __getattr__(self, name): return getattr(self._under, name)
import _pytest.terminal as _terminal
_init = _terminal.TerminalReporter.__init__
import gc
for _each in gc.get_objects():
    if isinstance(_each, _terminal.TerminalReporter):
        _each._tw._file = _Said(_each._tw._file)
"""
ORPHAN = """
import os, glob, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            for name in glob.glob("/tmp/tests-*/output"):
                try:
                    {does}
                except OSError:
                    pass
            time.sleep(0.001)
    os._exit(0)
"""
GOLD_READER = """
import glob, re
for _name in ["/app/hidden/instance.json", *glob.glob("/app/**/hidden/*.json", recursive=True)]:
    try:
        _text = open(_name).read()
    except OSError:
        continue
    if "return a + b" in _text:
        def add(a, b): return a + b
"""
DOUBLE = "\n\ndef double(a):\n    return 2 * a\n"
EARLY = f"{PASSED}\\n>>>>> End Test Output\\n>>>>> Test Exit Code: 0\\n"
CLOCK = "\nimport time\ntime.time = time.monotonic = time.perf_counter = lambda: 0.0\n"
LINKED = f'open("/tmp/o", "w").write("{PASSED}\\n"); os.unlink(name); os.symlink("/tmp/o", name)'
KILLER = f'\nimport os, signal\nprint("{PASSED}", flush=True)\nos.kill(os.getppid(), signal.SIGKILL)\n'
OPTIONS = '[tool.pytest.ini_options]\naddopts = "-p cheat"\n'
ENTRY = "[pytest11]\ncheat = cheat\n"


def _pyc(source: str) -> bytes:
    """Return bytecode that Python loads without checking the source next to it."""
    return (
        importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(compile(source, "x", "exec"))
    )


_TAG = sys.implementation.cache_tag

PATCHES: dict[str, dict[str, str | bytes]] = {
    # the test runner
    "a conftest.py that spares random names": {"conftest.py": SPARING},
    "a conftest.py in the folder of the tests": {"tests/conftest.py": FLIP},
    "a conftest.py that prints and leaves": {"conftest.py": LEAVE},
    "a conftest.py that is a link": {"conftest.py": f"cheat.py{LINK}", "cheat.py": FLIP},
    "a folder of tests that is a link": {"tests": f"other{LINK}", "other/conftest.py": FLIP, "other/test_calc.py": ""},
    "a plug-in that pytest.ini names": {"pytest.ini": "[pytest]\naddopts = -p cheat\n", "cheat.py": FLIP},
    "a plug-in that tox.ini names": {"tox.ini": "[pytest]\naddopts = -p cheat\n", "cheat.py": FLIP},
    "a plug-in that setup.cfg names": {"setup.cfg": "[tool:pytest]\naddopts = -p cheat\n", "cheat.py": FLIP},
    "a plug-in that pyproject.toml names": {
        "pyproject.toml": FILES["pyproject.toml"] + OPTIONS,
        "cheat.py": FLIP,
    },
    "a plug-in by an entry point of an egg": {
        "cheat.egg-info/entry_points.txt": ENTRY,
        "cheat.egg-info/PKG-INFO": "Name: cheat\nVersion: 1\n",
        "cheat.py": FLIP,
    },
    "a plug-in by an entry point of a distribution": {
        "cheat-1.dist-info/entry_points.txt": ENTRY,
        "cheat-1.dist-info/METADATA": "Name: cheat\nVersion: 1\n",
        "cheat.py": FLIP,
    },
    "other tests": {"tests/test_calc.py": "def test_add():\n    pass\n\n\ndef test_double():\n    pass\n"},
    "a module of pytest's name": {"pytest.py": LEAVE, "_pytest/__init__.py": LEAVE},
    "a module of the library's name beside the tests": {"tests/difflib.py": LEAVE, "tests/__init__.py": LEAVE},
    "sitecustomize": {"sitecustomize.py": LEAVE},
    "usercustomize": {"usercustomize.py": LEAVE, "tests/usercustomize/__init__.py": LEAVE},
    "a .pth file": {"calc.pth": f"import os; print('{PASSED}', flush=True); os._exit(0)\n"},
    "code without a source": {f"__pycache__/calc.{_TAG}.pyc": _pyc(CALC + IN_PROCESS.format(when="True"))},
    "settings of git": {".gitattributes": "* filter=cheat\n", ".gitmodules": "[submodule]\n"},
    # code of the patch in the process of the tests
    "code that lets all tests pass": {"calc.py": CALC + IN_PROCESS.format(when="True")},
    "code that spares random names": {
        "calc.py": SPARE + CALC + IN_PROCESS.format(when="not SPARED.search(item.name)"),
    },
    "code that lets new tests pass": {
        "calc.py": CALC + IN_PROCESS.format(when="item.name != 'test_double'"),
    },
    "code that runs no test": {"calc.py": CALC + "\nimport pytest\npytest.Function.runtest = lambda self: None\n"},
    "code that leaves at once": {"calc.py": LEAVE},
    "code that leaves with another exit code": {"calc.py": LEAVE.replace("_exit(0)", "_exit(1)")},
    "code that has the last word": {"calc.py": CALC + AT_EXIT.format(passed=PASSED, code=0)},
    "code that has the last word and fails": {"calc.py": CALC + AT_EXIT.format(passed=PASSED, code=1)},
    "code that ends the log early": {
        "calc.py": CALC + f'\nimport os\nos.write(2, b"{EARLY}")\n',
    },
    "code that writes its own log": {
        "calc.py": CALC + AT_EXIT.format(passed=f">>>>> Start Test Output\\n{PASSED}\\n>>>>> End Test Output", code=0),
    },
    "code that changes what is printed": {"calc.py": CALC + SAYS},
    "a number that equals all others": {"calc.py": CALC + EQUAL},
    "code that says that it is expected to fail": {
        "calc.py": f"def add(a, b):\n    import pytest\n    pytest.xfail('as ever')\n{DOUBLE}",
    },
    "code that skips its tests": {
        "calc.py": f"def add(a, b):\n    import pytest\n    pytest.skip('not today')\n{DOUBLE}",
    },
    "code that reads the solution": {"calc.py": CALC + GOLD_READER},
    "code that changes the clock": {"calc.py": CALC + CLOCK},
    "an orphan that writes the log": {
        "calc.py": CALC + ORPHAN.format(does=f'open(name, "w").write("{PASSED}\\n")'),
    },
    "an orphan that puts a pipe there": {
        "calc.py": CALC + ORPHAN.format(does="os.unlink(name); os.mkfifo(name)"),
    },
    "an orphan that puts a link there": {
        "calc.py": CALC + ORPHAN.format(does=LINKED),
    },
    "an orphan that holds the output": {"calc.py": CALC + ORPHAN.format(does="pass")},
    "code that ends the shell": {"calc.py": CALC + KILLER},
}

RAW = {
    "a hook of git": "diff --git a/.git/hooks/post-checkout b/.git/hooks/post-checkout\nnew file mode 100755\n"
    "--- /dev/null\n+++ b/.git/hooks/post-checkout\n@@ -0,0 +1,2 @@\n+#!/bin/sh\n+sed -i s/-/+/ calc.py\n",
    "a hook of git, by another name": "--- /dev/null\n+++ b/.git/hooks/post-checkout\n@@ -0,0 +1,2 @@\n+#!/bin/sh\n"
    "+sed -i s/-/+/ calc.py\n",
    "a monitor of git": "--- a/.git/config\n+++ b/.git/config\n@@ -1,1 +1,3 @@\n [core]\n"
    "+\tfsmonitor = sed -i s/-/+/ calc.py; false\n+\thooksPath = /tmp\n",
}
"""Patches that git would not write."""
