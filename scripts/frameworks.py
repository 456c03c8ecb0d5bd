"""Test the adapters of agent frameworks and trainers with the real packages, each in an environment of its own.

    python scripts/frameworks.py [--only NAME ...] [--all] [--write]

Needs a package index. Frameworks pin packages that exclude each other, so each gets a virtual environment under
`.bench/frameworks/`, kept for the next run. There its tests (`tests/frameworks`, `tests/trainers`) and its example run.
A framework that the index cannot serve is `untested`, with the reason; one whose tests fail makes the script fail.
`--all` includes Ray, and those that need PyTorch, which are installed with pip: some gigabytes. `--write` does that
too, and writes the results to `docs/reference/frameworks.md`; with `--only`, the others are those of their last run.
`.ci/run` calls this script without options.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = Path(sys.executable).parent / "uv"
FOLDER = ROOT / ".bench" / "frameworks"
PAGE = ROOT / "docs" / "reference" / "frameworks.md"
TOOLS = ("pytest>=8.3", "pytest-timeout>=2.3")
OWN: dict[str, str] = {}
"""Variables of the programs that run."""
PARALLEL = 2
SECONDS = 400
"""Time limit of an installation, of the tests and of the example of a framework."""


@dataclass(frozen=True)
class Framework:
    title: str
    name: str
    """Name in `env.agent_tools(name)`."""
    extra: str
    package: str
    """Distribution whose version is shown."""
    test: str
    """Modules with its tests, separated by spaces."""
    example: str
    beside: tuple[str, ...] = ()
    """Further requirements of test and example, such as a client of the scripted model."""
    tests = "tests/frameworks"
    ends_with = "1.0"
    """End of the example's output."""

    @property
    def files(self) -> list[str]:
        """Modules with its tests, as paths."""
        return [f"{self.tests}/{each}.py" for each in self.test.split()]

    @property
    def wanted(self) -> list[str]:
        """Requirements."""
        return [f"{ROOT}[{self.extra}]", *self.beside, *TOOLS]


@dataclass(frozen=True)
class Trainer(Framework):
    offers: str = ""
    """What the adapter is, in the words of the trainer."""
    fault: str = ""
    """What becomes of an episode that has no reward."""
    tested_with: str = "the package"
    needs_torch: bool = False
    is_slow: bool = False
    """It takes minutes; only `--all` checks it, as what needs PyTorch."""
    arguments: tuple[str, ...] = ()
    """Arguments of the example."""
    python: str = ""
    """Version of Python, if the trainer does not work with this one."""
    source: str = ""
    """Variable that names a folder with the source, for what is in no index."""
    parts: bool = False
    """The package is installed without its requirements, which `beside` lists as far as the test needs them."""
    tests = "tests/trainers"
    ends_with = ""

    @property
    def wanted(self) -> list[str]:
        if self.parts or self.source:
            return [str(ROOT), *self.beside, *TOOLS]
        return [f"{ROOT}[{self.extra}]", *self.beside, *TOOLS]


FRAMEWORKS: tuple[Framework, ...] = (
    Framework("CAMEL", "camel", "camel", "camel-ai", "test_camel", "frameworks/camel_agent.py"),
    Framework(
        "Claude Agent SDK",
        "claude-agent-sdk",
        "claude-agent-sdk",
        "claude-agent-sdk",
        "test_claude_agent",
        "frameworks/claude_agent.py",
    ),
    Framework(
        "Google ADK",
        "google-adk",
        "google-adk",
        "google-adk",
        "test_google_adk",
        "frameworks/google_adk_agent.py",
        ("litellm",),
    ),
    Framework(
        "LangChain, LangGraph",
        "langchain",
        "langchain",
        "langchain",
        "test_langchain",
        "frameworks/langchain_agent.py",
        ("langchain-openai",),
    ),
    Framework(
        "OpenAI Agents SDK", "openai-agents", "agents", "openai-agents", "test_openai_agents", "05_openai_agents.py"
    ),
    Framework(
        "Pydantic AI",
        "pydantic-ai",
        "pydantic-ai",
        "pydantic-ai-slim",
        "test_pydantic_ai",
        "frameworks/pydantic_ai_agent.py",
        ("pydantic-ai-slim[openai]",),
    ),
    Framework(
        "smolagents",
        "smolagents",
        "smolagents",
        "smolagents",
        "test_smolagents",
        "frameworks/smolagents_agent.py",
        ("smolagents[openai]",),
    ),
)


