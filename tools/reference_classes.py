"""The pages of classes: each public name with its signature, its types, and what its docstring says.

Rules: types are those of the annotations, of an extension those of its stub (.pyi). A class's members are those that this package
defines and documents; what only repeats another package's words is named, and not told.
"""

from __future__ import annotations

import ast
import copy
import enum
import functools
import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from reference_words import doc, is_own, table
from typing_extensions import is_typeddict  # that of Python 3.10 does not know those that generic ones inherit from

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 100
# Settings have pages of their own: signatures of hundreds of parameters say less.
SETTINGS_PAGES = {
    "ProducerConfig": "producer-settings", "ConsumerConfig": "consumer-settings", "AdminConfig": "admin-settings",
    "ClientConfig": "client-settings", "MirrorOptions": "mirror-settings",
}  # fmt: skip


def class_page(modules: Iterable[str]) -> Iterator[str]:
    for source in modules:
        module_name, _, single = source.partition(":")
        module = importlib.import_module(module_name)
        about = "" if single else doc(module).partition("\n\nRules:")[0].partition("\n\nRules\n")[0]
        yield from (f"# `{module_name}`", "", about, "")
        for name in [single] if single else sorted(public(module)):
            yield from entry(name, getattr(module, name))


def public(module: Any) -> list[str]:
    found = getattr(module, "__all__", None)
    if found is not None:
        return list(found)
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    ]


def entry(name: str, thing: Any) -> Iterator[str]:
    """One public name."""
    yield from (f"## {name}", "")
    if isinstance(thing, type) and issubclass(thing, enum.Enum):
        yield from (doc(thing), "", ", ".join(f"`{member.name}`" for member in thing), "")
    elif is_typeddict(thing):
        yield from (doc(thing), "")
        if thing.__total__:  # those that are not are options, which the settings' pages have
            rows = ((f"`{key}`", f"`{kind(of)}`") for key, of in thing.__annotations__.items())
            yield from table(("key", "type"), ([a, b.replace("|", "\\|")] for a, b in rows))
            yield ""
    elif not callable(thing):
        yield from (doc(thing) if isinstance(thing, type) else "", "")
    else:
        about = doc(thing)
        if name in SETTINGS_PAGES:  # the docstring lists them all
            about = about.partition("\n\nSettings, their")[0]
        yield from ("```python", signature(name, thing), "```", "", about, "")
        if name in SETTINGS_PAGES:
            yield from (f"The keywords are those of [its settings]({SETTINGS_PAGES[name]}.md).", "")
        if isinstance(thing, type):
            yield from class_members(name, thing)


def class_members(name: str, cls: type) -> Iterator[str]:
    borrowed = []
    for member_name, member in members(cls):
        text = doc(member)
        if not text or text.startswith("Alias for field number"):  # what Python says of a named tuple's fields
            continue
        if not own_words(cls, member_name):
            borrowed.append(member_name)
            continue
        yield from (f"### `{name}.{member_name}`", "")
        yield from ("```python", signature(member_name, member, cls), "```", "", text, "")
    if borrowed:
        yield from (f"Beside these it has what its base asks of it: {', '.join(f'`{each}`' for each in borrowed)}.", "")


