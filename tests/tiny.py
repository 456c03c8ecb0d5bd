"""A system with a few of this machine's programs and nothing else: for tests that need an image, and no download."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path


def make_root(root: Path, programs: Iterable[str]) -> Path:
    """Make one in a folder that is not there yet."""
    for folder in ("usr/bin", "etc", "tmp"):
        (root / folder).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    (root / "etc" / "os-release").write_text("NAME=tiny\n")
    (root / "etc" / "passwd").write_text("root:x:0:0::/:/bin/sh\nsomebody:x:1000:1000::/:/bin/sh\n")
    for name in programs:
        program = shutil.which(name)
        assert program is not None, name
        shutil.copy(program, root / "usr" / "bin" / name)
        said = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
        for word in said.split():
            if word.startswith("/"):
                (root / word[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, root / word[1:])
    return root
