# An agent of LangChain, which is a graph of LangGraph, with an environment's tools. A script plays the model.
# Run it: pip install '.[langchain]' langchain-openai && python examples/frameworks/langchain_agent.py

import asyncio

from house import answers, opened
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI

from aenv import Environment


async def main(url: str) -> None:
    async with Environment("house@1.0.0") as env:
        model = ChatOpenAI(model="scripted", base_url=url, api_key="none")
        agent = create_agent(model, await env.agent_tools("langchain"), system_prompt="Keep the house comfortable.")
        done = await agent.ainvoke({"messages": [{"role": "user", "content": "I want to cook."}]})
        print(f"answer    {done['messages'][-1].content}")
        print(f"reward    {await env.call_reward()}")


with opened(answers()) as model:
    asyncio.run(main(model.url))
