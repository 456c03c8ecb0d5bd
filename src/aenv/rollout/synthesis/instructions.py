"""Instructions of synthesised tasks: a request, as a person would write it, made from the calls of the solution."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from aenv.schema.tasks import TaskStep

_OPENINGS = (
    "Please {}.", "Could you {}?", "I need you to {}.", "Can you {}?", "I'd like you to {}.", "Hi! Please {}.",
    "Would you {}? Thanks!", "When you have a moment, please {}.",
)  # fmt: skip
_NEXT = ("Then {}.", "After that, {}.", "Next, {}.", "Once that is done, {}.", "When you have done so, {}.")
_LAST = ("Finally, {}.", "At the end, {}.", "And then {}.", "As the last thing, {}.")
_CLOSINGS = ("Please leave everything else as it is.", "Nothing else should change.", "Don't change anything else.")
_SYNONYMS = {
    "dir": "directory", "msg": "message", "num": "number", "cmd": "command",
    "info": "information", "username": "user", "usernames": "users", "receiver": "user", "filename": "file",
    "amt": "amount", "desc": "description",
}  # fmt: skip
_GENERIC = frozenset(("name", "id", "path", "value", "new", "old", "str", "string", "text", "number"))
_PHRASES = {
    "source": "from {}", "from": "from {}", "origin": "from {}", "destination": "to {}", "to": "to {}",
    "target": "to {}", "recipient": "to {}", "path": "at {}", "name": "called {}", "title": "titled {}",
    "shell": "in the shell {}", "terminal": "in the terminal {}", "user": "for the user {}", "reason": "because {}",
    "password": "with the password {}", "date": "on {}", "location": "in {}",
}  # fmt: skip
_AFTER = r"from|to|of|in|for|with|at|on|and|or|by|into|using|that|which|shows|as"
_NOUN = (
    rf"(?<!^)\b(?:(a|an|the|some)\s+)?((?:(?!(?:{_AFTER}|a|an|the)\b)\w+\s+){{{{0,2}}}}?)"
    rf"({{0}}(?:\s+or\s+\w+)?)(?=\s*$|[,.;)]|\s+(?:{_AFTER})\b)"
)
"""An article, up to two adjectives, and a noun, to be filled in, that ends its phrase. It is never the first word."""
_VAGUE = re.compile(r"\b(?:specified|given|specific|particular)\s+")
_EMPTY = re.compile(r"\s+(?:of any extension|from one \w+ to another|given the \w+ information|\(e\.g\.[^)]*\))")
"""Words of descriptions that say nothing beside the values of a call."""
_PLACES = frozenset(("from", "to", "source", "destination", "path", "shell", "terminal"))
"""Last words of a longer name that have a phrase, too."""
_PREPOSITIONS = frozenset(("from", "to", "of", "in", "for", "with", "at", "on", "by"))
_WITH = "with the "
_FLAGS = {"append": "after what is already there", "recursive": "with everything in it"}
_PROSE = frozenset(("content", "contents", "text", "body"))


def instruction_of(
    steps: Sequence[TaskStep], descriptions: Mapping[str, str], schemas: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return a request for what the calls do, with every value that is needed and without the names of the tools."""
    dice = zlib.crc32(json.dumps([step.model_dump() for step in steps], sort_keys=True).encode())
    wishes = [
        _wish(step, descriptions.get(step.tool) or step.tool.replace("_", " "), schemas.get(step.tool) or {})
        for step in steps
    ]
    sentences = [_sentence(_OPENINGS[dice % len(_OPENINGS)], wishes[0])]
    for number, wish in enumerate(wishes[1:], 1):
        forms = _LAST if number == len(wishes) - 1 and len(wishes) > 2 else _NEXT
        sentences.append(_sentence(forms[(dice // 8 + number) % len(forms)], wish))
    return " ".join([*sentences, _CLOSINGS[dice // 64 % len(_CLOSINGS)]])


def _sentence(form: str, wish: str) -> str:
    return form.format(wish) if wish[-1] not in ".!?" else form.format(wish).replace(f"{wish}.", wish)


def _wish(step: TaskStep, description: str, schema: Mapping[str, Any]) -> str:
    """Return what one call does, as a wish in lower case without a full stop."""
    given = dict(step.arguments)
    if isinstance(given.get("command"), str):
        return _with_rest(f"run the command `{given.pop('command')}`", given)
    if "keys" in given:
        return _typed(given.pop("keys"), given)
    text = _first_sentence(description)
    properties = schema.get("properties") or {}
    defaults = {
        name: each["default"]
        for name, each in properties.items()
        if name not in given and isinstance(each.get("default"), str) and each["default"]
    }
    for name, value in sorted({**defaults, **given}.items(), key=lambda each: -len(each[0])):
        if not isinstance(value, str | int | float | list) or isinstance(value, bool):
            continue
        placed = _placed(text, name, value)
        if placed is not None:
            text = placed
            given.pop(name, None)
    return _with_rest(text, given)


def _first_sentence(description: str) -> str:
    """Return the first sentence of a description, without a preface about the whole system as BFCL's tools have."""
    own = description.rpartition("Tool description:")[2].strip()
    first = re.split(r"(?<=[.!?])\s|\n|:\s|;\s", own, maxsplit=1)[0].rstrip(".:; ")
    first = _EMPTY.sub("", first)
    head = first.partition(", ")[0]
    first = head if head.count(" ") >= 2 else first
    words = first.split(" ", 1)
    if words[0].endswith("s") and words[0].lower() in ("returns", "gets", "sets", "adds", "removes", "creates"):
        words[0] = words[0][:-1]
    plain = words[0] if words[0].isupper() and len(words[0]) > 1 else words[0][:1].lower() + words[0][1:]
    return " ".join([plain, *words[1:]])


def _placed(text: str, name: str, value: Any) -> str | None:
    """Return the text with a value after the noun that names its argument: "a book" becomes "the book "dune"".

    None: the text does not have that noun, or has it with a value already.
    """
    for noun in _nouns(name, text):
        found = re.search(_NOUN.format(noun), text, re.IGNORECASE)
        if found is not None:
            article, adjectives = found[1], _VAGUE.sub("", found[2])
            before, verb = text[: found.start()], ""
            if not article and adjectives:  # these may be verbs
                verb, adjectives = adjectives, ""
            head = f"{article} {adjectives}" if article and "new" in adjectives else f"{verb}the {adjectives}"
            return f"{before}{head}{found[3]} {_shown_all(value)}{text[found.end() :]}"
    return None


def _nouns(name: str, text: str) -> list[str]:
    """Return patterns of nouns that may stand for an argument, the best first.

    Words that repeat the verb of the text say nothing: ``username_to_follow`` is a user if the text is "follow a user".
    """
    plain = [word for word in re.split(r"[\W_]+", name.lower()) if word]
    known = [word for word in _words(name) if word not in _GENERIC]
    rest = [word for word in known if word not in _PREPOSITIONS and word[:5] != text[:5]]
    return [r"\s+".join(map(re.escape, words)) for words in (plain, known, rest) if set(words) - _GENERIC]


def _with_rest(text: str, given: Mapping[str, Any]) -> str:
    """Return the text with the values that have no place in it yet."""
    phrases = [_phrase(name, value) for name, value in given.items()]
    plain = [phrase for phrase in phrases if not phrase.startswith(_WITH)]
    listed = _joined([phrase.removeprefix(_WITH) for phrase in phrases if phrase.startswith(_WITH)])
    return " ".join([text, *([_WITH + listed] if listed else []), *plain])


def _phrase(name: str, value: Any) -> str:
    words = _words(name)
    label = " ".join(words)
    if isinstance(value, bool):
        return _FLAGS[label] if value and label in _FLAGS else f"with the {label} turned {'on' if value else 'off'}"
    if words[-1] in _PROSE and isinstance(value, str):
        return _prose(value)
    for word in (label, *(words[-1:] if words[-1] in _PLACES else ())):
        if word in _PHRASES and not isinstance(value, dict | list):
            return _PHRASES[word].format(_shown(value))
    if isinstance(value, list):
        return f"with the {label} {_shown_all(value)}"
    if isinstance(value, dict):
        inner = _joined([f"{' '.join(_words(key))} {_shown(each)}" for key, each in value.items()])
        return f"with the {label} set to {inner}"
    return f"with the {label} {_shown(value)}"


def _prose(value: str) -> str:
    """Return a phrase for a text, which says whether the last line has an end: the result is compared exactly."""
    lines = value.split("\n")
    if len(lines) == 1:
        return f"containing exactly {_shown(value)}"
    ending = "" if lines[-1] == "" else ", without a newline at the end"
    lines = lines[:-1] if lines[-1] == "" else lines
    if len(lines) == 1:
        return f"containing the line {_shown(lines[0])}"
    return f"containing these lines: {_joined([_shown(line) for line in lines])}{ending}"


def _typed(keys: Any, given: Mapping[str, Any]) -> str:
    """Return a wish for keys of a terminal."""
    listed = [str(key) for key in keys] if isinstance(keys, list) else [str(keys)]
    enters = len(listed) > 1 and listed[-1] == "Enter"
    typed = _joined([f"`{key}`" for key in (listed[:-1] if enters else listed)])
    return _with_rest(f"type {typed}", given) + (" and press Enter" if enters else "")


def _joined(parts: Sequence[str]) -> str:
    return ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else "".join(parts)


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _shown_all(value: Any) -> str:
    return _joined([_shown(each) for each in value]) if isinstance(value, list) else _shown(value)


def _words(name: str) -> list[str]:
    split = re.sub(r"([a-z])([A-Z])", r"\1 \2", name).lower()
    words = [word for word in re.split(r"[\W_]+", split) if word]
    return [_SYNONYMS.get(word, word) for word in words] or [name]
