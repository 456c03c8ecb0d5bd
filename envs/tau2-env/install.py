"""Install TAU2-Bench into this Python: `python install.py [--source CHECKOUT]`.

The benchmark is not on PyPI: the project named `tau2` there is about magnetism. So a wheel is made of its repository,
at one commit, with the data beside the code, and installed with all that it asks for. The data is checked by git's own
hashes, so that scores can be compared.
"""

import argparse
import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

URL = "https://github.com/sierra-research/tau2-bench"
COMMIT = "a2c0247"
NAME = "tau2_bench"
DATA = "tau2_bench_data"
EXTRA = ["rank-bm25>=0.2.2", "audioop-lts; python_version >= '3.13'"]
BESIDE = '''"""The data of TAU2-Bench. To be imported before it: the benchmark looks at these variables once."""

import os

os.environ.setdefault("TAU2_DATA_DIR", os.path.dirname(os.path.abspath(__file__)))
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or importing it asks a web server
os.environ.setdefault("LOGURU_LEVEL", "ERROR")
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):  # a process with threads cannot be forked
    os.environ.setdefault(name, "1")
'''
HASHES = {
    "airline/db.json": "c6a1e817aa9102c5822e83affb3595acbc312701",
    "airline/tasks.json": "ea4ff5e3f5e3d97ca391846a6e8dd9eb3437dc80",
    "banking_knowledge/db.json": "91f450a39a0dd6ffeedb8ab51cf04d9de34cde96",
    "banking_knowledge/tasks.json": "5da00be9f9b3219636b0ce3228a89417c8487f95",
    "mock/tasks.json": "f2fff0c59336623ff8f8fdd6618d8cf03753e9ab",
    "retail/db.json": "4d67b03b2d39ade5a7ab6facb2edd7ab3e013d48",
    "retail/tasks.json": "e95a9f898b2d1f6568ea8faec78edc3767ce747d",
    "telecom/db.toml": "6c8a639d85896a049a5daf87332107a840a55aac",
    "telecom/tasks.json": "6f41a5e3489e187fa247d729706509d8250a31c1",
}
WAYS = (
    f"Either let this machine reach {URL}, or get a checkout of commit {COMMIT} some other way and name it: "
    "python install.py --source CHECKOUT, or the variable AENV_TAU2_SOURCE."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--source", type=Path, default=os.environ.get("AENV_TAU2_SOURCE"), help="a checkout")
    source = parser.parse_args().source
    if not (3, 11) <= sys.version_info < (3, 14):
        sys.exit(f"TAU2-Bench needs Python 3.11 to 3.13; this is {sys.version.split()[0]}")
    refuse_the_other_one()
    with tempfile.TemporaryDirectory() as folder:
        checkout = Path(source) if source else clone(Path(folder) / "tau2-bench")
        check(checkout)
        install(pack(checkout, Path(folder)))
    sys.stdout.write("TAU2-Bench is installed: Environment('tau2-env') works now.\n")


def refuse_the_other_one() -> None:
    try:
        found = metadata.metadata("tau2")
    except metadata.PackageNotFoundError:
        return
    sys.exit(f"another package named tau2 is installed ({found['Summary']}): pip uninstall tau2")


def clone(target: Path) -> Path:
    for command in (
        ["clone", "--quiet", "--filter=blob:none", "--no-checkout", URL, target],
        ["-C", target, "checkout", "--quiet", COMMIT],
    ):
        if shutil.which("git") is None or subprocess.run(["git", *command]).returncode:
            sys.exit(f"TAU2-Bench cannot be downloaded. {WAYS}")
    return target


def check(checkout: Path) -> None:
    """Exit unless the data is what everybody else is graded with."""
    for name, wanted in HASHES.items():
        file = checkout / "data/tau2/domains" / name
        if not file.is_file():
            sys.exit(f"{file} is missing. {WAYS}")
        data = file.read_bytes()
        if hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest() != wanted:
            sys.exit(f"{file} is not that of commit {COMMIT}. {WAYS}")


def pack(checkout: Path, folder: Path) -> Path:
    """A wheel with the package and its data, but for what only voice needs."""
    project = tomllib.loads((checkout / "pyproject.toml").read_text())["project"]
    version = f"{project['version']}+{COMMIT}"
    info = f"{NAME}-{version}.dist-info"
    asked = "".join(f"Requires-Dist: {line}\n" for line in [*project["dependencies"], *EXTRA])
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tau2-bench\nVersion: {version}\n{asked}".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tau2-env\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/LICENSE": (checkout / "LICENSE").read_bytes(),
        f"{DATA}/__init__.py": BESIDE.encode(),
    }
    for root, base, into in ((checkout / "src", "tau2", ""), (checkout / "data", "tau2", f"{DATA}/")):
        for path in sorted((root / base).rglob("*")):
            name = path.relative_to(root).as_posix()
            if path.is_file() and wanted(name):
                files[into + name] = path.read_bytes()
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in files.items()
    )
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    wheel = folder / f"{NAME}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return wheel


def wanted(name: str) -> bool:
    unneeded = ("__pycache__", "/results/", "_voice.json", "audio_difficulty", "/workflows/", "/task_issues/")
    return not any(part in name for part in unneeded)


def install(wheel: Path) -> None:
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    command = [uv, "pip", "install", "--python", sys.executable] if uv else [sys.executable, "-m", "pip", "install"]
    if subprocess.run([*command, "--quiet", str(wheel)]).returncode:
        sys.exit("the packages that TAU2-Bench needs cannot be installed: see above")


if __name__ == "__main__":
    main()
