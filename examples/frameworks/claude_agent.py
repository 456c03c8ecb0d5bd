# An agent of the Claude Agent SDK with an environment's tools and none of its own. A script plays the model.
# Run it: pip install '.[claude-agent-sdk]' && python examples/frameworks/claude_agent.py

import asyncio
import tempfile

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query
from house import answers, opened

from aenv import Environment


async def main(variables: dict[str, str], home: str) -> None:
    async with Environment("house@1.0.0") as env:
        server = create_sdk_mcp_server("house", tools=await env.agent_tools("claude-agent-sdk"))
        options = ClaudeAgentOptions(
            tools=[],
            mcp_servers={"house": server},
            allowed_tools=["mcp__house"],
            system_prompt="Keep the house comfortable.",
            model="scripted",
            setting_sources=[],
            cwd=home,
            env={**variables, "HOME": home, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
        )
        async for message in query(prompt="I want to cook.", options=options):
            if isinstance(message, ResultMessage):
                print(f"answer    {message.result}")
        print(f"reward    {await env.call_reward()}")


with opened(answers("mcp__house__")) as model, tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
    asyncio.run(main(model.variables, home))
