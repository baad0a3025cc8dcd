"""Public names of a package whose modules are imported when a name is first used (PEP 562).

Rule: a package lists its names, and where they live, once: here as an argument. What type checkers read, which run nothing, says the same.
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # as in fastq/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(
    package: str, where: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of `package`. where: by public name, the full name of the module that has it."""

    def get(name: str) -> Any:
        module = where.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *where})

    return get, names, sorted(where)
