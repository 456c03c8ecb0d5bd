"""The ``aenv`` command: parse, call one function of a lower room, show the result.

Starting must be quick, so a command's module is imported when that command runs, and what it needs of the
other rooms is imported inside it.
"""
