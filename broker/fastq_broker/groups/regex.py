"""Topic patterns of KIP-848 subscriptions: RE2's syntax, matched against whole topic names in linear time.

Rules
- A pattern comes from any client, so matching must not depend on how mean it is: it is compiled to an automaton whose states
  are sets (no backtracking), and it takes at most `STATES_MAX` of them. Python's `re` would back-track for hours.
- RE2's syntax as far as topic names can tell its parts apart: literals, `.`, classes (with ranges, negation, `\\d \\w \\s`,
  `[:alpha:]`, general categories as `\\pL`, `\\p{Lu}`), groups (plain, `?:`, `?P<name>`, `?<name>`, flags i s m U), `|`,
  `* + ? {n} {n,} {n,m}` (n, m <= 1000) and their lazy forms, `^ $ \\A \\z \\b \\B`, escapes (octal ones too), `\\Q..\\E`. No
  back-references and no look-around, as in RE2. What RE2 has and this has not: scripts as `\\p{Han}`, and patterns above the bounds here.
- What does not parse raises InvalidRegularExpression (error 128 on the wire), with the place in the pattern.
Source: KIP-848 (SubscribedTopicRegex, Google RE2/J syntax).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias
from unicodedata import category

from fastq.errors import InvalidRegularExpression
from fastq.values import NamedTuple

STATES_MAX: Final = 20_000
"""States of one automaton: RE2 bounds its memory in the same way."""
DFA_STATES_MAX: Final = 2_000
"""Sets of states that a pattern remembers; beyond, they are worked out anew."""
REPEAT_MAX: Final = 1000
PATTERN_CHARS_MAX: Final = 10_000
NESTING_MAX: Final = 100

# A character class: membership of one character.
Test: TypeAlias = "Callable[[str], bool]"

_WORD = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")
_DIGITS = frozenset("0123456789")
_SPACES = frozenset("\t\n\f\r ")
_LOWER = frozenset("abcdefghijklmnopqrstuvwxyz")
_UPPER = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
_PERL = {"d": _DIGITS, "w": _WORD, "s": _SPACES}
_POSIX = {
    "alnum": _LOWER | _UPPER | _DIGITS,
    "alpha": _LOWER | _UPPER,
    "ascii": frozenset(map(chr, range(128))),
    "blank": frozenset("\t "),
    "digit": _DIGITS,
    "lower": _LOWER,
    "print": frozenset(map(chr, range(32, 127))),
    "punct": frozenset(chr(code) for code in range(33, 127) if not chr(code).isalnum()),
    "space": _SPACES | {"\v"},
    "upper": _UPPER,
    "word": _WORD,
    "xdigit": frozenset("0123456789abcdefABCDEF"),
}
_OCTAL = frozenset("01234567")
_KINDS = {"C": "cfos", "L": "lmotu", "M": "cen", "N": "dlo", "P": "cdefios", "S": "ckmo", "Z": "lps"}
_CATEGORIES = frozenset(kind + letter for kind, letters in _KINDS.items() for letter in ("", *letters))
_ESCAPES = {"t": "\t", "n": "\n", "f": "\f", "r": "\r", "v": "\v", "a": "\a"}


class _Edge(NamedTuple):
    """A step of the automaton: `test` reads a character; without one, `assertion` (or nothing) must hold here."""

    target: int
    test: Test | None = None
    assertion: str = ""


class _Fragment(NamedTuple):
    """A part of the automaton: one entry, one exit."""

    start: int
    end: int


def compile_pattern(pattern: str) -> TopicPattern:
    """The compiled pattern. InvalidRegularExpression when it is not valid or too large."""
    return TopicPattern(pattern)


class TopicPattern:
    """A compiled pattern. `matches` is pure but for its cache of states; one thread."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        parser = _Parser(pattern)
        whole = parser.parse()
        self._edges = parser.edges
        self._accept = whole.end
        self._cache: dict[tuple[frozenset[int], str], dict[str, frozenset[int]]] = {}
        self._start = frozenset([whole.start])

    def matches(self, name: str) -> bool:
        """Whether the whole of `name` fits."""
        states = self._start
        before = ""
        for char in name:
            row = self._cache.get((states, _kind(before)))
            after = None if row is None else row.get(char)
            if after is None:
                after = self._step(states, before, char)
                if len(self._cache) < DFA_STATES_MAX:
                    self._cache.setdefault((states, _kind(before)), {})[char] = after
            if not after:
                return False
            states = after
            before = char
        return self._accept in self._closure(states, before, "")

    def select(self, names: Iterable[str]) -> frozenset[str]:
        """Those of `names` that fit."""
        return frozenset(name for name in names if self.matches(name))

    def _step(self, states: frozenset[int], before: str, char: str) -> frozenset[int]:
        """Where `char` leads from `states`."""
        return frozenset(
            edge.target
            for state in self._closure(states, before, char)
            for edge in self._edges[state]
            if edge.test is not None and edge.test(char)
        )

    def _closure(self, states: frozenset[int], before: str, after: str) -> set[int]:
        """All states that can be reached without reading, between the characters `before` and `after` ("": none)."""
        reached = set(states)
        stack = list(states)
        while stack:
            for edge in self._edges[stack.pop()]:
                if edge.test is None and edge.target not in reached and _holds(edge.assertion, before, after):
                    reached.add(edge.target)
                    stack.append(edge.target)
        return reached


