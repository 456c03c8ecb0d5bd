# An agent of Pydantic AI with an environment's tools. A script plays the model: no key, no network.
# Run it: pip install '.[pydantic-ai]' 'pydantic-ai-slim[openai]' && python examples/frameworks/pydantic_ai_agent.py

import asyncio

from house import answers, opened
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from aenv import Environment


async def main(url: str) -> None:
    async with Environment("house@1.0.0") as env:
        model = OpenAIChatModel("scripted", provider=OpenAIProvider(base_url=url, api_key="none"))
        agent = Agent(model, instructions="Keep the house comfortable.", tools=await env.agent_tools("pydantic-ai"))
        print(f"answer    {(await agent.run('I want to cook.')).output}")
        print(f"reward    {await env.call_reward()}")


with opened(answers()) as model:
    asyncio.run(main(model.url))
