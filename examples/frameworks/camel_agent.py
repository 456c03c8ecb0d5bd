# An agent of CAMEL with an environment's tools. A script plays the model: no key, no network.
# Run it: pip install '.[camel]' && python examples/frameworks/camel_agent.py

from camel.agents import ChatAgent
from camel.models import ModelFactory
from camel.types import ModelPlatformType
from camel.utils import BaseTokenCounter
from house import answers, opened

from aenv import SyncEnvironment


class Characters(BaseTokenCounter):
    """Counts offline: CAMEL's own counter downloads a table on first use."""

    def count_tokens_from_messages(self, messages: list) -> int:
        return len(str(messages))

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, token_ids: list[int]) -> str:
        return "".join(map(chr, token_ids))


with opened(answers()) as model, SyncEnvironment("house@1.0.0") as env:
    backend = ModelFactory.create(
        model_platform=ModelPlatformType.OPENAI_COMPATIBLE_MODEL,
        model_type="scripted",
        url=model.url,
        api_key="none",
        token_counter=Characters(),
    )
    agent = ChatAgent("Keep the house comfortable.", model=backend, tools=env.agent_tools("camel"))
    print(f"answer    {agent.step('I want to cook.').msgs[0].content}")
    print(f"reward    {env.call_reward()}")
