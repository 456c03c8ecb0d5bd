"""A model for the chat of the console: the browser sends messages and tools, and never sees the key.

``GET`` says which model there is, ``POST`` asks it. Tools are called by the browser, with the rights of its user.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json

from aenv.errors import InvalidArguments, NotFound
from aenv.http.messages import Request, Response
from aenv.rollout.model import Model, ModelRequest

PATH = "/console/model"
SECONDS = 300.0


class ChatRequest(BaseModel):
    """Request to the model."""

    model_config = ConfigDict(extra="forbid")

    messages: list[dict[str, Any]] = Field(min_length=1, max_length=2000)
    tools: list[dict[str, Any]] = Field(default=[], max_length=500)


async def chat_answer(model: Model | None, request: Request) -> Response:
    """Answer a request of the chat.

    Raises:
        NotFound: no model is configured.
        InvalidArguments: the request is malformed.
    """
    if model is None:
        raise NotFound("no model is configured", details={"hint": "Run: aenv console --model NAME@URL"})
    if request.method == "GET":
        return _ok({"model": model.name})
    if request.stream is not None:
        request.body, request.stream = b"".join([data async for data in request.stream]), None
    try:
        asked = ChatRequest.model_validate_json(request.body)
    except ValidationError as error:
        raise InvalidArguments(f"invalid request to the model: {error.errors()[0]['msg']}") from None
    reply = await model.complete(ModelRequest(asked.messages, asked.tools, timeout=SECONDS))
    used = {"input_tokens": reply.input_tokens, "output_tokens": reply.output_tokens}
    return _ok({"message": dict(reply.message), "usage": used, "finish_reason": reply.finish_reason})


def _ok(data: dict[str, Any]) -> Response:
    return Response(200, to_json({"success": True, "code": 0, "message": "", "data": data}))
