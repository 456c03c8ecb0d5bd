"""Key names as tmux spells them, and the characters that a terminal sends for each key."""

import re

PLAIN = {
    "Enter": "\r", "Tab": "\t", "BTab": "\x1b[Z", "Space": " ", "Escape": "\x1b", "BSpace": "\x7f",
    "Insert": "\x1b[2~", "IC": "\x1b[2~", "Delete": "\x1b[3~", "DC": "\x1b[3~",
    "PageUp": "\x1b[5~", "PPage": "\x1b[5~", "PageDown": "\x1b[6~", "NPage": "\x1b[6~",
    "F1": "\x1bOP", "F2": "\x1bOQ", "F3": "\x1bOR", "F4": "\x1bOS", "F5": "\x1b[15~", "F6": "\x1b[17~",
    "F7": "\x1b[18~", "F8": "\x1b[19~", "F9": "\x1b[20~", "F10": "\x1b[21~", "F11": "\x1b[23~", "F12": "\x1b[24~",
}  # fmt: skip
CURSOR = {"Up": "A", "Down": "B", "Right": "C", "Left": "D", "End": "F", "Home": "H"}
COMBINED = re.compile(r"(?P<control>C-|\^)(?P<char>[@-_a-z ?])|M-(?P<meta>.+)", re.DOTALL)


def key_sequence(key: str, application_keys: bool = False) -> str:
    r"""Return the characters that a terminal sends for a key; text that names no key is returned unchanged.

    Args:
        key: A key name as tmux spells it (``Enter``, ``Up``, ``F5``, ``C-c``, ``M-x``), or text.
        application_keys: Whether the program has switched the cursor keys to application mode (DECCKM), as full-screen
            programs do. See `Screen.application_keys`.

    Example:
        ```python
        key_sequence("C-c")  # "\x03"
        key_sequence("Up")  # "\x1b[A"
        key_sequence("ls -l")  # "ls -l"
        ```
    """
    if key in PLAIN:
        return PLAIN[key]
    if key in CURSOR:
        return ("\x1bO" if application_keys else "\x1b[") + CURSOR[key]
    found = COMBINED.fullmatch(key)
    if found is None:
        return key
    if found["meta"]:
        return "\x1b" + key_sequence(found["meta"], application_keys)
    if found["char"] == "?":
        return "\x7f"
    return "\0" if found["char"] == " " else chr(ord(found["char"].upper()) ^ 64)
