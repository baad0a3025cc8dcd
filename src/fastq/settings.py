"""The machinery of configuration: options declared in a class body, and a class of values made of them, frozen and keyword-only.

Rules of this file:
- An option is declared once, by `option(...)`: its default, its range or choices, its aliases and its meaning are
  one line of a class body. There is no second table to keep in step.
- Names are Kafka's in snake_case; the dotted spelling of Kafka (`bootstrap.servers`) is accepted by
  `Config.from_mapping`.
- Options named by Kafka keep Kafka's unit (`*_ms`); options of our own end in their unit.
- Every error is a `ConfigError` that names the key, the value and what is allowed; an unknown key names the nearest
  known one.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

from fastq import other_clients
from fastq.errors import ConfigError
from fastq.values import Value, dataclass_transform

if TYPE_CHECKING:
    import inspect

    from typing_extensions import Self

T = TypeVar("T")

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


class ConfigWarning(UserWarning):
    """A configuration key that is accepted, but renamed or without effect; the message names today's key or the
    reason.
    """


class Option(Value):
    """What one configuration key accepts, and its default.

    kind: the type of the value (`int`, `float`, `bool`, `str`, `tuple` for a list of strings, or `object` for
    anything). low, high: bounds of a number, both included. also: numbers allowed outside the bounds (such as -1).
    choices: the allowed strings, compared without case. nullable: None is allowed. accepts: what an `object` may be, in words.
    aliases: other names of the key, in snake_case. secret: never shown in `repr`. convert: a last step that may
    normalise the value and raises ValueError with what is allowed. show: a refused value as a message may show it.
    """

    default: Any
    kind: type
    low: float | None = None
    high: float | None = None
    also: tuple[float, ...] = ()
    choices: tuple[str, ...] = ()
    nullable: bool = False
    aliases: tuple[str, ...] = ()
    secret: bool = False
    convert: Callable[[Any], Any] | None = None
    doc: str = ""
    accepts: str = ""
    show: Callable[[Any], str] = repr

    def shown(self, value: Any) -> str:
        """A value as messages show it."""
        return "(hidden)" if self.secret else self.show(value)

    def allowed(self) -> str:
        """What the key accepts, in words for an error message."""
        if self.accepts:
            words = self.accepts
        elif self.choices:
            words = "one of " + ", ".join(repr(choice) for choice in self.choices)
        elif self.kind in (int, float):
            words = "an integer" if self.kind is int else "a number"
            if self.low is not None and self.high is not None:
                words += f" from {self.low} to {self.high}"
            elif self.low is not None:
                words += f" of at least {self.low}"
            if self.also:
                words += " or " + " or ".join(str(value) for value in self.also)
        else:
            words = {bool: "true or false", str: "a string", tuple: "a list of strings"}.get(self.kind, "another value")
        return words + " or None" if self.nullable else words


class Renamed(Value):
    """A key of an older release, or of another client: `today` is what the warning names; `convert` maps the old value to today's keys.
    `secret`: the value is never shown. `told`: what the warning says instead, of a key that was never another one's name."""

    today: str
    convert: Callable[[Any], Mapping[str, Any]]
    secret: bool = False
    told: str = ""


def renamed(key: str, scale: float | None = None, values: Mapping[str, Any] | None = None) -> Renamed:
    """An old key that maps to the one key of today, its number multiplied by `scale` or its value looked up in
    `values`.
    """

    def convert(value: Any) -> Mapping[str, Any]:
        if values is not None:
            found = values.get(str(value).strip().lower())
            if found is None:
                raise ValueError("one of " + ", ".join(repr(name) for name in values))
            return {key: found}
        return {key: int(float(value) * scale) if scale is not None else value}

    return Renamed(key, convert)


