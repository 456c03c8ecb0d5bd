"""Hooks of an environment around a live fork of its instance."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

Hook = Callable[[], Generator[None, bool, None]]
H = TypeVar("H", bound=Hook)

_hooks: list[Hook] = []


def on_fork(hook: H) -> H:
    """Carry over, by a live fork, what a copy of the memory and files does not: programs, threads, connections.

    The hook is a generator function. What is before its ``yield`` runs in the instance before it is forked or
    checkpointed; it ends what cannot be copied. What is after runs in the instance when that goes on, where ``yield``
    returns False, and in every fork, where it returns True. Hooks run in the order of their declaration, and
    after the ``yield`` in reverse order.

    Example:
        ```python
        @on_fork
        def carry_shell():
            folder = shell.run("pwd")
            shell.close()
            yield
            shell.open(folder)
        ```
    """
    _hooks.append(hook)
    return hook


class ForkHooks:
    """Run all hooks once, around one fork."""

    def __init__(self) -> None:
        self._running: list[Generator[None, bool, None]] = []

    def before(self) -> None:
        """Run the first halves. If one raises, the second halves of those before it run, and the error is raised."""
        for hook in list(_hooks):
            running = hook()
            try:
                next(running)
            except StopIteration:
                continue
            except BaseException:
                self.after(is_child=False)
                raise
            self._running.append(running)

    def after(self, *, is_child: bool) -> None:
        """Run the second halves, all of them; raise the first error."""
        first: BaseException | None = None
        while self._running:
            running = self._running.pop()
            try:
                running.send(is_child)
            except StopIteration:
                continue
            except BaseException as error:
                first = first or error
        if first is not None:
            raise first


def has_hooks() -> bool:
    """Return whether any hook is declared."""
    return bool(_hooks)
