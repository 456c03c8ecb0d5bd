"""Names of keys, as xdotool and browsers have them, and what the protocol wants to know of each."""

from typing import Any

from tabs import NotPossible

MODIFIERS = {"alt": 1, "ctrl": 2, "control": 2, "controlormeta": 2, "cmd": 4, "meta": 4, "super": 4, "win": 4,
             "command": 4, "shift": 8, "option": 1}  # fmt: skip
MODIFIER_KEYS = {1: ("Alt", "AltLeft", 18), 2: ("Control", "ControlLeft", 17), 4: ("Meta", "MetaLeft", 91),
                 8: ("Shift", "ShiftLeft", 16)}  # fmt: skip
_NAMED = {
    "Backspace": 8, "Tab": 9, "Enter": 13, "Pause": 19, "CapsLock": 20, "Escape": 27, "PageUp": 33, "PageDown": 34,
    "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Insert": 45,
    "Delete": 46, "ContextMenu": 93, **{f"F{number}": 111 + number for number in range(1, 13)},
}  # fmt: skip
_OTHER_NAMES = {
    "return": "Enter", "esc": "Escape", "del": "Delete", "ins": "Insert", "page_up": "PageUp", "pgup": "PageUp",
    "page_down": "PageDown", "pgdn": "PageDown", "prior": "PageUp", "next": "PageDown", "up": "ArrowUp",
    "down": "ArrowDown", "left": "ArrowLeft", "right": "ArrowRight", "caps_lock": "CapsLock", "menu": "ContextMenu",
    "kp_enter": "Enter", "iso_left_tab": "Tab", **{name.lower(): name for name in _NAMED},
}  # fmt: skip
_SIGNS = {
    "space": " ", "minus": "-", "plus": "+", "equal": "=", "comma": ",", "period": ".", "slash": "/", "backslash": "\\",
    "semicolon": ";", "apostrophe": "'", "grave": "`", "bracketleft": "[", "bracketright": "]", "underscore": "_",
    "at": "@", "numbersign": "#", "asterisk": "*", "exclam": "!", "question": "?", "colon": ":",
}  # fmt: skip
_CODES = {
    " ": ("Space", 32), "-": ("Minus", 189), "=": ("Equal", 187), ",": ("Comma", 188), ".": ("Period", 190),
    "/": ("Slash", 191), "\\": ("Backslash", 220), ";": ("Semicolon", 186), "'": ("Quote", 222),
    "`": ("Backquote", 192), "[": ("BracketLeft", 219), "]": ("BracketRight", 221),
}  # fmt: skip
_SHIFTED = dict(zip('_+<>?|:"~{}!@#$%^&*()', "-=,./\\;'`[]1234567890", strict=True))


def chord(text: str) -> tuple[int, str]:
    """Return the modifiers and the key of a chord such as ``ctrl+shift+a``; the key may be empty."""
    modifiers, key = 0, ""
    parts = ["+"] if text == "+" else text.split("+")
    if len(parts) > 1 and parts[-1] == "":
        parts = [*parts[:-2], "+"]
    for place, part in enumerate(parts):
        if part.lower() in MODIFIERS:
            modifiers |= MODIFIERS[part.lower()]
        elif place == len(parts) - 1:
            key = part
        else:
            raise NotPossible(f"unknown key {part!r} in {text!r}; modifiers are ctrl, shift, alt and meta")
    return modifiers, key


def modifiers_of(text: str | None) -> int:
    """Return the modifiers of ``ctrl+shift``."""
    if not text:
        return 0
    modifiers, key = chord(text)
    if key:
        raise NotPossible(f"{key!r} is not a modifier; use ctrl, shift, alt or meta")
    return modifiers


def describe(name: str, modifiers: int = 0) -> dict[str, Any]:
    """Return what `Input.dispatchKeyEvent` wants to know of a key."""
    if name.lower() in _OTHER_NAMES:
        key = _OTHER_NAMES[name.lower()]
        text = "\r" if key == "Enter" else ""
        return {"key": key, "code": key, "windowsVirtualKeyCode": _NAMED[key], **({"text": text} if text else {})}
    sign = name if len(name) == 1 else _SIGNS.get(name.lower(), "")
    if not sign:
        raise NotPossible(f"unknown key {name!r}; use names such as Enter, Tab, Escape, ArrowDown, F5, a, ctrl+a")
    if modifiers & 8 and sign.isalpha():
        sign = sign.upper()
    base = _SHIFTED.get(sign, sign)
    if base.isascii() and base.isalnum():
        code = f"Digit{base}" if base.isdigit() else f"Key{base.upper()}"
        number = ord(base.upper())
    else:
        code, number = _CODES.get(base, ("", 0))
    typed = {} if modifiers & 7 else {"text": sign}
    return {"key": sign, "code": code, "windowsVirtualKeyCode": number, **typed}
