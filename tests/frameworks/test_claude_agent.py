from __future__ import annotations

import tempfile

from aenv import Environment
from aenv.testing import ModelServer
from tests.frameworks.agent_contract import AgentContract, needs

needs("claude_agent_sdk", "claude-agent-sdk")

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query  # noqa: E402


class TestClaudeAgent(AgentContract):
    infra = "read by the model"

    def tool(self, name: str) -> str:
        return f"mcp__house__{name}"

    async def ask(self, env: Environment, model: ModelServer, question: str) -> str:
        server = create_sdk_mcp_server("house", tools=await env.agent_tools("claude-agent-sdk"))
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
            options = ClaudeAgentOptions(
                tools=[],  # no tools of its own
                mcp_servers={"house": server},
                allowed_tools=["mcp__house"],
                model="scripted",
                max_turns=5,
                setting_sources=[],
                cwd=home,
                env={**model.variables, "HOME": home, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
            )
            messages = [message async for message in query(prompt=question, options=options)]
        return str(next(message.result for message in messages if isinstance(message, ResultMessage)))