def _kind(before: str) -> str:
    """What an assertion can tell of the character before: nothing there, part of a word, or neither."""
    return "" if not before else "w" if before in _WORD else "."


def _holds(assertion: str, before: str, after: str) -> bool:
    if not assertion:
        return True
    if assertion == "^":
        return not before
    if assertion == "$":
        return not after
    boundary = (before in _WORD if before else False) != (after in _WORD if after else False)
    return boundary == (assertion == "b")


class _Parser:
    """Recursive descent over a pattern that builds the automaton (Thompson's construction) on its way."""

    def __init__(self, pattern: str) -> None:
        self.pattern = _unquoted(pattern[: PATTERN_CHARS_MAX + 1])
        self.position = 0
        self.depth = 0
        self.ignore_case = False
        self.edges: list[list[_Edge]] = []

    def parse(self) -> _Fragment:
        if len(self.pattern) > PATTERN_CHARS_MAX:
            raise self.error(f"more than {PATTERN_CHARS_MAX} characters are not supported here")
        whole = self.alternation()
        if self.position < len(self.pattern):
            raise self.error("unexpected )")
        return whole

    def error(self, what: str) -> InvalidRegularExpression:
        shown = self.pattern if len(self.pattern) <= 100 else self.pattern[:100] + "..."
        return InvalidRegularExpression(
            f"topic pattern {shown!r} is refused at position {self.position}: {what} (the syntax is RE2's)"
        )

    # --- building ---

    def state(self) -> int:
        if len(self.edges) >= STATES_MAX:
            raise self.error(
                f"a pattern of more than {STATES_MAX} states is not supported here; use smaller repetitions"
            )
        self.edges.append([])
        return len(self.edges) - 1

    def link(self, source: int, target: int, test: Test | None = None, assertion: str = "") -> None:
        self.edges[source].append(_Edge(target, test, assertion))

    def empty(self) -> _Fragment:
        start = self.state()
        return _Fragment(start, start)

    def reading(self, test: Test) -> _Fragment:
        fragment = _Fragment(self.state(), self.state())
        self.link(fragment.start, fragment.end, test)
        return fragment

    def asserting(self, assertion: str) -> _Fragment:
        fragment = _Fragment(self.state(), self.state())
        self.link(fragment.start, fragment.end, assertion=assertion)
        return fragment

    def literal(self, char: str) -> _Fragment:
        return self.reading(self.folded(frozenset([char])).__contains__)

    def folded(self, chars: frozenset[str]) -> frozenset[str]:
        if not self.ignore_case:
            return chars
        return frozenset(form for char in chars for form in (char, char.lower(), char.upper()))

    # --- parsing ---

    def peek(self) -> str:
        return self.pattern[self.position] if self.position < len(self.pattern) else ""

    def take(self, text: str) -> bool:
        if self.pattern.startswith(text, self.position):
            self.position += len(text)
            return True
        return False

    def alternation(self) -> _Fragment:
        branches = [self.sequence()]
        while self.take("|"):
            branches.append(self.sequence())
        if len(branches) == 1:
            return branches[0]
        whole = _Fragment(self.state(), self.state())
        for branch in branches:
            self.link(whole.start, branch.start)
            self.link(branch.end, whole.end)
        return whole

    def sequence(self) -> _Fragment:
        whole = self.empty()
        while self.peek() not in ("", "|", ")"):
            part = self.repeated()
            self.link(whole.end, part.start)
            whole = _Fragment(whole.start, part.end)
        return whole

    def repeated(self) -> _Fragment:
        """An atom and the repetitions behind it. A copy parses the atom again, so that the states bound all the work."""
        begin, case = self.position, self.ignore_case
        first: _Fragment | None = self.atom()
        assert first is not None
        bounds = self.bounds()
        if bounds is None:
            return first
        if self.bounds() is not None:
            raise self.error("a repetition of a repetition")
        end, case_after = self.position, self.ignore_case

        def copy() -> _Fragment:
            nonlocal first
            made, first = first, None
            if made is None:
                self.position, self.ignore_case = begin, case
                made = self.atom()
            return made

        result = self.copies(copy, *bounds)
        self.position, self.ignore_case = end, case_after
        return result

    def bounds(self) -> tuple[int, int | None] | None:
        """The repetition here as (least, most or None); None where there is none."""
        found: tuple[int, int | None] | None = None
        for sign, least_most in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.take(sign):
                found = least_most
                break
        if found is None and self.peek() == "{":
            found = self.counted()
        if found is not None:
            self.take("?")
        return found

    def counted(self) -> tuple[int, int | None] | None:
        """`{n}`, `{n,}` or `{n,m}`; anything else that begins with a brace is a literal brace, as in RE2."""
        end = self.pattern.find("}", self.position)
        least, comma, most = self.pattern[self.position + 1 : max(end, 0)].partition(",")
        if end < 0 or not _is_number(least) or (most and not _is_number(most)):
            return None
        bounds = int(least[:6]), int(least[:6]) if not comma else int(most[:6]) if most else None
        if max(bounds[0], bounds[1] or 0) > REPEAT_MAX or (bounds[1] is not None and bounds[1] < bounds[0]):
            raise self.error(
                f"a repetition of {{{least}{comma}{most}}}; it takes up to {REPEAT_MAX}, the smaller first"
            )
        self.position = end + 1
        return bounds

    def copies(self, copy: Callable[[], _Fragment], least: int, most: int | None) -> _Fragment:
        whole = self.empty()
        for _ in range(least):
            part = copy()
            self.link(whole.end, part.start)
            whole = _Fragment(whole.start, part.end)
        if most is None:
            part = copy()
            end = self.state()
            self.link(whole.end, part.start)
            self.link(whole.end, end)
            self.link(part.end, part.start)
            self.link(part.end, end)
            return _Fragment(whole.start, end)
        if most == least:
            return whole
        end = self.state()
        for _ in range(most - least):
            part = copy()
            self.link(whole.end, end)
            self.link(whole.end, part.start)
            whole = _Fragment(whole.start, part.end)
        self.link(whole.end, end)
        return _Fragment(whole.start, end)

    def atom(self) -> _Fragment:
        char = self.peek()
        self.position += 1
        if char == "(":
            return self.group()
        if char == "[":
            return self.reading(self.char_class())
        if char == ".":
            return self.reading(_any)
        if char in ("^", "$"):
            return self.asserting(char)
        if char == "\\":
            return self.escape()
        if char in ("*", "+", "?"):
            self.position -= 1
            raise self.error(f"nothing in front of {char} to repeat")
        return self.literal(char)

    def group(self) -> _Fragment:
        case = self.ignore_case
        self.depth += 1
        if self.depth > NESTING_MAX:
            raise self.error(f"more than {NESTING_MAX} groups inside each other are not supported here")
        if self.take("?") and not self.group_head():
            self.depth -= 1
            return self.empty()  # flags alone: they hold up to the end of the group around
        inner = self.alternation()
        if not self.take(")"):
            raise self.error("a ) is missing")
        self.depth -= 1
        self.ignore_case = case
        return inner

    def group_head(self) -> bool:
        """What stands behind `(?`. False: it was only flags, with their parenthesis."""
        if self.take("P<") or (self.peek() == "<" and self.pattern[self.position + 1 : self.position + 2] not in "=!"):
            self.take("<")
            end = self.pattern.find(">", self.position)
            name = self.pattern[self.position : max(end, 0)]
            if not name or not set(name) <= _WORD:
                raise self.error("a group's name takes letters, digits and _")
            self.position = end + 1
            return True
        switch_on = True
        while (flag := self.peek()) not in (":", ")"):
            if flag == "-" and switch_on:
                switch_on = False
            elif flag == "i":
                self.ignore_case = switch_on
            elif flag == "" or flag not in "smU":
                raise self.error("not a kind of group that RE2 has (no look-around, no back-references)")
            self.position += 1
        self.position += 1
        return flag == ":"

    def escape(self) -> _Fragment:
        char = self.peek()
        if char in ("A", "z"):
            self.position += 1
            return self.asserting("^" if char == "A" else "$")
        if char in ("b", "B"):
            self.position += 1
            return self.asserting(char)
        if char.lower() in _PERL and char:
            self.position += 1
            return self.reading(_perl(char))
        if char in ("p", "P"):
            return self.reading(self.unicode_class())
        return self.literal(self.escaped_char())

    def escaped_char(self) -> str:
        """The one character that an escape stands for; the backslash has been read."""
        char = self.peek()
        self.position += 1
        if char in _ESCAPES:
            return _ESCAPES[char]
        if char == "x":
            return self.hex_char()
        if char == "0" or (char in _OCTAL and self.peek() in _OCTAL):  # one digit above 0 would be a back-reference
            begin = self.position - 1
            while self.peek() in _OCTAL and self.position < begin + 3:
                self.position += 1
            return chr(int(self.pattern[begin : self.position], 8))
        if char and char.isascii() and not char.isalnum():
            return char
        self.position -= 1
        raise self.error(f"\\{char} is not an escape that is known here" if char else "a backslash at the end")

    def hex_char(self) -> str:
        if self.take("{"):
            end = self.pattern.find("}", self.position)
            digits = self.pattern[self.position : max(end, 0)]
            self.position = end + 1
        else:
            digits = self.pattern[self.position : self.position + 2]
            self.position += 2
            digits = digits if len(digits) == 2 else ""
        if not digits or len(digits) > 6 or not set(digits) <= _POSIX["xdigit"] or int(digits, 16) > 0x10FFFF:
            raise self.error("\\x takes two hexadecimal digits, or up to six in braces")
        return chr(int(digits, 16))

    def unicode_class(self) -> Test:
        """`\\pL`, `\\p{Lu}`, `\\p{^Lu}`, or with a capital P all that is not in it; the backslash has been read."""
        begin = self.position
        negated = self.peek() == "P"
        self.position += 1
        if self.take("{"):
            end = self.pattern.find("}", self.position)
            name = self.pattern[self.position : max(end, 0)]
            self.position = end + 1
        else:
            name = self.peek()
            self.position += 1
        if name.startswith("^"):
            negated, name = not negated, name[1:]
        if name == "Any":
            return lambda char: not negated
        if name not in _CATEGORIES:
            self.position = begin
            raise self.error(
                f"\\p of {name!r} is not supported here; general categories of Unicode (L, Lu, Nd) are, scripts are not"
            )
        forms = _forms if self.ignore_case else _itself
        return lambda char: any(_is_in_category(form, name) for form in forms(char)) != negated

    def char_class(self) -> Test:
        """A bracketed class; its opening bracket has been read."""
        negated = self.take("^")
        tests: list[Test] = []
        chars: set[str] = set()
        first = True
        while first or self.peek() != "]":
            if not self.peek():
                raise self.error("a ] is missing")
            first = False
            if self.take("[:"):
                tests.append(self.posix_class())
            elif self.peek() == "\\" and self.pattern[self.position + 1 : self.position + 2].lower() in ("d", "w", "s"):
                tests.append(_perl(self.pattern[self.position + 1]))
                self.position += 2
            elif self.pattern.startswith(("\\p", "\\P"), self.position):
                self.position += 1
                tests.append(self.unicode_class())
            else:
                low = self.class_char()
                chars.update(self.folded(frozenset([low])))
                if self.peek() == "-" and self.pattern[self.position + 1 : self.position + 2] not in ("]", ""):
                    self.position += 1
                    tests.append(self.range_test(low, self.class_char()))
        self.position += 1
        members = frozenset(chars)
        return lambda char: (char in members or any(test(char) for test in tests)) != negated

    def class_char(self) -> str:
        char = self.peek()
        self.position += 1
        return self.escaped_char() if char == "\\" else char

    def range_test(self, low: str, high: str) -> Test:
        if not high or low > high:
            raise self.error("a range goes from the smaller to the larger character")
        if self.ignore_case:
            return lambda char: any(low <= form <= high for form in (char, char.lower(), char.upper()))
        return lambda char: low <= char <= high

    def posix_class(self) -> Test:
        negated = self.take("^")
        end = self.pattern.find(":]", self.position)
        name = self.pattern[self.position : max(end, 0)]
        chars = _POSIX.get(name)
        if chars is None:
            raise self.error(f"there is no class [:{name}:]")
        self.position = end + 2
        members = self.folded(chars)
        return lambda char: (char in members) != negated


