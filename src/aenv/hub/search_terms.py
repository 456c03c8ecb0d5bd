"""Search terms of environments and queries."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from aenv.schema.envhub import EnvSummary

_IDEOGRAPH = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_WORD = re.compile(rf"[{_IDEOGRAPH}]|[^\W_{_IDEOGRAPH}]+")
MAX_WORD = 32
MAX_TERMS = 300
"""Terms indexed per environment; the rest of a long description is not searched."""
MAX_QUERY_WORDS = 8


def words(text: str) -> list[str]:
    """Return the normalized words of a text. In languages without spaces, each character is a word."""
    parted = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", unicodedata.normalize("NFKC", text))
    return [_stem(word[:MAX_WORD]) for word in _WORD.findall(parted.casefold())]


def query_words(query: str) -> list[str]:
    """Return the distinct words of a query."""
    return list(dict.fromkeys(words(query)))[:MAX_QUERY_WORDS]


def terms(env: EnvSummary) -> tuple[set[str], set[str]]:
    """Return the terms of an environment's name, and of all its fields. A name also matches prefixes of its words."""
    named = {word[:end] for word in words(env.name) for end in range(min(2, len(word)), len(word) + 1)}
    anything = list(dict.fromkeys(_all_words([*env.tags, *env.tools, env.author, env.description])))
    return named, named | set(anything[:MAX_TERMS])


def has_in_name(env: EnvSummary, query: list[str]) -> bool:
    """Return whether an environment's name alone matches a query."""
    return all(word in terms(env)[0] for word in query)


def _all_words(texts: Iterable[str]) -> Iterable[str]:
    for text in texts:
        yield from words(text)


def _stem(word: str) -> str:
    """Strip a plural "s", so that "tools" and "tool" match. There is no other stemming."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
