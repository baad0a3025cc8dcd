"""What a classic group wants is carried out in its order: all of it, whatever of that fails inside.

Rules: an effect is taken out of the group as it is carried out. Who is answered has heard it, or cannot be told. Anything else that fails
is left in the group, and so is what could not be come to, as where there is no memory to say what has failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from fastq_broker.log import failures

from .classic_state import Answer, GroupState, Store, Wake

Effect: TypeAlias = "Answer | Store | Wake"


def carry_out(
    group: GroupState, do: Callable[[Store | Wake], None], asked: Callable[..., None] | None
) -> Exception | None:
    """Answer who waits, and `do` the rest; answers what telling `asked` has raised. What is left in the group is to be done later."""
    failure: Exception | None = None
    todo: deque[Effect] = deque()
    undone: deque[Effect] = deque()  # with room for some of them, whatever memory there is then
    try:
        while group.effects:
            more: list[Effect] = []
            todo = deque(group.effects)
            group.effects = more
            failure = _carry_out(todo, undone, do, asked) or failure
    finally:
        if todo or undone:
            undone.extend(todo)
            undone.extend(group.effects)
            group.effects = undone
    return failure


def _carry_out(
    todo: deque[Effect],
    undone: deque[Effect],
    do: Callable[[Store | Wake], None],
    asked: Callable[..., None] | None,
) -> Exception | None:
    """A function of its own: in a longer one it takes memory to come to a `finally`."""
    failure: Exception | None = None
    while todo:
        effect = todo[0]
        try:
            if isinstance(effect, Answer):
                todo.popleft()
                effect.waiter(effect.result)
            else:
                do(effect)
                todo.popleft()
        except Exception as error:
            if todo and todo[0] is effect:
                undone.append(todo.popleft())
            elif isinstance(effect, Answer) and effect.waiter is asked:
                failure = error
                continue
            failures.report("carrying out what a group wants", error)
    return failure
