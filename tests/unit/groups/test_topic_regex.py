"""Topic patterns: as Python's `re` where the two syntaxes agree, as RE2 where not, and never slow; when they are looked at."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from fastq_broker.groups.consumer_group import ResolvedRegex
from fastq_broker.groups.consumer_member import Member
from fastq_broker.groups.consumer_records import member_record, regex_record
from fastq_broker.groups.regex import compile_pattern
from group_world import World
from hypothesis import given, settings
from hypothesis import strategies as st

from fastq.errors import InvalidRegularExpression

ATOMS = st.sampled_from(
    [
        "a",
        "b",
        "-",
        "_",
        "1",
        ".",
        r"\.",
        "[ab]",
        "[^a]",
        "[a-c1-3]",
        r"\d",
        r"\w",
        r"[\w-]",
        r"\W",
        r"\b",
        "^",
        "$",
        "",
    ]
)
TEXTS = st.text(alphabet="ab1-_.", max_size=8)


def patterns() -> st.SearchStrategy[str]:
    repeat = st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,}", "{0,2}", "{0}"])
    return st.recursive(
        ATOMS,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map("|".join),
            inner.map(lambda text: f"({text})"),
            st.tuples(inner, repeat).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        ),
        max_leaves=8,
    )


@settings(max_examples=400)
@given(patterns(), st.lists(TEXTS, min_size=1, max_size=5))
def test_matches_what_python_matches(pattern: str, names: list[str]) -> None:
    compiled = compile_pattern(pattern)
    expected = {name for name in names if re.fullmatch(pattern.replace("$", r"\Z"), name, re.ASCII)}
    assert compiled.select(names) == expected


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("orders-.*", "orders-eu", True),
        ("orders", "orders-eu", False),
        (r"\Qa.b\E+", "a.bbb", True),
        (r"\Qa.b\E", "a.b", True),
        (r"\Qa.b\E", "axb", False),
        ("(?i)ORDERS", "orders", True),
        ("(?i:O)rders", "orders", True),
        ("(?i:O)rders", "oRders", False),
        ("(?i)[O-P]x(?-i)y", "oXy", True),
        ("(?i)[O-P]x(?-i)y", "oXY", False),
        ("[[:alpha:]]+", "abc", True),
        ("[[:alpha:]]+", "abc1", False),
        ("[[:^digit:]]", "a", True),
        ("(?P<name>a)", "a", True),
        ("(?<name>a)", "a", True),
        (r"\x61", "a", True),
        (r"\x{62}", "b", True),
        (r"\101\07", "A\a", True),
        (r"\0a", "\0a", True),
        (r"\1234", "S4", True),
        (r"[\101-\103]+", "ABC", True),
        (r"\pL+", "aB\u00e9", True),
        (r"\pL+", "a1", False),
        (r"\p{Lu}.*", "Orders", True),
        (r"\p{Lu}.*", "orders", False),
        (r"\P{Lu}+", "orders-1", True),
        (r"\p{^Lu}+", "ORDERS", False),
        (r"(?i)\p{Lu}+", "orders", True),
        (r"(?i)\p{Lu}", "\u0130", True),
        (r"[\pL\p{Nd}_]+", "a_1", True),
        (r"[^\pL]+", "1a", False),
        (r"\p{Any}+", "a\n", True),
        (r"\PC", "\u0378", True),
        ("a{,2}", "a{,2}", True),
        (r"\Aab\z", "ab", True),
        ("[]a]", "]", True),
        ("[a-]", "-", True),
        ("", "", True),
        ("", "a", False),
        ("a|", "", True),
    ],
)
def test_syntax_of_re2(pattern: str, name: str, matches: bool) -> None:
    assert compile_pattern(pattern).matches(name) is matches


@pytest.mark.parametrize("pattern", [r"\p{Han}", r"[\p{Greek}]", "(a{100}){200}", "(" * 101 + ")" * 101, "a" * 10_001])
def test_what_re2_has_and_this_has_not_is_said_to_be_so(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression, match="not supported here"):
        compile_pattern(pattern)


@pytest.mark.parametrize("is_known", [False, True])
def test_a_pattern_that_another_broker_knew_stops_nobody(is_known: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Every member of its group was told that its subscription was no pattern, those by name too."""
    world = World(regex_refresh_interval_ms=10_000, session_timeout_ms=60_000)
    world.topics(t=1, u=1)
    world.join("a", ["t"])
    foreign = r"\p{Han}*u" if is_known else r"\p{Greek}*u"  # each is said once a minute
    world.log.append(member_record("g", Member("b", topic_regex=foreign, rebalance_timeout_ms=5_000)))
    if is_known:
        world.log.append(regex_record("g", foreign, ResolvedRegex(frozenset(["u"]), 1, world.clock_ms)))
    world.load()
    for _ in range(3):
        epoch = world.group.members["a"].member_epoch
        assert world.beat(member_id="a", member_epoch=epoch, topic_partitions=[]).member_epoch >= epoch
        world.advance(10_000)
    assert world.group.subscribed_names(world.group.members["b"]) == ({"u"} if is_known else set())
    assert not world.group.metadata_stale
    assert "not known here" in caplog.text and foreign in caplog.text


