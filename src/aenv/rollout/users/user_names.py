"""Find a user by its name: a ready one, a model, or a function in a file or a module."""

from __future__ import annotations

from typing import Any

from aenv.errors import UsageError
from aenv.rollout.endpoint import find_model
from aenv.rollout.named_objects import load_object, names_object
from aenv.rollout.users.human_user import HumanUser
from aenv.rollout.users.model_user import ModelUser
from aenv.rollout.users.scripted_user import FunctionUser, ScriptedUser
from aenv.rollout.users.user import User

_MODEL = "model:"


def find_user(given: Any) -> User | None:
    """Return the user that ``given`` is or names.

    A name is ``scripted``, ``human``, ``model:`` with a model as ``rollout`` takes it, or ``FILE.py:NAME`` or
    ``MODULE:NAME`` of a user or of a function that plays one.

    Raises:
        UsageError: there is no such user.
    """
    if given is None:
        return None
    if not isinstance(given, str):
        return _user_of(given, "")
    if given == "scripted":
        return ScriptedUser()
    if given == "human":
        return HumanUser()
    if given.startswith(_MODEL):
        model = find_model(given.removeprefix(_MODEL))
        assert model is not None
        return ModelUser(model)
    if names_object(given):
        return _user_of(load_object(given), given)
    hint = "Use scripted, human, model:NAME, or FILE.py:NAME of a function; aenv rollout knows console, too."
    raise UsageError(f"unknown user {given!r}", {"hint": hint})


def _user_of(given: Any, name: str) -> User:
    if hasattr(given, "answer") and hasattr(given, "about"):
        user: User = given
        return user
    if callable(given):
        return FunctionUser(given, name)
    raise UsageError(f"invalid user {name or given!r}; expected a User, a function or a name")
