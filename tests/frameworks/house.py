"""The environment that agents of all frameworks are given."""

from __future__ import annotations

import base64

from pydantic import BaseModel

from aenv import Image, register_reward, register_tool

rooms = {"kitchen": 17.0, "study": 23.5}
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Slot(BaseModel):
    room: str
    celsius: float


@register_tool
def read_thermometer(room: str) -> dict:
    """Read the temperature of a room.

    Args:
        room: Name of the room.
    """
    if room not in rooms:
        raise ValueError(f"there is no thermometer in the {room}")
    return {"room": room, "celsius": rooms[room]}


@register_tool
def set_heating(slots: list[Slot], quiet: bool = False) -> str:
    """Heat rooms.

    Args:
        slots: Rooms and their temperatures.
        quiet: Heat slowly.
    """
    rooms.update({slot.room: slot.celsius for slot in slots})
    return "; ".join(f"{slot.room} is at {slot.celsius:g} now" for slot in slots)


@register_tool
def photograph() -> Image:
    """Take a picture of the house."""
    return Image(PIXEL)


@register_reward
def comfort(room: str) -> float:
    """Return 1 when the room is warm enough to cook in."""
    return 1.0 if rooms[room] >= 20 else 0.0