def members(cls: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that this package defines, in the order of their names; each with a docstring."""
    for name, member in inspect.getmembers(cls):
        if name.startswith("_"):
            continue
        owner = owner_of(cls, name)
        if owner is None or not is_own(owner.__module__):
            continue
        if callable(member) or isinstance(owner.__dict__[name], property) or inspect.isdatadescriptor(member):
            yield name, member


def owner_of(cls: type, name: str) -> type | None:
    return next((base for base in cls.__mro__ if name in base.__dict__), None)


def own_words(cls: type, name: str) -> bool:
    """Whether a member's docstring was written here: `inspect` gives that of a base where there is none."""
    for base in cls.__mro__:
        member = base.__dict__.get(name)
        if getattr(getattr(member, "__func__", member), "__doc__", None):
            return is_own(base.__module__)
    return False


# -- signatures


def kind(of: Any) -> str:
    """A type as the sources write it."""
    if isinstance(of, str):
        return of
    return getattr(of, "__forward_arg__", None) or (
        str(of) if getattr(of, "__args__", None) else getattr(of, "__name__", str(of))
    )


def signature(name: str, thing: Any, cls: type | None = None) -> str:
    """As one would write it, with types; several lines where one would be long."""
    if isinstance(thing, type) and thing.__name__ in SETTINGS_PAGES:
        return f"{name}(**settings)"
    stub = stub_of(cls, name) if cls is not None else stub_of(thing, "__init__")
    if stub is not None:
        return from_stub(name, stub, is_class=cls is None)
    if cls is not None and not callable(thing):
        return f"{name}{returned(getter_types(thing))}"
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return f"{name}(...)"
    types = dict(getattr(thing, "__annotations__", {})) if isinstance(thing, type) else {}
    parameters = []
    for parameter in found.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        of = parameter.annotation if parameter.annotation is not parameter.empty else types.get(parameter.name)
        parameters.append((parameter, kind(of) if of is not None else ""))
    result = "" if isinstance(thing, type) or found.return_annotation is found.empty else kind(found.return_annotation)
    asynchronous = "async " if inspect.iscoroutinefunction(thing) else ""
    return written(asynchronous + name, pieces(parameters), result)


def getter_types(thing: Any) -> str:
    getter = getattr(thing, "fget", None) or getattr(thing, "func", None)
    return kind(getattr(getter, "__annotations__", {}).get("return", ""))


def returned(of: str) -> str:
    return f": {of}" if of else ""


def pieces(parameters: Iterable[tuple[inspect.Parameter, str]]) -> list[str]:
    """The parameters with the marks between kinds of them."""
    found: list[str] = []
    starred = positional = False
    for parameter, of in parameters:
        if positional and parameter.kind is not parameter.POSITIONAL_ONLY:
            found.append("/")
            positional = False
        positional = positional or parameter.kind is parameter.POSITIONAL_ONLY
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            found.append("*")
            starred = True
        starred = starred or parameter.kind is parameter.VAR_POSITIONAL
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        text = f"{stars}{parameter.name}{f': {of}' if of else ''}"
        if parameter.default is not parameter.empty:
            text += f" = {default(parameter.default)}" if of else f"={default(parameter.default)}"
        found.append(text)
    if positional:
        found.append("/")
    return found


def default(value: Any) -> str:
    if isinstance(value, type) or inspect.isroutine(value):
        return value.__name__
    if isinstance(value, tuple) and any(isinstance(each, type) for each in value):
        return f"({', '.join(default(each) for each in value)},)"
    return re.sub(r"<(\w+(?:\.\w+)*) object at 0x[0-9a-f]+>", r"\1()", repr(value))


def written(name: str, parameters: list[str], result: str) -> str:
    arrow = f" -> {result}" if result and result != "None" else ""
    line = f"{name}({', '.join(parameters)}){arrow}"
    if len(line) <= WIDTH:
        return line
    return "\n".join(
        [
            f"{name}(",
            *(f"    {each}," for each in parameters),
            f"){arrow}",
        ]
    )


# -- stubs of extensions


@functools.cache
def stubs() -> dict[tuple[str, str], dict[str, ast.AST]]:
    """(module, class) -> member -> its definition in a stub."""
    found: dict[tuple[str, str], dict[str, ast.AST]] = {}
    for path in sorted((ROOT / "src/fastq/_native").glob("*.pyi")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                of_class: dict[str, ast.AST] = {}
                for each in node.body:
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                        of_class.setdefault(each.name, each)
                    elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
                        of_class[each.target.id] = each
                found[f"fastq._native.{path.stem}", node.name] = of_class
    return found


@functools.cache
def private_types() -> dict[str, str]:
    """What the private names of types in stubs stand for, where a stub of the public classes has them."""
    module = ast.parse((ROOT / "src/fastq/_native/producer_core.pyi").read_text())
    return {
        node.target.id: ast.unparse(node.value)
        for node in module.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None
        if node.target.id.startswith("_")
    }


def stub_of(cls: Any, name: str) -> ast.AST | None:
    if not isinstance(cls, type):
        return None
    owner = owner_of(cls, name)
    return None if owner is None else stubs().get((owner.__module__, owner.__name__), {}).get(name)


def from_stub(name: str, node: ast.AST, *, is_class: bool) -> str:
    if isinstance(node, ast.AnnAssign):
        return f"{name}: {ast.unparse(node.annotation)}"
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    result = ast.unparse(node.returns) if node.returns is not None and not is_class else ""
    if any(ast.unparse(each) == "property" for each in node.decorator_list):
        return f"{name}: {result}"
    given = copy.deepcopy(node.args)  # the stub's own is for every class that has the member
    if not any(ast.unparse(each) == "staticmethod" for each in node.decorator_list):
        (given.posonlyargs or given.args)[:1] = []
    parameters = [spaced(each.strip()) for each in split(ast.unparse(given))]
    for private, of in private_types().items():
        parameters = [re.sub(rf"\b{private}\b", of, each) for each in parameters]
    return written(("async " if isinstance(node, ast.AsyncFunctionDef) else "") + name, parameters, result)


def spaced(parameter: str) -> str:
    """`a: int=1` as the sources have it."""
    name, colon, rest = parameter.partition(": ")
    of, equals, value = rest.rpartition("=")
    return f"{name}: {of} = {value}" if colon and equals else parameter


def split(text: str) -> Iterator[str]:
    """At the commas that are in no brackets."""
    depth, begin = 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            yield text[begin:at]
            begin = at + 1
    if text[begin:].strip():
        yield text[begin:]
