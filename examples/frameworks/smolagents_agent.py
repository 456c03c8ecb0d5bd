# An agent of smolagents with an environment's tools. A script plays the model: no key, no network.
# Run it: pip install '.[smolagents]' 'smolagents[openai]' && python examples/frameworks/smolagents_agent.py

from house import ANSWER, opened
from smolagents import CodeAgent, OpenAIModel

from aenv import SyncEnvironment

# A code agent writes its calls as Python.
CODE = f"""<code>
read_thermometer("kitchen")
set_heating(room="kitchen", celsius=21.0)
final_answer("{ANSWER}")
</code>"""

with opened([CODE]) as model, SyncEnvironment("house@1.0.0") as env:
    tools = env.agent_tools("smolagents")
    agent = CodeAgent(tools, OpenAIModel("scripted", api_base=model.url, api_key="none"), verbosity_level=0)
    print(f"answer    {agent.run('I want to cook.')}")
    print(f"reward    {env.call_reward()}")
