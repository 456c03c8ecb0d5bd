"""Test helpers for authors of environments and agents.

Run an environment in a test as it runs in a sandbox, and an agent with a model that needs no key and no network.
"""

from aenv.rollout.agents.scripted import ScriptedModel, calls, scripted
from aenv.testing.model_server import ModelServer, model_server
from aenv.testing.servers import Server, running

__all__ = ["ModelServer", "ScriptedModel", "Server", "calls", "model_server", "running", "scripted"]
