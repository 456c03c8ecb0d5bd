"""A telescope: pictures take a while, report how far they are, and can be given up.

Async tools share one event loop, so the telescope is guarded by an `asyncio.Lock`. `count_stars` is a plain function in
a thread: nothing can stop it from outside, so it looks whether its call was cancelled.
"""

import asyncio
import base64
import io
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from PIL import Image, ImageDraw
from pydantic import Field

from aenv import (
    ToolResult,
    current_call,
    register_function,
    register_health,
    register_reward,
    register_tasks,
    register_tool,
)

TARGETS = {"pleiades": 7, "orion": 12, "lyra": 5}
"""Stars of each target."""
SIZE = 96

Exposures = Annotated[int, Field(ge=1, le=10_000)]


@dataclass
class Job:
    tool: str
    target: str
    wanted: int
    done: int = 0
    state: str = "running"


@dataclass
class Night:
    """What happened since the last reset."""

    jobs: list[Job] = field(default_factory=list)
    pictures: dict[str, int] = field(default_factory=dict)
    """Exposures of the best picture of each target."""
    telescope: asyncio.Lock = field(default_factory=asyncio.Lock)
    changed: threading.Condition = field(default_factory=threading.Condition)


night = Night()


@register_tool
async def take_picture(target: str, exposures: Exposures = 4) -> list[Any]:
    """Take a picture of a target. More exposures take longer and show fainter stars.

    Args:
        target: Name of the target; see `list_targets`.
        exposures: How many exposures to add up.
    """
    stars = known(target)
    call = current_call()
    job = started("take_picture", target, exposures)
    try:
        async with night.telescope:
            for number in range(1, exposures + 1):
                await asyncio.sleep(exposure_seconds())
                job.done = number
                call.progress(number, exposures, f"exposure {number} of {target}")
        job.state = "done"
    finally:  # also when the caller has given up: the sleep is cancelled, and the lock is free again
        finished(job)
    night.pictures[target] = max(exposures, night.pictures.get(target, 0))
    seen = min(stars, exposures)
    return [f"{target}, {exposures} exposures: {seen} of its stars can be seen.", draw(target, seen)]


@register_tool
async def survey(exposures: Exposures = 1) -> ToolResult:
    """Take a picture of every target, one after the other, and return them as one result."""
    content: list[dict[str, Any]] = []
    for number, target in enumerate(TARGETS, start=1):
        text, picture = await take_picture(target, exposures)
        current_call().progress(number, len(TARGETS), target)
        content += [{"type": "text", "text": text}, png(picture)]
    return ToolResult(content, structured={"targets": list(TARGETS)})


@register_tool
def count_stars(target: str, rounds: Exposures = 3) -> int:
    """Count the stars of a target, several times to be sure.

    Args:
        target: Name of the target.
        rounds: How often to count.
    """
    stars = known(target)
    call = current_call()
    job = started("count_stars", target, rounds)
    try:
        for number in range(1, rounds + 1):
            if call.cancelled:
                return 0  # nobody reads it
            time.sleep(exposure_seconds())
            job.done = number
            call.progress(number, rounds)
        job.state = "done"
    finally:
        finished(job)
    return stars


@register_tool
def list_targets() -> list[str]:
    """List what the telescope can see tonight."""
    return list(TARGETS)


@register_function
def settled() -> list[dict[str, Any]]:
    """Wait until nothing runs any more, and return all jobs of the night."""
    with night.changed:
        night.changed.wait_for(lambda: all(job.state != "running" for job in night.jobs))
        return [asdict(job) for job in night.jobs]


@register_reward
def best_picture(target: str, exposures: int) -> float:
    """The share of the wanted exposures that the best picture of the target has."""
    return min(1.0, night.pictures.get(target, 0) / exposures)


@register_health
def shutter() -> dict[str, Any]:
    """Whether the telescope can be used, and how many jobs use it or wait for it."""
    return {"status": "healthy", "running": sum(job.state == "running" for job in night.jobs)}


@register_tasks
def tasks() -> Iterator[dict[str, Any]]:
    """A good picture of every target."""
    for target, stars in TARGETS.items():
        yield {
            "id": f"picture-{target}",
            "instruction": f"Take a picture of {target} on which {stars} stars can be seen.",
            "reward": {"arguments": {"target": target, "exposures": stars}},
            "limits": {"steps": 5, "seconds": 60},
            "solution": [{"tool": "take_picture", "arguments": {"target": target, "exposures": stars}}],
        }


def exposure_seconds() -> float:
    """Read for each exposure, and not at import, so that instances with different values are forks all the same."""
    return float(os.environ.get("SECONDS_PER_EXPOSURE", "0.02"))


def known(target: str) -> int:
    if target not in TARGETS:
        raise LookupError(f"no target is called {target!r}; there are {', '.join(TARGETS)}")
    return TARGETS[target]


def started(tool: str, target: str, wanted: int) -> Job:
    job = Job(tool, target, wanted)
    night.jobs.append(job)
    return job


def finished(job: Job) -> None:
    """Note how a job ended, and wake up `settled`."""
    with night.changed:
        if job.state == "running":
            job.state = "cancelled"
        night.changed.notify_all()


def draw(target: str, stars: int) -> Image.Image:
    """Draw the stars; the same ones every time."""
    places = random.Random(target)
    picture = Image.new("RGB", (SIZE, SIZE), "#000018")
    for _ in range(stars):
        x, y = places.randrange(4, SIZE - 4), places.randrange(4, SIZE - 4)
        ImageDraw.Draw(picture).ellipse((x - 1, y - 1, x + 1, y + 1), fill="white")
    return picture


def png(picture: Image.Image) -> dict[str, Any]:
    """An image block of MCP, for a result that is put together by hand."""
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return {"type": "image", "data": base64.b64encode(buffer.getvalue()).decode(), "mimeType": "image/png"}
