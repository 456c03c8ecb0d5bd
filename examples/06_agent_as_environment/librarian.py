# An agent as an environment: others talk to it through its chat tool. It remembers each of them.
# Served by main.py; by itself: aenv run examples/06_agent_as_environment/librarian.py

from collections import defaultdict

from aenv import register_function, register_tool

SHELVES = {"whales": "Moby-Dick", "ghosts": "The Turn of the Screw", "logic": "The Game of Logic"}
asked: defaultdict[str, list[str]] = defaultdict(list)


@register_tool
def chat(message: str, session: str = "default") -> str:
    """Ask the librarian for a book.

    Args:
        message: What you would like to read about.
        session: Who you are.
    """
    asked[session].append(message)
    if "so far" in message:
        return f"You asked me {len(asked[session])} times."
    found = [book for topic, book in SHELVES.items() if topic in message]
    return found[0] if found else "I have nothing on that."


@register_function
def history(session: str = "default") -> list[str]:
    """What somebody asked."""
    return asked[session]
