"""Takes its time, and has a child."""

from __future__ import annotations

import asyncio
import subprocess

from aenv import register_tool

child = subprocess.Popen(["/bin/sleep", "600"])


@register_tool
async def nap(seconds: float) -> str:
    """Sleep for a while."""
    await asyncio.sleep(seconds)
    return "slept"
