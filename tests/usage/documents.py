"""Code that users of the announced API have, as three documents print it: read from them where they lie beside this
repository. The same code without their comments is kept here, for machines where they are not."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

DOCUMENTS = Path(__file__).parents[3] / "shared" / "seeds"


@dataclass(frozen=True)
class Printed:
    """A piece of code in a document."""

    document: str
    """Number of the document."""
    first: str
    """The text with which it begins there."""
    last: str
    """The text with which it ends there."""
    kept: str
    """The same code without comments and docstrings."""
    environment: str = ""
    """Name that the page took for an address of mail and hid."""
    is_flat: bool = False
    """Whether the page has lost the ends of lines too: then the code is the kept one."""

    @property
    def is_there(self) -> bool:
        """Whether the document lies beside this repository."""
        return any(DOCUMENTS.glob(f"{self.document}*"))

    @property
    def code(self) -> str:
        """The code as printed, with the two repairs of what its page has destroyed: indentation, and hidden names."""
        if self.is_flat or not self.is_there:
            return self.kept
        text = self._document()
        start = text.index(self.first)
        code = text[start : text.index(self.last, start) + len(self.last)]
        code = code.replace("[email protected]", self.environment)
        return code if re.search(r"^\s+\S", code, re.MULTILINE) else _indented(code)

    def is_kept(self) -> bool:
        """Return whether the code kept here does what the printed one does: only prose is different."""
        if self.is_flat:
            lines = [line.strip() for line in self.kept.splitlines()]
            return all(line in self._document() for line in lines)
        return _bare(self.code) == _bare(self.kept)

    def _document(self) -> str:
        (file,) = DOCUMENTS.glob(f"{self.document}*")
        return file.read_text(encoding="utf-8", errors="replace")


def _indented(code: str) -> str:
    """Return code with the indentation that its page has lost.

    What follows a line with a colon belongs to it, up to a decorator, an import, or the comment of a numbered step.
    """
    lines, depth, quoted = [], 0, False
    for line in code.splitlines():
        if not quoted and re.match(r"@|from |import |# \d", line):
            depth = 0
        lines.append("    " * depth + line)
        quoted ^= line.count('"""') == 1
        if quoted:
            continue
        if line.endswith(":"):
            depth += 1
        elif line == "break" or (line.startswith("return ") and depth > 1):
            depth -= 1
    return "\n".join(lines)


def _bare(code: str) -> str:
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.unparse(tree)


LOOP = """
from typing import Any, Dict
from agents import Agent as OpenAIAgent
import os
from aenv.core.environment import Environment

env = Environment(
    env_name="tau2-env@1.0.0",
    environment_variables=dict(TAU2_DOMAIN="airline", TAU2_TASK_ID="1"),
)
await env.initialize()
agent = OpenAIAgent(
    name="Tau2 Agent",
    instructions=env.call_function("tau2_get_system_prompt", {}),
    tools=await env.list_openai_tools(),
)
step = 0
while step < 100:
    step += 1
    status = await env.call_function("tau2_get_status", {})
    if status.get("done", False):
        break
    result = await Runner.run(agent, input=status.get("last_observation", ""))
    await env.call_function("tau2_send_message", {"message": result.final_output})
reward = await env.call_reward({})
"""
SEARCH = """
from aenv import register_tool

@register_tool
def search_code(query: str, path: str = ".") -> dict:
    return {"matches": [...]}
"""
TASK_INFO = """
from aenv import Environment
async with Environment("tau2-env@1.0.0") as env:
    tools = await env.list_tools()
    result = await env.call_tool("tau2_get_task_info", {})
"""
CALL = """
async with Environment("my-env@1.0.0") as env:
    result = await env.call_tool("search_code", {"query": "def main"})
"""
CHAT = """
async with Environment("agent-b@1.0.0") as agent_b:
    response = await agent_b.call_tool("chat", {"message": "Hello!"})
"""
PAGE = """
async with Environment("mini-program@1.0.0") as env:
    result = await env.call_tool("write_file", {"path": "index.html", "content": "<html>...</html>"})
"""
EPISODE = """
from aenv.examples.tau2_rl.agent import run_agent_return_reward

reward = await run_agent_return_reward({"domain": "telecom", "task_id": "task_123"})
"""
COMPOSED = """
async with Environment("agent-b@1.0.0") as agent_b:
    tools = await agent_b.list_tools()
    response = await agent_b.call_tool("chat", {"message": "Hello!"})
    print(response.content)
"""
DEFINED = """
from aenv import register_tool, register_function, register_reward

@register_tool
def search_code(query: str, path: str = ".") -> dict:
    return {"matches": [...]}

@register_function
def calculate_sum(a: int, b: int) -> int:
    return a + b

@register_reward
def evaluate_task_completion(status: dict) -> float:
    if status.get("completed"):
        return 1.0
    return 0.0
"""
USED = """
import asyncio
from aenv import Environment

async def main():
    async with Environment("swe-env") as env:
        tools = await env.list_tools()
        result = await env.call_tool("search_code", {"query": "def main"})
        print(result.content)
        func_result = await env.call_function("calculate_sum", {"a": 10, "b": 20})
        print(f"Function result: {func_result}")
        reward = await env.call_reward({"status": {"completed": True}})
        print(f"Reward: {reward}")

asyncio.run(main())
"""
TOOL = """
from aenv import register_tool

@register_tool
def my_tool(param1: str, param2: int = 42) -> dict:
    return {"result": f"Processed {param1}"}
"""
REWARD = """
from aenv import register_reward

@register_reward
def code_quality_reward(code: str, test_results: dict) -> float:
    if test_results["passed"]:
        return 1.0
    return -0.5
"""
OPENED = """
from aenv import Environment

async with Environment("my-env") as env:
    tools = await env.list_tools()
"""
REMOTE = """
from aenv import Environment
import os

os.environ["AENV_SYSTEM_URL"] = "http://aenv-service/"
mini_terminal = Environment("mini-terminal@1.0.1", timeout=180)
"""

PRINTED = {
    "a loop": Printed(
        "000", "from typing import Any, Dict\n", "reward = await env.call_reward({})", LOOP, "tau2-env@1.0.0"
    ),
    "a tool": Printed("000", "from aenv import register_tool\n", '{"matches": [...]}', SEARCH),
    "questions to a benchmark": Printed(
        "000", "from aenv import Environment\n", '"tau2_get_task_info", {})', TASK_INFO, "tau2-env@1.0.0"
    ),
    "its call": Printed(
        "000", 'async with Environment("[email protected]") as env:\nresult', '"def main"})', CALL,
        "my-env@1.0.0",
    ),
    "a message": Printed("000", "# Agent A calls", '"Hello!"})', CHAT, "agent-b@1.0.0"),
    "a file": Printed("001", "# The agent uses AEnvironment tools", "</html>\"\n    })", PAGE),
    "an episode": Printed("001", "# Entrypoint", '"task_123"\n})', EPISODE),
    "an agent": Printed("001", "# Agent A calls", "print(response.content)", COMPOSED),
    "an environment": Printed("001", "from aenv import register_tool, register_function", "return 0.0", DEFINED),
    "its use": Printed("001", "import asyncio\nfrom aenv", "asyncio.run(main())", USED),
    "a described tool": Printed("002", "from aenv import register_tool\n", 'Processed {param1}"}', TOOL),
    "a reward": Printed("002", "from aenv import register_reward", "return -0.5", REWARD),
    "an opened environment": Printed("002", "from aenv import Environment\n", "env.list_tools()", OPENED),
    "a remote environment": Printed("002", "", "", REMOTE, is_flat=True),
}  # fmt: skip
