"""Simulated users: whom an agent talks to in an episode. A script, a model or a person plays them.

All have one interface, `User`: the profile and the conversation so far go in, the next message comes out. So any
environment can have a user, and users can be exchanged; what a result was reached with is part of it.
"""

from aenv.rollout.users.human_user import HumanUser
from aenv.rollout.users.model_user import ModelUser
from aenv.rollout.users.scripted_user import FunctionUser, ScriptedUser
from aenv.rollout.users.user import User, UserMessage
from aenv.rollout.users.user_conversation import UserConversation
from aenv.rollout.users.user_names import find_user
from aenv.schema.tasks import ScriptedAnswer, UserProfile

__all__ = [
    "FunctionUser", "HumanUser", "ModelUser", "ScriptedAnswer", "ScriptedUser", "User", "UserConversation",
    "UserMessage", "UserProfile", "find_user",
]  # fmt: skip
