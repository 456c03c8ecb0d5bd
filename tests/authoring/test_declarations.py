from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import aenv
from aenv import get_registry, register_function, register_health, register_reward, register_tool
from aenv.authoring.declarations import Registry

ENVS = Path(__file__).parents[1] / "envs"


def test_a_decorated_function_is_the_function_itself(registry: Registry) -> None:
    def plain(x: int) -> int:
        return x + 1

    assert register_tool(plain) is plain
    assert register_tool(name="other")(plain) is plain
    assert register_function(plain) is plain
    assert register_reward(plain) is plain
    assert register_health(plain) is plain
    assert plain(1) == 2


def test_an_environment_imports_without_a_server(registry: Registry) -> None:
    spec = importlib.util.spec_from_file_location("everything", ENVS / "everything.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["everything"] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules["everything"]
    assert module.echo("hi") == {"result": "hi"}
    assert "renamed" in registry.tools
    assert registry.functions["greet"].endpoint == "/custom/greet"


def test_a_duplicate_name_is_reported_with_both_places(registry: Registry) -> None:
    @register_tool(name="twin")
    def first() -> None: ...

    with pytest.raises(ValueError, match="twin") as caught:

        @register_tool(name="twin")
        def second() -> None: ...

    lines = [first.__code__.co_firstlineno, first.__code__.co_firstlineno]
    assert str(caught.value).count(__file__) == 2
    assert f":{lines[0]}" in str(caught.value)


def test_a_reloaded_module_declares_its_functions_again(registry: Registry) -> None:
    source = "from aenv import register_tool\n@register_tool\ndef again(): return 1\n"
    for _ in range(2):
        exec(compile(source, "cell.py", "exec"), {"__name__": "notebook"})
    assert list(registry.tools) == ["again"]


def test_two_functions_may_not_share_an_endpoint(registry: Registry) -> None:
    register_function(endpoint="/same", name="a")(lambda: None)
    with pytest.raises(ValueError, match="POST /same"):
        register_function(endpoint="same", name="b")(lambda: None)


def test_an_environment_has_one_health_check(registry: Registry) -> None:
    @register_health
    def one() -> dict:
        return {}

    with pytest.raises(ValueError, match="one health check"):

        @register_health
        def two() -> dict:
            return {}


def test_an_unknown_method_is_rejected(registry: Registry) -> None:
    with pytest.raises(ValueError, match="expected one of"):
        register_function(method="FETCH")(lambda: None)


def test_a_positional_name_is_rejected_with_advice(registry: Registry) -> None:
    with pytest.raises(TypeError, match="pass options by name"):
        register_tool("my_tool")  # type: ignore[call-overload]


def test_partials_and_callable_objects_are_tools(registry: Registry) -> None:
    def power(base: int, exponent: int) -> int:
        return base**exponent

    class Adder:
        def __call__(self, a: int, b: int) -> int:
            return a + b

    register_tool(functools.partial(power, exponent=2))
    register_tool(Adder())
    square, adder = registry.list_tools()
    assert square.name == "power"
    assert square.inputSchema["required"] == ["base"]
    assert adder.name == "Adder"
    assert set(adder.inputSchema["properties"]) == {"a", "b"}


def test_the_registry_returns_descriptors(registry: Registry) -> None:
    @register_tool
    def look(path: str = ".") -> str:
        """Look around."""
        return path

    assert get_registry().get_tool("look") is look
    assert get_registry().get_tool("nothing") is None
    tool = get_registry().get_tool_descriptor("look")
    assert tool is not None
    assert tool.description == "Look around."
    assert tool.get_openai_tool()["function"]["parameters"]["properties"]["path"]["default"] == "."
    assert get_registry().list_mcp_tools()[0].name == "look"


def test_declaring_loads_no_client_and_no_server() -> None:
    code = (
        "import sys; from aenv import register_tool, register_reward\n"
        "bad = {'httptools', 'asyncio', 'pydantic', 'mcp', 'ssl', 'click'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_sdk_loads_neither_mcp_nor_tls() -> None:
    code = (
        "import sys; from aenv import Environment\n"
        "bad = {'mcp', 'httpx', 'starlette', 'rich', 'click'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_is_exported() -> None:
    assert aenv.__version__
    for name in aenv.__all__:
        assert getattr(aenv, name) is not None
    assert set(aenv.__all__) <= set(dir(aenv))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        aenv.nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("aenv.core", "register_tool register_function register_reward get_registry get_function_registry Environment "
         "EnvironmentError ToolError ToolTimeoutError NetworkError UnrecoverableEnvironmentError"),
        ("aenv.core.environment", "Environment ToolResult make_mcp_url split_env_name_version"),
        ("aenv.core.exceptions", "AEnvError ToolError ToolTimeoutError ToolServerError EnvironmentError "
         "UnrecoverableEnvironmentError NetworkError ValidationError"),
        ("aenv.core.models", "EnvStatus ServiceStatus Address Env EnvInstance EnvInstanceCreateRequest "
         "EnvInstanceListResponse EnvService EnvServiceCreateRequest EnvServiceUpdateRequest EnvServiceListResponse "
         "APIResponse APIError"),
        ("aenv.core.tool", "Tool ToolRegistry register_tool get_registry"),
        ("aenv.core.function_registry", "BaseRegistry FunctionRegistry register_function register_reward "
         "register_health get_function_registry"),
        ("aenv.core.logging", "getLogger setup_logging LOG_FORMAT DATE_FORMAT LOGLEVEL"),
        ("aenv.client.scheduler_client", "AEnvSchedulerClient"),
        ("aenv.server.mcp_server", "AEnvMCPServer create_server"),
        ("aenv.core.mcp_health", "check_mcp_health default_health_handler update_active_time close_health_clients"),
        ("aenv.core.mcp_tool", "register_tool"),
        ("aenv.examples.tau2_rl.agent", "run_agent_return_reward"),
        ("aenv.main", "run_cli"),
    ],
)  # fmt: skip
def test_import_paths_of_version_0_1_work(module: str, names: str) -> None:
    found = importlib.import_module(module)
    assert [name for name in names.split() if not hasattr(found, name)] == []
