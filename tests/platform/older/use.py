"""A program of somebody who has 0.1.7 installed; run in its own virtual environment, prints one JSON line."""

import asyncio
import json
import os
from importlib.metadata import version

from aenv import Environment


async def main() -> None:
    seen = {"version": version("aenvironment")}
    env = Environment("counter@1.2.0", environment_variables={"MINE": "1"}, api_key=os.environ["AENV_API_KEY"])
    async with env:
        seen["tools"] = sorted(tool["name"] for tool in await env.list_tools())
        result = await env.call_tool("increment", {})
        seen["tool"] = [result.is_error, result.content[0]["text"]]
        seen["variable"] = (await env.call_tool("variable", {"name": "MINE"})).content[0]["text"]
        seen["function"] = await env.call_function("double", {"n": 21})
        seen["reward"] = await env.call_reward({})
        seen["health"] = await env.check_health({})
        info = await env.get_env_info()
        seen["info"] = {name: info[name] for name in ("instance_id", "status")}
    print(json.dumps(seen))


asyncio.run(main())