TORCH = "torch==2.13.0"
TRAINERS: tuple[Trainer, ...] = (
    Trainer(
        "Gymnasium", "gymnasium", "gymnasium", "gymnasium", "test_gymnasium", "",
        offers="`ToolEnv`, `ToolVectorEnv`", fault="raised",
    ),
    Trainer(
        "Agent Lightning", "agentlightning", "agentlightning", "agentlightning", "test_agent_lightning", "",
        offers="agent class of the local runner", fault="the rollout fails", python="3.12",
    ),
    Trainer(
        "NeMo Gym", "nemo-gym", "nemo-gym", "nemo-gym", "test_nemo_gym", "",
        offers="resources server", fault="HTTP error 503", python="3.12",
    ),
    Trainer(
        "OpenEnv", "openenv", "openenv", "openenv", "test_openenv", "",
        offers="server (`openenv_app`); OpenEnv environments as tools (`register_openenv`)", fault="raised",
    ),
    Trainer(
        "Ray", "ray", "ray", "ray", "test_ray", "", is_slow=True,
        offers="`aenv rollout --on ray`, `RayRollout`",
        fault="run again, also after the death of a node; then no reward",
    ),
    Trainer(
        "RLlib", "rllib", "rllib", "ray", "test_rllib", "", (TORCH,), needs_torch=True,
        offers="`ToolEnv` by the name that `register_rllib` gives it", fault="raised: RLlib drops the episode",
    ),
    Trainer(
        "SkyRL-gym", "skyrl-gym", "skyrl-gym", "skyrl-gym", "test_skyrl_gym", "",
        offers="text environment `aenv`", fault="raised",
    ),
    Trainer(
        "verifiers", "verifiers", "verifiers", "verifiers", "test_verifiers", "",
        offers="taskset and harness", fault="error of the trace",
    ),
    Trainer(
        "AReaL", "areal", "", "areal", "test_areal", "",
        (TORCH, "aiofiles", "aiohttp", "colorlog", "einops", "flask", "httpx", "hydra-core", "lark", "numba", "openai",
         "orjson", "pillow", "pyyaml", "ray", "tenacity", "torchdata", "transformers", "uvloop"),
        needs_torch=True, parts=True, python="3.12",
        offers="workflow", fault="raised: AReaL rejects the trajectory",
        tested_with="the package, in its proxy workflow, without its trainer",
    ),
    Trainer(
        "slime", "slime", "", "torch", "test_slime", "",
        (TORCH, "aiohttp", "httpx", "pillow", "pylatexenc", "ray", "transformers"),
        needs_torch=True, source="SLIME_SOURCE",
        offers="generate function", fault="run again, then raised",
        tested_with="its source (624b824, August 2026), without its trainer",
    ),
    Trainer(
        "Stable-Baselines3", "stable-baselines3", "stable-baselines3", "stable-baselines3", "test_stable_baselines3",
        "training/ppo_stable_baselines3.py", (TORCH,), needs_torch=True, arguments=("2048",),
        offers="`ToolVecEnv`", fault="raised",
    ),
    Trainer(
        "verl", "verl", "verl", "verl", "test_verl test_verl_tools", "", (TORCH, "cachetools", "fastapi"),
        needs_torch=True, offers="agent loop `aenv`; tools (`EnvironmentTool`)",
        fault="run again, then raised; tools: raised", tested_with="the package, without its trainer",
    ),
    Trainer(
        "TRL", "trl", "trl", "trl", "test_trl", "training/grpo_trl.py", (TORCH,), needs_torch=True,
        arguments=("10",),
        offers="class for `environment_factory`", fault="reward None: TRL leaves the completion out",
    ),
)  # fmt: skip
CHECKED = (*FRAMEWORKS, *TRAINERS)


@dataclass
class Result:
    version: str = ""
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    untested: str = ""
    skipped: list[str] = field(default_factory=list)
    """Reasons of the tests that were skipped."""
    has_example: bool = True
    supports: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    output: str = ""

    @property
    def said(self) -> str:
        if self.untested:
            return f"untested: {self.untested}"
        if self.failed:
            return f"FAILED: {', '.join(self.failed)}"
        passed = f"{self.passed} tests and the example pass" if self.has_example else f"{self.passed} tests pass"
        left = f"; {len(self.skipped)} untested: {', '.join(sorted(set(self.skipped)))}" if self.skipped else ""
        return passed + left


