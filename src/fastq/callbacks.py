"""Functions that users give, looked at before they are called: who calls a coroutine function as a plain one gets an object that nobody
waits for, and its code never runs.

Rules: what can be seen of a function is refused where it is given. What only its result shows (a plain wrapper around a coroutine
function) is refused where it is called; a decorator may as well make a plain function of a coroutine function, so wrappers are not
looked through.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from fastq.errors import ConfigError

_UNFINISHED = (GeneratorType, AsyncGeneratorType, Awaitable)


def kind_of(function: Any) -> str | None:
    """ "coroutine function", "generator function" or "asynchronous generator function": what a call answers before any of its code has
    run; None for a plain one. Looks into partials, bound methods and objects with `__call__`."""
    import inspect  # milliseconds, which only who gives a function pays

    while isinstance(function, functools.partial):
        function = function.func
    for candidate in (function, inspect.getattr_static(type(function), "__call__", None)):
        if inspect.iscoroutinefunction(candidate):
            return "coroutine function"
        if inspect.isasyncgenfunction(candidate):
            return "asynchronous generator function"
        if inspect.isgeneratorfunction(candidate):
            return "generator function"
    return None


def check_plain(function: Any, what: str, hint: str) -> None:
    """Raises ConfigError when `function`, called `what` in the message, is none that runs when it is called."""
    if not callable(function):
        raise ConfigError(f"{what} is a function, got {function!r}")
    kind = kind_of(function)
    if kind is not None:
        raise ConfigError(f"{what} {name_of(function)} is {_called(kind)}, which nothing here would run", hint=hint)


def check_object(thing: Any) -> None:
    """Raises ValueError for a class where an object of it is needed, whose methods would all fail for want of one."""
    if isinstance(thing, type):
        raise ValueError(f"objects, which the class {thing.__name__} is not: write {thing.__name__}(...)")


def check_plain_methods(thing: Any, names: tuple[str, ...], hint: str) -> None:
    """`check_plain` for a function, or an object and those of these methods that it has. ValueError, as the `convert` of an option
    raises."""
    for method in (thing, *(getattr(thing, name, None) for name in names)):
        kind = None if method is None else kind_of(method)
        if kind is not None:
            raise ValueError(f"plain functions, which {name_of(method)}, {_called(kind)}, is not: {hint}")


def check_takes(function: Any, arguments: str, method: str | None = None) -> None:
    """Raises ValueError for a function, or the `method` of an object, that cannot be called with `arguments`, "topic, value", by place: it
    would fail for each record. What does not say what it takes, as some that are written in C, passes."""
    import inspect

    taken = repr(function)
    if callable(function):
        try:
            signature = inspect.signature(function, follow_wrapped=False)
        except (ValueError, TypeError):
            return
        try:
            signature.bind(*arguments.split(", "))
            return
        except TypeError:
            bare = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
            taken = f"{name_of(function)}{signature.replace(parameters=bare, return_annotation=signature.empty)}"
    subject = "a function that" if method is None else f"an object whose {method}"
    raise ValueError(f"{subject} can be called with ({arguments}), which {taken} cannot")


def is_unfinished(result: Any) -> bool:
    """Whether what a plain function has answered is still to be run or waited for: a coroutine, a future, a generator, a delivery."""
    return isinstance(result, _UNFINISHED) or callable(getattr(result, "add_done_callback", None))


def unfinished(result: Any, function: Callable[..., Any], what: str, hint: str) -> ConfigError | None:
    """The error for a plain function whose result is still to be run or waited for; None for any other. A coroutine, which nobody will
    run, is closed."""
    if not is_unfinished(result):
        return None
    kind = type(result).__name__
    if isinstance(result, (CoroutineType, GeneratorType)):
        result.close()
    return ConfigError(
        f"{what} {name_of(function)} answered {_called(kind)}: its work was not done when it returned", hint=hint
    )


def _called(kind: str) -> str:
    return f"an {kind}" if kind[0] in "AEIOaeio" else f"a {kind}"


def name_of(function: Any) -> str:
    """What messages call a function."""
    while isinstance(function, functools.partial):
        function = function.func
    name: str = getattr(function, "__qualname__", None) or repr(function)
    return name
