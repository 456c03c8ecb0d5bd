"""The interface of a model API's format."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aenv.rollout.model import Message, ModelRequest, Reply

Json = dict[str, Any]


class InvalidAnswer(Exception):
    """The answer is incomplete, or not what the API promises. The request may be sent again."""


class Wire(ABC):
    """Translates requests and answers of one API."""

    path: str
    """Path below the base URL."""

    @abstractmethod
    def headers(self, key: str | None) -> dict[str, str]:
        """Return the headers that carry the key."""

    @abstractmethod
    def body(self, model: str, request: ModelRequest, *, stream: bool) -> Json:
        """Return the body of a request."""

    @abstractmethod
    def reply(self, answer: Json) -> Reply:
        """Return the answer of a request without a stream. Raises InvalidAnswer."""

    @abstractmethod
    def assembled(self, events: Iterable[Json], *, cut_off: bool = False) -> Json:
        """Return the answer that the events of a stream make up.

        ``cut_off``: the stream may have been cut off; return what there is. Otherwise InvalidAnswer is raised then.
        """

    @abstractmethod
    def messages(self, request: Json) -> list[Message]:
        """Return the messages of a request's body, in the format of Chat Completions."""

    def parse(self, body: bytes, content_type: bytes, *, cut_off: bool = False) -> Reply:
        """Return the answer in the body of a response. Raises InvalidAnswer.

        ``cut_off``: of a stream, return what there is.
        """
        try:
            if content_type.startswith(b"text/event-stream"):
                return self.reply(self.assembled(events_of(body, cut_off=cut_off), cut_off=cut_off))
            answer = json.loads(body)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise InvalidAnswer(f"{type(error).__name__}: {error}") from error
        if not isinstance(answer, dict):
            raise InvalidAnswer("the answer is not a JSON object")
        try:
            return self.reply(answer)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise InvalidAnswer(f"the answer lacks something: {type(error).__name__}: {error}") from error


def events_of(body: bytes, *, cut_off: bool = False) -> Iterator[Json]:
    """Yield the JSON data of the server-sent events in ``body``, without the final ``[DONE]``.

    ``cut_off``: the last one may be incomplete, and is left out then.
    """
    for encoded in body.splitlines():  # as bytes: a text has further line ends, which JSON may contain
        line = encoded.decode("utf-8", "replace")
        if line.startswith("data:"):
            data = line[5:].strip()
            if data and data != "[DONE]":
                try:
                    event = json.loads(data)
                except ValueError:
                    if cut_off:
                        return
                    raise
                if isinstance(event, Mapping):
                    yield dict(event)


def objects(value: Any) -> list[Json]:
    """Return the JSON objects in a list; none if it is no list."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def text_of(content: Any) -> str:
    """Return the text of a message's content."""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or () if part.get("type") == "text")


def data_url(part: Mapping[str, Any]) -> tuple[str, str]:
    """Return media type and base64 data of an image part of Chat Completions."""
    head, _, data = str(part["image_url"]["url"]).partition(",")
    return head.removeprefix("data:").removesuffix(";base64"), data