def install(framework: Framework) -> Path:
    """Return the interpreter of the framework's environment; it is made where its requirements have changed."""
    folder = FOLDER / framework.name
    python, made = folder / "bin" / "python", folder / "requirements"
    wanted = framework.wanted
    key = "\n".join([*wanted, (ROOT / "pyproject.toml").read_text()])
    if not made.is_file() or made.read_text() != key:
        base = interpreter(framework.python if isinstance(framework, Trainer) else "")
        requirements = [part for each in wanted for part in (("-e", each) if each.startswith("/") else (each,))]
        if isinstance(framework, Trainer) and framework.needs_torch:  # pip's settings may name a smaller PyTorch
            run(UV, "venv", "--quiet", "--clear", "--seed", "--python", base, folder)
            if framework.parts:
                run(python, "-m", "pip", "install", "--quiet", "--no-deps", framework.package)
            run(python, "-m", "pip", "install", "--quiet", *requirements)
        else:
            run(UV, "venv", "--quiet", "--clear", "--python", base, folder)
            run(UV, "pip", "install", "--quiet", "--python", python, *requirements)
        made.write_text(key)
    return python


def interpreter(version: str) -> str:
    """Return a Python of a version on this machine; by default this one."""
    if not version or sys.version_info[:2] == tuple(map(int, version.split("."))):
        return sys.executable
    found = shutil.which(f"python{version}")
    others = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    for candidate in [*filter(None, [found]), *map(str, others)]:
        if subprocess.run([candidate, "-V"], capture_output=True).returncode == 0:
            return candidate
    raise subprocess.CalledProcessError(1, "python", stderr=f"there is no Python {version} on this machine")


def check(framework: Framework) -> Result:
    """Run the tests and the example of a framework."""
    result, started = Result(), time.monotonic()
    source = getattr(framework, "source", "")
    if source and not os.environ.get(source):
        result.untested = f"it is in no package index, and {source} names no folder with its source"
        return result
    try:
        python = install(framework)
        code = f"from importlib.metadata import version; print(version({framework.package!r}))"
        result.version = run(python, "-c", code).strip()
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        result.untested = " ".join(str(error.stderr or error).split())[:200]
        return result
    report = FOLDER / f"{framework.name}.xml"
    report.unlink(missing_ok=True)
    options = ("-q", "-W", "ignore", "-p", "no:cacheprovider", "--timeout", "180", f"--junitxml={report}")
    scope = ("--confcutdir", framework.tests, *framework.files)
    attempt(result, "tests", python, "-m", "pytest", *options, *scope)
    read_report(report, result)
    result.has_example = bool(framework.example)
    if framework.example:
        arguments = framework.arguments if isinstance(framework, Trainer) else ()
        shown = attempt(result, "example", python, f"examples/{framework.example}", *arguments)
        if not result.failed and not result.untested and not shown.strip().endswith(framework.ends_with):
            result.failed.append("example, which does not end with the full reward")
    if not result.passed and not result.failed and not result.untested:
        result.untested = "all tests are skipped"
    result.seconds = time.monotonic() - started
    return result


def attempt(result: Result, what: str, *command: str | Path) -> str:
    """Run a program and return its output; note in the result if it fails or takes too long."""
    try:
        return run(*command)
    except subprocess.TimeoutExpired:
        result.untested = f"{what}: no result within {SECONDS} s"
    except subprocess.CalledProcessError as error:
        result.output += f"{error.stdout}\n{error.stderr}\n"
        result.failed.append(what)
    return ""


def read_report(report: Path, result: Result) -> None:
    """Read what passed, and what the tests say about the framework."""
    if not report.is_file():
        return
    for case in ET.parse(report).getroot().iter("testcase"):
        outcome = {child.tag for child in case}
        result.passed += not outcome & {"failure", "error", "skipped"}
        result.skipped += [str(child.get("message")) for child in case if child.tag == "skipped"]
        for each in case.iter("property"):
            result.supports[each.get("name", "")] = each.get("value", "")