@pytest.mark.parametrize(
    "pattern",
    [
        "(", ")", "[", "[a", "*", "a**", "a{2}{3}", "+a", "a{3,2}", "a{1001}", r"(a)\1", "(?=a)", "(?<=a)", "(?P>n)", r"\8",
        r"\Cx", r"\p{Lu", r"\p", r"\p{}", r"\p{^", r"[\p]", r"\pX", r"\1", r"\18", r"[\1]",
        "[b-a]", "[[:foo:]]", "\\", r"\x1", "(?i", "(?<>a)", "(a{1000}){1000}", "(" * 200 + ")" * 200, "a" * 10_001,
    ],
)  # fmt: skip
def test_refuses_what_is_not_valid(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpression) as caught:
        compile_pattern(pattern)
    assert "position" in str(caught.value)


def test_nesting_and_repetition_stay_bounded() -> None:
    """Patterns that take a back-tracking matcher longer than the universe lasts."""
    name = "a" * 249
    assert not compile_pattern("(((((a*)*)*)*)*)b").matches(name)
    assert not compile_pattern("(a|a|aa)*c").matches(name)
    assert compile_pattern("(a?){249}a{249}").matches(name)
    assert compile_pattern("(" * 90 + "a" + ")?" * 90).matches("a")


def test_patterns_are_looked_at_again_after_their_interval() -> None:
    world = World(regex_refresh_interval_ms=10_000, session_timeout_ms=60_000)
    world.topics(t=1)
    world.join("a", None, subscribed_topic_regex="t")
    size = len(world.log)
    world.advance(10_000)
    world.idle("a", 1)
    world.idle("a", 1)
    assert len(world.log) == size + 1


@pytest.mark.parametrize("jump_ms", [-86_400_000, 86_400_000])
def test_patterns_are_looked_at_again_once_when_the_clock_was_set(jump_ms: int) -> None:
    """After one back, their next look would have come a day late."""
    world = World(regex_refresh_interval_ms=10_000, session_timeout_ms=60_000)
    world.topics(t=1)
    world.join("a", None, subscribed_topic_regex="t")
    size = len(world.log)
    world.set_ahead_ms = jump_ms
    world.idle("a", 1)
    world.idle("a", 1)
    assert len(world.log) == size + 1
    world.clock_ms += 9_999
    world.idle("a", 1)
    assert len(world.log) == size + 1
    world.clock_ms += 1
    world.idle("a", 1)
    assert len(world.log) == size + 2


def _times_out(world: World) -> None:
    world.advance(6_000)
    assert list(world.group.members) == ["a"]


def _leaves(world: World) -> None:
    world.beat(member_id="b", member_epoch=-1)


def _is_removed(world: World) -> None:
    assert world.shard.leave("g", [("", "b-instance")]) == [0]


@pytest.mark.parametrize(
    ("goes", "loads"),
    [(_leaves, False), (_leaves, True), (_times_out, False), (_is_removed, False), (_is_removed, True)],
)
def test_a_new_topic_is_found_also_where_a_member_goes_before_the_next_look(
    goes: Callable[[World], None], loads: bool
) -> None:
    """It was not, until the pattern's refresh interval was over: ten minutes."""
    world = World(session_timeout_ms=10_000)
    world.topics(t=2)
    world.join("a", None, subscribed_topic_regex="t.*")
    world.join("b", ["t"], instance_id="b-instance" if goes is _is_removed else None)
    world.beat(member_id="a", member_epoch=1, topic_partitions=[])
    world.advance(5_000)
    world.idle("a", world.group.members["a"].member_epoch)
    world.topics(t=2, t2=1)
    if loads:
        world.load()
    goes(world)
    found = world.parts(world.join("a", None, subscribed_topic_regex="t.*"))
    assert found == {("t", 0), ("t", 1), ("t2", 0)}
    assert not world.group.metadata_stale
