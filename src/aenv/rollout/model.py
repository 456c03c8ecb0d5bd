"""The interface of a model: messages and tools in, one message out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from aenv.errors import AEnvError

Message = dict[str, Any]
"""A message in the format of OpenAI's Chat Completions: ``role``, ``content``, ``tool_calls``, ``tool_call_id``."""


class ModelUnavailable(AEnvError):
    """The model gave no usable answer, also after retries. It says nothing about the agent."""

    code, status = "model_unavailable", 502


class ModelRefused(AEnvError):
    """The model's server refused the request: a wrong key, an unknown model, a wrong option. It stops the rollout."""

    code, status, fault = "model_refused", 400, "caller"


class ModelUnreachable(ModelRefused):
    """Nothing listens at the model's address, and nothing ever did: the address is wrong. It stops the rollout."""

    code, status = "model_unreachable", 502


class ContextExceeded(AEnvError):
    """The messages are longer than the model's context."""

    code, status, fault = "context_exceeded", 400, "policy"


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A request to a model."""

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    """Tools in the format of Chat Completions."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Sampling parameters, such as ``temperature`` and ``max_tokens``."""
    timeout: float | None = None
    """Seconds for the answer, retries included."""
    on_failure: Callable[[str], None] = lambda reason: None
    """Called for each failure that is retried."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of a model."""

    id: str
    name: str
    arguments: str
    """JSON text as the model wrote it, valid or not."""


@dataclass(slots=True)
class Reply:
    """A model's answer."""

    message: Message
    """Message of the assistant, in the format of Chat Completions."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0
    """Cost, where the server or the prices given say it."""
    finish_reason: str | None = None
    model: str | None = None
    """Name of the model that the server reported."""
    prompt_token_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    seconds: float = 0.0
    first_token_seconds: float | None = None
    """Seconds until a stream began to arrive; None without a stream."""

    @property
    def text(self) -> str:
        """Text of the message."""
        content = self.message.get("content") or ""
        if isinstance(content, str):
            return content
        return "".join(part.get("text", "") for part in content if part.get("type") == "text")

    @property
    def tool_calls(self) -> list[ToolCall]:
        """Tool calls of the message."""
        return [
            ToolCall(call["id"], call["function"]["name"], call["function"].get("arguments") or "")
            for call in self.message.get("tool_calls") or ()
        ]


class Model(Protocol):
    """A model that agents can ask."""

    name: str

    async def complete(self, request: ModelRequest) -> Reply:
        """Return the model's answer.

        Raises:
            ModelUnavailable: there is no answer, also after retries.
            ModelRefused: the server refuses such requests.
            ContextExceeded: the messages are too long.
        """
        ...

    def close(self) -> None:
        """Close connections."""
        ...
