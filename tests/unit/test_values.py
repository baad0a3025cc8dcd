"""Classes of values do what frozen dataclasses do, and `dataclasses` takes them for its own."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import pydoc
import threading
from typing import Any

import pytest

from fastq.values import NamedTuple, Value, replace


class Point(Value):
    """Two numbers and a name."""

    x: int
    y: int = 0
    name: str | None = None

    @property
    def sum(self) -> int:
        return self.x + self.y


class Span(Value, kw_only=True):
    low: int = 0
    high: int


class Pair(NamedTuple):
    """Two things."""

    left: int
    right: str | None = None

    def __str__(self) -> str:
        return f"{self.left}-{self.right}"


class Token(Value, eq=False):
    number: int


class Marked(Point):
    """A class of a user's, below one of values."""


@dataclasses.dataclass(frozen=True)
class Coloured(Point):
    colour: str = "red"


def test_values_are_made_as_those_of_a_dataclass() -> None:
    assert (Point(1).x, Point(1).y, Point(1).name) == (1, 0, None)
    assert Point(1, name="a", y=2) == Point(1, 2, "a")
    assert Point(1, 2).sum == 3
    assert Span(high=2) == Span(low=0, high=2)
    for wrong in ((), (1, 2, "a", 4)):
        with pytest.raises(TypeError, match="argument"):
            Point(*wrong)
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        Point(1, z=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="positional"):
        Span(1, 2)  # type: ignore[misc]
    assert list(inspect.signature(Point).parameters) == ["x", "y", "name"]


def test_the_first_instance_may_be_of_a_class_below() -> None:
    class Base(Value):
        x: int

    class Below(Base):
        def __init__(self, x: int) -> None:
            super().__init__(x + 1)
            self.extra = x  # it is an ordinary class, whose instances have attributes of their own

    assert (Below(1).x, Below(1).extra) == (2, 1)
    assert Base(1).x == 1
    with pytest.raises(AttributeError, match="cannot set 'x'"):
        Below(1).x = 3  # type: ignore[misc]


def test_equality_hash_and_repr() -> None:
    assert Point(1, 2) == Point(1, 2) != Point(1, 3)
    assert hash(Point(1, 2)) == hash(Point(1, 2))
    assert Point(1) != Marked(1)
    assert Point(1) != (1, 0, None)
    assert repr(Point(1, name="a")) == "Point(x=1, y=0, name='a')"
    token = Token(1)
    assert token == token != Token(1)
    assert len({token, Token(1)}) == 2


def test_values_do_not_change() -> None:
    point: Any = Point(1)
    for change in (lambda: setattr(point, "x", 2), lambda: setattr(point, "z", 2), lambda: delattr(point, "x")):
        with pytest.raises(AttributeError):
            change()
    assert point == Point(1)
    assert not hasattr(point, "__dict__")


@pytest.mark.parametrize("value", [Point(1, 2, "a"), Span(high=1), Marked(1), Coloured(1, colour="blue")])
def test_pickles_and_copies(value: Any) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    assert copy.copy(value) == copy.deepcopy(value) == value
    assert type(copy.copy(value)) is type(value)


def test_replace_with_and_without_dataclasses() -> None:
    assert replace(Point(1, 2), y=3) == Point(1, 3) == dataclasses.replace(Point(1, 2), y=3)
    assert type(replace(Marked(1), y=3)) is Marked
    assert dataclasses.is_dataclass(Point)
    assert [field.name for field in dataclasses.fields(Point)] == ["x", "y", "name"]
    assert dataclasses.asdict(Point(1)) == {"x": 1, "y": 0, "name": None}
    assert dataclasses.replace(Coloured(1), colour="blue") == Coloured(1, colour="blue")
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        replace(Point(1), z=1)


def test_a_match_statement_takes_them_apart() -> None:
    match Point(1, 2):
        case Point(x, y):
            assert (x, y) == (1, 2)


def test_signatures_are_known_before_and_after_the_first_instance() -> None:
    class Below(Point):
        def __init__(self, name: str) -> None:
            super().__init__(1, name=name)

    class Fresh(NamedTuple):
        a: int
        b: int = 2

    for _ in range(2):
        assert str(inspect.signature(Below)) == "(name: 'str') -> 'None'"
        assert str(inspect.signature(Span)) == "(*, low=0, high)"
        assert str(inspect.signature(Fresh)) == "(a, b=2)"
        assert Below("a").name == "a"
        assert Fresh(1) == (1, 2)


@pytest.mark.parametrize("base", [Value, NamedTuple])
def test_the_first_instances_may_be_made_by_two_threads(base: Any) -> None:
    made = []

    class Slow(type(base)):  # type: ignore[misc]
        """Both threads are inside of the first constructor before either has compiled it."""

        def compile(cls) -> Any:
            both.wait(10)
            return super().compile()

    both = threading.Barrier(2)
    cls: Any = Slow("Fresh", (base,), {"__annotations__": {"x": "int"}})
    threads = [threading.Thread(target=lambda: made.append(cls(1).x)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert made == [1, 1]
    assert cls(x=2).x == 2


def test_the_bases_stay_as_they_are_when_somebody_looks_at_them() -> None:
    for base, below in ((Value, Point), (NamedTuple, Pair)):
        before = vars(base).get("__init__"), vars(base).get("__new__")
        pydoc.render_doc(below)
        pydoc.render_doc(base)
        inspect.signature(base)
        with pytest.raises(TypeError, match="has no fields"):
            base()
        assert (vars(base).get("__init__"), vars(base).get("__new__")) == before

    class Fresh(Value):
        x: int

    class Other(NamedTuple):
        x: int

    assert Fresh(1).x == Other(1).x == 1


def test_named_tuples_are_those_of_typing() -> None:
    pair = Pair(1)
    assert pair == (1, None) == Pair(left=1)
    assert isinstance(pair, tuple)
    assert {pair: 1}[Pair(1)] == 1
    assert (pair.left, pair.right, str(pair), repr(pair)) == (1, None, "1-None", "Pair(left=1, right=None)")
    assert (Pair._fields, Pair._field_defaults, pair._asdict()) == (
        ("left", "right"),
        {"right": None},
        {"left": 1, "right": None},
    )
    assert pair._replace(right="a") == Pair._make([1, "a"]) == (1, "a")
    assert type(pair._replace(right="a")) is Pair
    for wrong in (lambda: Pair._make([1]), lambda: Pair(), lambda: Pair(1, "a", 2), lambda: Pair(1, z=2)):  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError, match="no field 'z'"):
        pair._replace(z=1)  # type: ignore[call-arg]
    for change in (lambda: setattr(pair, "left", 2), lambda: setattr(pair, "z", 2)):
        with pytest.raises(AttributeError):
            change()
    assert pickle.loads(pickle.dumps(pair)) == copy.deepcopy(pair) == pair
    assert type(pickle.loads(pickle.dumps(pair))) is Pair
    match pair:
        case Pair(left, right):
            assert (left, right) == (1, None)
    assert pydoc.plain(pydoc.render_doc(Pair)).count("Two things.") == 1


def test_a_class_below_a_named_tuple_is_an_ordinary_class() -> None:
    class Below(Pair):
        def __new__(cls, left: int) -> Below:
            return super().__new__(cls, left + 1, "b")

    below = Below(1)
    below.extra = 5  # type: ignore[attr-defined]
    assert below == (2, "b")
    assert type(copy.copy(Pair(3))) is Pair