def _unquoted(pattern: str) -> str:
    """`pattern` with each `\\Q...\\E` spelled out, character by character."""
    parts: list[str] = []
    position = 0
    while position < len(pattern):
        if not pattern.startswith("\\Q", position):
            size = 2 if pattern[position] == "\\" else 1
            parts.append(pattern[position : position + size])
            position += size
            continue
        end = pattern.find("\\E", position + 2)
        text = pattern[position + 2 : end if end >= 0 else len(pattern)]
        parts.extend(char if char.isalnum() or not char.isascii() else "\\" + char for char in text)
        position = end + 2 if end >= 0 else len(pattern)
    return "".join(parts)


def _any(char: str) -> bool:
    return char != "\n"


def _perl(letter: str) -> Test:
    chars = _PERL[letter.lower()]
    negated = letter.isupper()
    return lambda char: (char in chars) != negated


def _itself(char: str) -> tuple[str, ...]:
    return (char,)


def _forms(char: str) -> tuple[str, ...]:
    """A character, and it in the other case where that is one character too."""
    return (char, *(form for form in (char.lower(), char.upper()) if len(form) == 1))


def _is_in_category(char: str, name: str) -> bool:
    """Whether a character is in a general category, as `Lu`, or in one of a kind, as `L`; what is unassigned is in none."""
    found = category(char)
    return found == name or (found[0] == name and found != "Cn")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
