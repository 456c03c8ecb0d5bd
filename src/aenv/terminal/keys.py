"""Names of keys, as tmux has them, and the bytes that a keyboard sends for each."""

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
    """What to send for one key, or for text that is no key's name: the text itself."""
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
