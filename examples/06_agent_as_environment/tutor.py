# A second agent, an environment too, which asks the librarian: agents compose like tools.
# Served by main.py, which says in LIBRARIAN where the librarian is.

import os

from aenv import Environment, register_tool


@register_tool
async def plan_reading(topics: list[str], pupil: str) -> dict:
    """Put together what to read.

    Args:
        topics: What it should be about.
        pupil: Who is going to read.
    """
    async with Environment("librarian@1.0.0", aenv_url=os.environ["LIBRARIAN"]) as librarian:
        books = {}
        for topic in topics:
            reply = await librarian.call_tool("chat", {"message": f"Something about {topic}?", "session": pupil})
            books[topic] = reply.text
        closing = await librarian.call_tool("chat", {"message": "How often did I ask so far?", "session": pupil})
    return {"books": books, "librarian": closing.text}