def run(*command: str | Path) -> str:
    paths = [os.environ[each.source] for each in TRAINERS if each.source and os.environ.get(each.source)]
    variables = {
        "PYTHONPATH": os.pathsep.join(paths),
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "PYTHONDONTWRITEBYTECODE": "1",
        **OWN,
    }
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("AENV_", "OPENAI_", "ANTHROPIC_"))
    }
    done = subprocess.run(
        list(map(str, command)),
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=SECONDS,
        env=kept | variables,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout


PREFACE = """# Frameworks

`python scripts/frameworks.py --write` writes this page: it runs each adapter's tests and example with the real package,
in an environment of its own. CI runs the same, without Ray and what needs PyTorch.

## Agent frameworks

Agent frameworks whose agents use the tools of an environment: `await env.agent_tools(name)` returns tool objects of the
framework, and `SyncEnvironment.agent_tools(name)` does so in blocking code. Plain model APIs have
[`tools_for`](../guides/sdk.md#model-apis), and any MCP client has [`mcp_url`](../guides/mcp-clients.md).

The tests go through the framework's own loop, with a scripted model.

| framework | name | install | version | result | malformed JSON | infrastructure fault | images | example | test |
|---|---|---|---|---|---|---|---|---|---|
"""
NOTES = """
- Errors of a tool and wrong arguments are results that the model reads, in every framework.
- *Malformed JSON*: some frameworks parse arguments before a tool is called, and end the run, or take the text for the
  only argument, if they are not JSON.
- *Infrastructure fault*: an instance that is lost raises an exception in the tool. Where the framework passes all
  exceptions on to the model, the run goes on; the reward then raises, so such a run is never graded as 0.
- *Images*: *named* means that the model reads type and size of the picture, since the framework's tools return text.
- Frameworks pin packages that exclude each other. Install each in an environment of its own; CAMEL needs `mcp<2`.
"""
TRAINERS_PREFACE = """
## Trainers

Trainers that take episodes from environments; [training](../guides/training.md) shows how.

| trainer | what it is given | install | version | result | tested with | episode without a reward | example | test |
|---|---|---|---|---|---|---|---|---|
"""


def trainer_row(trainer: Trainer, result: Result) -> str:
    file = Path(trainer.example)
    cells = [
        trainer.title,
        trainer.offers,
        f"`pip install 'aenvironment[{trainer.extra}]'`" if trainer.extra else "",
        "" if trainer.source else result.version,
        result.said,
        trainer.tested_with,
        trainer.fault,
        f"[{file.name}](../../examples/{trainer.example})" if trainer.example else "",
        ", ".join(f"`{file}`" for file in trainer.files),
    ]
    return f"| {' | '.join(cells)} |"


def page(results: dict[str, Result]) -> str:
    lines = []
    for framework in FRAMEWORKS:
        result = results[framework.name]
        supports = [result.supports.get(name, "") for name in ("malformed", "infra", "images")]
        cells = [
            framework.title,
            f"`{framework.name}`",
            f"`pip install 'aenvironment[{framework.extra}]'`",
            result.version,
            result.said,
            *supports,
            f"[{Path(framework.example).name}](../../examples/{framework.example})",
            ", ".join(f"`{file}`" for file in framework.files),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    trainers = "\n".join(trainer_row(each, results[each.name]) for each in TRAINERS)
    return PREFACE + "\n".join(lines) + "\n" + NOTES + TRAINERS_PREFACE + trainers + "\n"


def is_opt_in(framework: Framework) -> bool:
    """Return whether only `--all` checks it."""
    return isinstance(framework, Trainer) and (framework.needs_torch or framework.is_slow)


def kept(framework: Framework) -> Result:
    """Return the result of the last run of a framework that this run leaves out."""
    file = FOLDER / f"{framework.name}.json"
    return Result(**json.loads(file.read_text())) if file.is_file() else Result(untested="not run")


@contextmanager
def own_platforms() -> Iterator[None]:
    """Keep the local platforms that examples start in a folder of their own, and stop them in the end."""
    from aenv.client import local_platforms

    with tempfile.TemporaryDirectory(prefix="aef", ignore_cleanup_errors=True) as folder:
        OWN.update({"AENV_RUNTIME_DIR": f"{folder}/run", "XDG_DATA_HOME": f"{folder}/data"})
        try:
            yield
        finally:
            for where in local_platforms.all_of_user(local_platforms.LocalPaths(Path(folder) / "run")):
                local_platforms.stop(where)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=[each.name for each in CHECKED], help="check only these")
    parser.add_argument("--all", action="store_true", help="check also Ray and what needs PyTorch")
    parser.add_argument("--write", action="store_true", help="write docs/reference/frameworks.md")
    args = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    everything = args.all or args.write or args.only
    listed = [each for each in CHECKED if everything or not is_opt_in(each)]
    chosen = [each for each in listed if not args.only or each.name in args.only]
    results = {}
    with own_platforms(), ThreadPoolExecutor(PARALLEL) as pool:
        for framework, result in zip(chosen, pool.map(check, chosen), strict=True):
            results[framework.name] = result
            (FOLDER / f"{framework.name}.json").write_text(json.dumps(asdict(result)))
            print(f"{framework.title:22} {result.version:10} {result.said} ({result.seconds:.0f} s)", flush=True)
            if result.failed:
                print(result.output[-8000:])
    if args.write:
        PAGE.write_text(page({each.name: results.get(each.name) or kept(each) for each in CHECKED}), encoding="utf-8")
    return int(any(result.failed for result in results.values()))


if __name__ == "__main__":
    sys.exit(main())
