"""Small classes of values: frozen, compared and hashed by their fields, made from the annotations of a class body.

Rules: subclasses of `Value` are what `@dataclass(frozen=True, slots=True)` makes, and `dataclasses.replace`, `fields` and `asdict` take
them; but that module is not imported for it. It imports inspect and ast, and compiles six functions a class: together that was half of
what importing fastq's clients cost. Here the constructor alone is compiled, and when the first instance is made, so that making one
costs what it does there. A field's default is an immutable value: there are no factories. A class below one that has fields is an
ordinary class, which a dataclass may extend. `NamedTuple` does the same for that of typing, which compiles a constructor and every
annotation.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in fastq/__init__.py
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, TypeVar
    from typing import NamedTuple as NamedTuple

    from typing_extensions import dataclass_transform as dataclass_transform

    V = TypeVar("V", bound="Value")
else:
    from collections import _tuplegetter  # what namedtuple makes its attributes with

    def dataclass_transform(**_):
        """That of typing, which is for type checkers."""
        return lambda cls: cls


class _OfDataclass:
    """An attribute by which `dataclasses` knows its own, taken from a dataclass with the same fields when somebody looks."""

    def __set_name__(self, _: type, name: str) -> None:
        self._name = name

    def __get__(self, _: object, cls: ValueType) -> Any:
        import dataclasses

        defaults = cls._defaults
        fields = [
            (name, kind, *((dataclasses.field(default=defaults[name]),) if name in defaults else ()))
            for name, kind in cls._fields.items()
        ]
        return vars(dataclasses.make_dataclass(cls.__name__, fields, frozen=True))[self._name]


@dataclass_transform(frozen_default=True)
class ValueType(type):
    """Makes the class. `eq=False`: instances are compared by identity; `kw_only`: the constructor takes keywords only."""

    # Of `Value` itself; every class below it has its own. By name, the annotation.
    _fields: dict[str, str] = {}  # noqa: RUF012
    _defaults: dict[str, Any] = {}  # noqa: RUF012
    _kw_only: bool

    def __new__(
        mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, eq: bool = True, kw_only: bool = False
    ) -> ValueType:
        if not bases:
            return super().__new__(mcs, name, bases, namespace | {"__slots__": ()})
        if any(isinstance(base, ValueType) and base._fields for base in bases):
            return super().__new__(mcs, name, bases, namespace)
        fields = namespace.get("__annotations__", {})
        defaults = {field: namespace.pop(field) for field in fields if field in namespace}
        namespace |= {
            "__slots__": tuple(fields),
            "__match_args__": tuple(fields),
            "_fields": fields,
            "_defaults": defaults,
            "_kw_only": kw_only,
        }
        if not eq:
            namespace |= {"__eq__": object.__eq__, "__hash__": object.__hash__}
        return super().__new__(mcs, name, bases, namespace)

    def compile(cls) -> Any:
        """The constructor of a class with fields, which takes the place of that of `Value`. Two threads may both do it."""
        body = "".join(f"\n _set(self, {field!r}, {field})" for field in cls._fields) or " pass"
        parameters = ["self", *(["*"] if cls._kw_only else ()), *_parameters(cls._fields, cls._defaults)]
        made = _function(cls, "__init__", parameters, body, {"_defaults": cls._defaults, "_set": object.__setattr__})
        type.__setattr__(cls, "__init__", made)
        return made


def _parameters(fields: Iterable[str], defaults: dict[str, Any]) -> list[str]:
    return [f"{field}=_defaults[{field!r}]" if field in defaults else field for field in fields]


def _function(cls: type, name: str, parameters: list[str], body: str, names: dict[str, Any]) -> Any:
    made: dict[str, Any] = {}
    exec(f"def {name}({', '.join(parameters)}):{body}", names, made)
    made[name].__qualname__ = f"{cls.__qualname__}.{name}"
    return made[name]


def _compile(cls: Any) -> Any:
    """The compiled constructor of the class that has the fields: `cls` or one above it."""
    owner = next((base for base in cls.__mro__ if "_fields" in vars(base)), None)
    if owner is None:
        raise TypeError(f"{cls.__name__} has no fields: it is the base of classes that have")
    return owner.compile()


class _Signature:
    """What `inspect.signature` says of a class: that of its constructor once it is compiled."""

    def __init__(self, constructor: str) -> None:
        self._constructor = constructor

    def __get__(self, _: object, cls: type) -> Any:
        import inspect

        try:
            _compile(cls)
        except TypeError as error:  # the base itself, which `help` shows too
            raise AttributeError(str(error)) from None
        found = inspect.signature(getattr(cls, self._constructor))
        return found.replace(parameters=list(found.parameters.values())[1:])


class Value(metaclass=ValueType):
    """Base of the classes."""

    __dataclass_fields__ = _OfDataclass()
    __dataclass_params__ = _OfDataclass()
    __signature__ = _Signature("__init__")

    def __init__(self, *values: Any, **named: Any) -> None:
        _compile(type(self))(self, *values, **named)

    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, field) for field in type(self)._fields])

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        shown = ", ".join(f"{field}={getattr(self, field)!r}" for field in type(self)._fields)
        return f"{type(self).__qualname__}({shown})"

    def __setattr__(self, name: str, value: object) -> None:
        if name in type(self)._fields or not hasattr(self, "__dict__"):
            raise AttributeError(
                f"cannot set {name!r}: {type(self).__name__} objects do not change; dataclasses.replace() makes another one"
            )
        object.__setattr__(self, name, value)  # of a class below, which has attributes of its own

    def __delattr__(self, name: str) -> None:
        if name in type(self)._fields:
            raise AttributeError(f"cannot delete {name!r}: {type(self).__name__} objects do not change")
        object.__delattr__(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self._values()), getattr(self, "__dict__", None)


def _rebuild(cls: type[V], values: tuple[Any, ...]) -> V:
    """For pickles and copies; as theirs, without the constructor."""
    made = object.__new__(cls)
    for name, value in zip(cls._fields, values, strict=True):
        object.__setattr__(made, name, value)
    return made


def replace(value: V, **changes: Any) -> V:
    """A copy with other values in some fields: `dataclasses.replace`, without that module."""
    return type(value)(**dict(zip(type(value)._fields, value._values(), strict=True)) | changes)


if not TYPE_CHECKING:

    class _NamedTupleType(type):
        """Makes a class of tuples of the annotations in its body; one below such a class is an ordinary class."""

        def __new__(mcs, name, bases, namespace):
            if bases == (tuple,):
                namespace["__slots__"] = ()
            elif not any(getattr(base, "_fields", ()) for base in bases):
                fields = tuple(namespace.get("__annotations__", ()))
                namespace["_field_defaults"] = {field: namespace[field] for field in fields if field in namespace}
                namespace |= {field: _tuplegetter(i, f"Alias for field number {i}") for i, field in enumerate(fields)}
                namespace |= {"__slots__": (), "__match_args__": fields, "_fields": fields}
            return super().__new__(mcs, name, bases, namespace)

        def compile(cls):
            """As ValueType.compile."""
            items = "".join(f"{field}, " for field in cls._fields)
            parameters = ["_cls", *_parameters(cls._fields, cls._field_defaults)]
            names = {"_defaults": cls._field_defaults, "_new": tuple.__new__}
            made = _function(cls, "__new__", parameters, f" return _new(_cls, ({items}))", names)
            cls.__new__ = made
            return made

    class NamedTuple(tuple, metaclass=_NamedTupleType):
        """That of typing, and its methods."""

        __signature__ = _Signature("__new__")

        def __new__(cls, *values, **named):
            return _compile(cls)(cls, *values, **named)

        @classmethod
        def _make(cls, values):
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"{cls.__name__} has {len(cls._fields)} fields, got {len(made)} values")
            return made

        def _asdict(self):
            return dict(zip(self._fields, self, strict=True))

        def _replace(self, **changes):
            made = self._make([changes.pop(field, value) for field, value in zip(self._fields, self, strict=True)])
            if changes:
                raise ValueError(f"{type(self).__name__} has no field {next(iter(changes))!r}")
            return made

        __replace__ = _replace

        def __repr__(self):
            shown = ", ".join(f"{field}={value!r}" for field, value in zip(self._fields, self, strict=True))
            return f"{type(self).__name__}({shown})"

        def __getnewargs__(self):
            return tuple(self)
