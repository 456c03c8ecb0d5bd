# An agent of Google's Agent Development Kit with an environment's tools. A script plays the model.
# Run it: pip install '.[google-adk]' litellm && python examples/frameworks/google_adk_agent.py

import asyncio

from google.adk.agents import Agent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from house import answers, opened

from aenv import Environment


async def main(url: str) -> None:
    async with Environment("house@1.0.0") as env:
        model = LiteLlm(model="openai/scripted", api_base=url, api_key="none")
        tools = await env.agent_tools("google-adk")
        agent = Agent(name="butler", model=model, instruction="Keep the house comfortable.", tools=tools)
        events = await InMemoryRunner(agent=agent).run_debug("I want to cook.", quiet=True)
        print(f"answer    {events[-1].content.parts[0].text}")
        print(f"reward    {await env.call_reward()}")


with opened(answers()) as model:
    asyncio.run(main(model.url))