def option(
    default: T,
    *,
    kind: type | None = None,
    low: float | None = None,
    high: float | None = None,
    also: tuple[float, ...] = (),
    choices: Iterable[str] = (),
    nullable: bool | None = None,
    aliases: tuple[str, ...] = (),
    secret: bool = False,
    convert: Callable[[Any], Any] | None = None,
    doc: str = "",
    accepts: str = "",
    show: Callable[[Any], str] = repr,
) -> T:
    """Declare a field of a `Config` class. `kind` is the type of the default unless given; see `Option` for the
    rest.
    """
    if kind is None:
        if default is None:
            raise TypeError("an option whose default is None needs kind=")
        kind = type(default)
    declared: Any = Option(
        default=default,
        kind=kind,
        low=low,
        high=high,
        also=also,
        choices=tuple(choices),
        nullable=default is None if nullable is None else nullable,
        aliases=aliases,
        secret=secret,
        convert=convert,
        doc=doc,
        accepts=accepts,
        show=show,
    )
    return cast(T, declared)  # what the class body says; the class has the default in its place


def _to_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    raise ValueError


def _to_int(value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise ValueError
    return int(value)


def _to_float(value: Any) -> float:
    if isinstance(value, bool):
        raise ValueError
    return float(value)


def _to_str(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value.strip()


def to_tuple(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        value = value.split(",")
    items = tuple(value)
    if not all(isinstance(item, str) for item in items):
        raise ValueError
    return tuple(item.strip() for item in items if item.strip())


_COERCE: Mapping[type, Callable[[Any], Any]] = {
    bool: _to_bool,
    int: _to_int,
    float: _to_float,
    str: _to_str,
    tuple: to_tuple,
}


def _bad_value(key: str, value: Any, declared: Option, allowed: str | None = None) -> ConfigError:
    shown = declared.shown(value)
    if allowed is not None:
        allowed = allowed.removesuffix(f", got {value!r}")
    return ConfigError(f"bad value for {key}: {shown}; allowed: {allowed or declared.allowed()}")


def check_value(key: str, value: Any, declared: Option) -> Any:
    """The normalised value of `key`, or ConfigError naming key, value and what is allowed."""
    if value is None:
        if declared.nullable:
            return None
        raise _bad_value(key, value, declared)
    coerce = _COERCE.get(declared.kind)
    if coerce is not None:
        try:
            value = coerce(value)
        except (TypeError, ValueError, OverflowError):
            raise _bad_value(key, value, declared) from None
    if declared.choices:
        match = next((choice for choice in declared.choices if choice.lower() == str(value).lower()), None)
        if match is None:
            raise _bad_value(key, value, declared)
        value = match
    if declared.kind in (int, float) and value not in declared.also:
        # NaN compares false with everything, so the test is for "inside", not for "outside".
        above = declared.low is None or value >= declared.low
        below = declared.high is None or value <= declared.high
        if not (above and below):
            raise _bad_value(key, value, declared)
    if declared.convert is not None:
        try:
            return declared.convert(value)
        except (TypeError, ValueError) as error:
            raise _bad_value(key, value, declared, str(error) or None) from None
    return value


def user_level() -> int:
    """How far up the first caller is that is not of this package, as warnings count it from where they are raised."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "fastq":
        frame, level = frame.f_back, level + 1
    return level


def canonical(key: str) -> str:
    """The snake_case spelling of a dotted or dashed key."""
    return key.strip().replace(".", "_").replace("-", "_").lower()


class _Documented:
    """The docstring of a configuration class, and behind it every option: put together when somebody asks, as `help()` does."""

    def __init__(self, text: str | None) -> None:
        self._text = text or ""

    def __get__(self, _: object, cls: type[Config]) -> str:
        lines = [self._text, "", "Settings, their defaults, and what they accept:", ""]
        for key, declared in cls.options().items():
            default = "(hidden)" if declared.secret else repr(declared.default)
            lines.append(f"{key} = {default}: {declared.doc} ({declared.allowed()})")
        return "\n".join(lines)


class _Signature:
    """What `inspect.signature` says of a configuration class: its options, though the constructor is one for all classes."""

    def __get__(self, _: object, cls: type[Config]) -> inspect.Signature:
        from inspect import Parameter, Signature

        return Signature(
            [
                Parameter(key, Parameter.KEYWORD_ONLY, default=declared.default, annotation=annotation)
                for key, declared, annotation in cls._annotated()
            ]
        )


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Config:
    """Base of every configuration class: `from_mapping` for names of any age, `__init__` for today's names.

    Subclasses declare their keys by annotations and `option`, as a dataclass does its fields; they are no dataclasses, because making one
    costs every program milliseconds (see fastq.values). They may override `resolve` for rules across fields. Instances never change, are
    compared and hashed by their values, and pickle. `_given` are the keys that somebody has given, which a copy keeps apart.
    """

    RENAMED: ClassVar[Mapping[str, Renamed]] = {}
    """Old names (snake_case) and what they became; merged over the class hierarchy."""
    IGNORED: ClassVar[Mapping[str, str]] = {}
    """Names of Kafka's that have no effect here, and why; merged over the class hierarchy."""
    REFUSED: ClassVar[Mapping[str, str]] = {}
    """Names of other clients' keys that would be missed if they were passed over, and what to write instead; merged likewise."""
    PAGE: ClassVar[str] = "docs/reference/README.md"
    """The page of the documentation that has its keys, for who is at no Python prompt."""

    _options: ClassVar[dict[str, Option]] = {}
    _given: frozenset[str]
    __signature__ = _Signature()

    def __init_subclass__(cls) -> None:
        cls.__doc__ = _Documented(cls.__dict__.get("__doc__"))  # type: ignore[assignment]  # a descriptor answers for it
        own = {key: value for key, value in vars(cls).items() if isinstance(value, Option)}
        cls._options = cls._options | own
        for key, declared in own.items():
            setattr(cls, key, declared.default)

    def __init__(self, **values: Any) -> None:
        given = self.__dict__
        given["_given"] = frozenset(values)
        for key, declared in self._options.items():
            given[key] = check_value(key, values.pop(key, declared.default), declared)
        if values:
            raise TypeError(f"{type(self).__name__} has no option {next(iter(values))!r}")
        self.resolve()

    def __setattr__(self, name: str, _: object) -> None:
        raise AttributeError(
            f"cannot set {name!r}: {type(self).__name__} objects do not change; replace() makes another one"
        )

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"cannot delete {name!r}: {type(self).__name__} objects do not change")

    def __eq__(self, other: object) -> bool:
        return (
            self.as_dict() == other.as_dict()
            if isinstance(other, Config) and type(other) is type(self)
            else NotImplemented
        )

    def __hash__(self) -> int:
        return hash(tuple(self.as_dict().values()))

    def resolve(self) -> None:
        """Rules across fields; raises ConfigError. An override may fill in fields that depend on others by `_set`."""

    def _set(self, key: str, value: Any) -> None:
        """Replace a field while the instance is being made (only from `resolve`)."""
        self.__dict__[key] = value

    @classmethod
    def options(cls) -> dict[str, Option]:
        """Every key of this class and what it accepts, in order of declaration."""
        return cls._options

    @classmethod
    def _annotated(cls) -> Iterator[tuple[str, Option, str]]:
        """Keys, what they accept, and their types as written."""
        written = {
            key: text for base in reversed(cls.__mro__) for key, text in vars(base).get("__annotations__", {}).items()
        }
        return ((key, declared, written[key]) for key, declared in cls._options.items())

    @classmethod
    def _merged(cls, name: str) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for base in reversed(cls.__mro__):
            table.update(base.__dict__.get(name, {}))
        return table

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any] | None = None, /, **more: Any) -> Self:
        """A configuration from keys in any accepted spelling: snake_case, Kafka's dots, aliases, names of older
        releases.

        Keys of `more` win over those of `values`. Two spellings of one key with different values are a ConfigError,
        and so is an unknown key. A renamed or ignored key gives a `ConfigWarning`.
        """
        return cls(**{**cls._translated(values or {}), **cls._translated(more)})

    @classmethod
    def _translated(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Keys as given, by today's names."""
        given: dict[str, tuple[str, Any]] = {}
        for key, value in values.items():
            for name, converted in cls._translate(key, value):
                if name in given and given[name][1] != converted:
                    option = cls.options()[name]
                    told = "" if option.secret else f": {option.shown(given[name][1])} and {option.shown(converted)}"
                    raise ConfigError(
                        f"{given[name][0]} and {key} are two names of {name} and disagree{told}; give one of them"
                    )
                given[name] = (key, converted)
        return {name: value for name, (_, value) in given.items()}

    @classmethod
    def of(cls, given: Mapping[str, Any] | Self | None, options: Mapping[str, Any]) -> Self:
        """The configuration that a client's constructor was given: a mapping, or one that is made already, and keyword arguments, which
        win. Raises ConfigError for anything else.
        """
        if isinstance(given, cls):
            return given.replace(**cls._translated(options)) if options else given
        if given is None or isinstance(given, Mapping):
            return cls.from_mapping(given, **options)
        addresses = cls.options().get("bootstrap_servers") if isinstance(given, str) else None
        shown = repr(given) if addresses is None else addresses.shown(given)
        what = f"got {shown}" + (
            f"; for the brokers' addresses write bootstrap_servers={shown}" if isinstance(given, str) else ""
        )
        article = "an" if cls.__name__[0] in "AEIO" else "a"
        raise ConfigError(f"settings are a mapping or {article} {cls.__name__}, {what}")

    @classmethod
    def _translate(cls, key: str, value: Any) -> Iterable[tuple[str, Any]]:
        """Pairs of today's key and value for one key as given."""
        if not isinstance(key, str):
            raise ConfigError(f"configuration keys are strings, got {key!r}")
        name, options = canonical(key), cls.options()
        if name in options:
            return [(name, value)]
        for known, declared in options.items():
            if name in declared.aliases:
                return [(known, value)]
        renamed_keys: Mapping[str, Renamed] = cls._merged("RENAMED")
        if name in renamed_keys:
            old = renamed_keys[name]
            told = old.told or f"is a name of older releases or other clients; use {old.today}"
            warnings.warn(f"{key} {told}", ConfigWarning, stacklevel=user_level())
            try:
                return list(old.convert(value).items())
            except (TypeError, ValueError) as error:
                shown = "(hidden)" if old.secret else repr(value)
                raise ConfigError(f"bad value for {key}: {shown}; allowed: {error}") from None
        ignored: Mapping[str, str] = {**other_clients.IGNORED, **cls._merged("IGNORED")}
        if name in ignored and name not in cls._merged("REFUSED"):
            warnings.warn(f"{key} has no effect: {ignored[name]}", ConfigWarning, stacklevel=user_level())
            return []
        refused: Mapping[str, str] = {**other_clients.REFUSED, **cls._merged("REFUSED")}
        if name in refused:
            raise ConfigError(f"{key} is a key of another client: {refused[name]}")
        raise ConfigError(cls._unknown(key, name))

    @classmethod
    def _unknown(cls, key: str, name: str) -> str:
        import difflib

        # What is suggested is today's name, whichever of its names is near.
        today = {option: option for option in cls.options()}
        for option, declared in cls.options().items():
            today.update(dict.fromkeys(declared.aliases, option))
        today.update({old: became.today for old, became in cls._merged("RENAMED").items()})
        near = difflib.get_close_matches(name, today, n=3, cutoff=0.55)
        words = set(name.split("_"))
        near = [
            found
            for found in near
            if words & set(found.split("_")) or difflib.SequenceMatcher(None, name, found).ratio() > 0.8
        ]
        if near:
            return f"unknown configuration key {key}; did you mean {today[near[0]]}?"
        holding = [option for option in cls.options() if words <= set(option.split("_"))]
        hint = (
            f"did you mean {' or '.join(holding[:3])}?"
            if holding
            else f"help({cls.__name__}) and {cls.PAGE} show the known keys"
        )
        return f"unknown configuration key {key}; {hint}"

    def replace(self, **changes: Any) -> Self:
        """A copy with some keys changed, checked again; what nobody has given follows them."""
        return type(self)(**{key: getattr(self, key) for key in self._given} | changes)

    def as_dict(self) -> dict[str, Any]:
        """Every key and its value, secrets included."""
        return {key: getattr(self, key) for key in self.options()}

    def __repr__(self) -> str:
        """Only what differs from the default, with secrets hidden."""
        shown = [
            f"{key}={'(hidden)' if declared.secret else repr(value)}"
            for key, declared in self._options.items()
            if (value := getattr(self, key)) != declared.default
        ]
        return f"{type(self).__name__}({', '.join(shown)})"
