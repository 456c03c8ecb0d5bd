"""Tools of verifier scripts: this machine's uv and the Pythons that they request, mounted read-only in the box.

Most scripts download both when they start. With these in the box, grading needs only a package index.
"""

from __future__ import annotations

import os
import re

from aenv.images import base_roots
from aenv.images.container import AENV_FOLDER
from aenv.images.uv_program import uv_program

TOOLS = f"{AENV_FOLDER}/tools"
_VERSIONS = re.compile(r"(?:-p|--python)[ =]+['\"]?(3\.\d+)")
_USUAL = "3.13"


async def tools_for(script: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the host paths to mount for a script, as far as they exist, and the variables that configure uv."""
    variables = {
        "UV_CACHE_DIR": "/var/cache/aenv-uv", "UV_NO_CONFIG": "1", "UV_PYTHON_INSTALL_DIR": f"{TOOLS}/python",
        "UV_PYTHON_PREFERENCE": "managed", "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    uv = uv_program()
    if uv is None or "uv" not in script:
        return {}, variables
    shown = {f"{TOOLS}/bin/{name}": str(uv.with_name(name)) for name in ("uv", "uvx") if uv.with_name(name).exists()}
    for version in sorted({*_VERSIONS.findall(script), _USUAL}):
        found = await base_roots.host_python(version)
        if found is None:
            continue
        full = re.search(rf"{re.escape(version)}\.\d+", found.name)
        name = f"cpython-{full[0] if full else f'{version}.0'}-linux-{os.uname().machine}-gnu"
        shown[f"{TOOLS}/python/{name}"] = str(found)
        if any(found.glob("lib/libpython3.*.so*")):
            shown[str(found)] = str(found)  # its RPATH may name the folder it was installed in
    return shown, variables
