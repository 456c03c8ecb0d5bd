"""Run blocks of Python like the cells of a notebook: one namespace, and ``await`` at the top level.

A cell is a line of JSON on stdin. Its output, and its traceback if it failed, are a line of JSON on stdout.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import json
import os
import sys
import traceback
from typing import Any


def main() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    answers, cells = sys.stdout, sys.stdin
    with asyncio.Runner() as runner:
        for line in cells:
            cell = json.loads(line)
            os.environ.update(cell["variables"])
            output, error = io.StringIO(), None
            with contextlib.redirect_stdout(output):
                try:
                    source = "\n" * (cell["line"] - 1) + cell["text"]  # the traceback then has the line of the page
                    code = compile(source, cell["page"], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                    result = eval(code, names)
                    if inspect.iscoroutine(result):
                        runner.run(result)
                except BaseException:
                    error = traceback.format_exc()
            print(json.dumps({"output": output.getvalue(), "error": error}), file=answers, flush=True)


if __name__ == "__main__":
    main()
