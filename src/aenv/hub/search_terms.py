"""Which words an environment is found by."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from aenv.schema.envhub import EnvSummary

_IDEOGRAPH = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_IDEOGRAPH}]|[^\W_{_IDEOGRAPH}]+")
LONGEST = 32
MOST = 300
"""Terms of one environment: a description is no book."""
MOST_ASKED = 8


def words(text: str) -> list[str]:
    """The words of a text, in the shape in which they are compared. Languages without spaces count by letter."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", unicodedata.normalize("NFKC", text))
    return [_stem(word[:LONGEST]) for word in _WORD.findall(parted.casefold())]


def asked(query: str) -> list[str]:
    """The words of a question, each once."""
    return list(dict.fromkeys(words(query)))[:MOST_ASKED]


def terms(env: EnvSummary) -> tuple[set[str], set[str]]:
    """What the name answers to, and what anything of it does. A name answers to the beginnings of its words."""
    named = {word[:end] for word in words(env.name) for end in range(min(2, len(word)), len(word) + 1)}
    anything = list(dict.fromkeys(_all_words([*env.tags, *env.tools, env.author, env.description])))
    return named, named | set(anything[:MOST])


def has_in_name(env: EnvSummary, query: list[str]) -> bool:
    """Whether the name alone answers to the question."""
    return all(word in terms(env)[0] for word in query)


def _all_words(texts: Iterable[str]) -> Iterable[str]:
    for text in texts:
        yield from words(text)


def _stem(word: str) -> str:
    """Tools and tool are one word; this is as clever as it gets."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
