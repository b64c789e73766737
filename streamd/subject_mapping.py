"""Subject mappings: rules that turn a subject into another one, compiled.

A rule has a source, which is a pattern, and a destination, whose tokens are fixed text or functions
of the tokens that the source's wildcards stood for:

    $1, {{wildcard(1)}}           the token of the first `*`
    {{partition(n,1,2)}}          0 to n-1, a hash of these tokens; without any, of the subject
    {{split(1,-)}}                the parts of the token between dashes, as tokens
    {{splitfromleft(1,3)}}        the first three bytes and the rest, as two tokens
    {{splitfromright(1,3)}}       the last three bytes behind the rest
    {{slicefromleft(1,3)}}        pieces of three bytes; the last one may be shorter
    {{slicefromright(1,3)}}       the same, where the first one may be shorter
    {{left(1,3)}} {{right(1,3)}}  the first, or last, three bytes
    {{random(n)}}                 0 to n-1, by chance

The first letter of each word of a function's name may be a capital. A final `>` of the destination
stands for what the source's `>` stood for. Nothing here reads a clock or a random source; what
chance decides comes from a `RandomBelow`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol, TypeAlias

from streamd import subjects

RandomBelow: TypeAlias = Callable[[int], int]
"""Chooses a number from 0 to one less than its argument, by chance."""

_INVALID_SUBJECT: Final = "invalid subject"
_OUT_OF_RANGE: Final = "wildcard index out of range"
_TOO_FEW: Final = "not enough arguments passed to the function"
_TOO_MANY: Final = "too many arguments passed to the function"
_MALFORMED: Final = "function argument is invalid or in the wrong format"
_ONLY_WILDCARD: Final = "the only mapping function allowed for import transforms is {{Wildcard()}}"

_FUNCTION: Final = re.compile(rb"\{\{\s*([A-Za-z]+)\s*\((.*)\)\s*\}\}", re.DOTALL)
_COMMA: Final = re.compile(rb",\s*")
_NUMBER: Final = re.compile(rb"[+-]?[0-9]+")
_INT32_MAX: Final = 2**31 - 1
_UINT32: Final = 2**32 - 1
_INT64_MAX: Final = 2**63 - 1
_WHITESPACE: Final = b"\t\n\f\r "

Function: TypeAlias = Callable[[Sequence[bytes], bytes], bytes]
"""(values of the source's wildcards, subject) -> text in the destination."""
_Part: TypeAlias = bytes | int | Function
"""Token of a destination: fixed text, the number of a wildcard from 0, or a function."""


class SubjectMappingError(ValueError):
    """A source and destination that make no mapping; the text says why, in nats-server's words."""


class Destination(Protocol):
    """Destination of a mapped subject; see `config.account_options`."""

    @property
    def subject(self) -> str: ...

    @property
    def weight(self) -> int: ...

    @property
    def cluster(self) -> str: ...


class Mapping(Protocol):
    """A rule by which publishes to a subject go to others instead."""

    @property
    def source(self) -> str: ...

    @property
    def destinations(self) -> Sequence[Destination]: ...


# --- one rule -------------------------------------------------------------------------------------


class SubjectTransform:
    """A source and a destination, compiled: `apply` returns what a subject becomes.

    An empty source matches every subject, and an empty destination leaves subjects as they are.
    Raises SubjectMappingError if the two do not fit together.
    """

    __slots__ = ("apply", "destination", "is_repeatable", "source")

    def __init__(
        self,
        source: bytes,
        destination: bytes,
        random_below: RandomBelow | None = None,
        *,
        is_import: bool = False,
    ) -> None:
        """`random_below` may be left out where nothing is to be applied by chance: such a function
        then gives 0. An import (`is_import`) can be reversed: its destination has each wildcard of
        the source, and no other function."""
        self.source = source or b">"
        self.destination = destination
        tokens = _check_source(self.source)
        wildcard_count = tokens.count(b"*")
        has_rest = tokens[-1] == b">"
        if not destination:
            self.is_repeatable = True
            self.apply: Callable[[bytes], bytes | None] = _identity(self.source)
            return
        to_tokens = _check_destination(destination, has_rest=has_rest)
        reader = _DestinationReader(wildcard_count, has_rest=has_rest)
        parts: list[_Part] = []
        used = 0
        for token in to_tokens:
            part, argument_count = reader.read(token, random_below or _zero)
            if is_import and not (isinstance(part, bytes | int) or reader.was_wildcard):
                raise _error(_ONLY_WILDCARD, token)
            used += argument_count
            parts.append(part)
        if is_import and used < wildcard_count:
            raise _error("not using all of the token wildcard(s)", destination)
        self.is_repeatable = not reader.has_random
        """True if the same subject always becomes the same."""
        self.apply = _compile(tokens, parts, has_rest=has_rest)


def check(source: bytes, destination: bytes) -> None:
    """Raise SubjectMappingError unless publishes to `source` can be mapped to `destination`."""
    SubjectTransform(source, destination)


def first_transform(
    rules: Iterable[tuple[bytes, bytes]], random_below: RandomBelow | None = None
) -> Callable[[bytes], bytes | None]:
    """Return the function that maps a subject by the first of `rules`, (source, destination), that
    it matches; None: it matches none. So mirrors and sources read their `subject_transforms`: what
    matches none is not copied, and an empty destination keeps the subject."""
    applies = [SubjectTransform(*rule, random_below).apply for rule in rules]

    def apply(subject: bytes) -> bytes | None:
        for each in applies:
            found = each(subject)
            if found is not None:
                return found
        return None

    return apply


def reversed_import(source: bytes, destination: bytes) -> SubjectTransform:
    """Return the transform from an import's destination back to its source.

    Wildcards may be written as `*` in the destination; they are then the source's, in order.
    """
    marked = mark_wildcards(destination)
    SubjectTransform(source, marked, is_import=True)
    pattern = as_pattern(marked)
    numbers = wildcard_numbers(marked)
    back: list[bytes] = []
    at = 0
    for token in source.split(b"."):
        if token == b"*":
            at += 1
            back.append(b"$%d" % (numbers.index(at) + 1))
        else:
            back.append(token)
    return SubjectTransform(pattern, b".".join(back))


def mark_wildcards(pattern: bytes) -> bytes:
    """Return `pattern` as a destination: its first `*` becomes `$1`, and so on."""
    tokens = pattern.split(b".")
    count = 0
    for at, token in enumerate(tokens):
        if token == b"*":
            count += 1
            tokens[at] = b"$%d" % count
    return b".".join(tokens)


def as_pattern(destination: bytes) -> bytes:
    """Return the pattern of the subjects that an import's `destination` makes."""
    tokens = destination.split(b".")
    return b".".join(b"*" if _wildcard_number(token) else token for token in tokens)


def wildcard_numbers(destination: bytes) -> list[int]:
    """Return which wildcards of its source an import's `destination` uses, in order."""
    numbers = map(_wildcard_number, destination.split(b"."))
    return [number for number in numbers if number]


def _wildcard_number(token: bytes) -> int:
    """Return n of `$n` or `{{wildcard(n)}}`; 0 for any other token."""
    if token[:1] == b"$":
        return max(0, _integer(token[1:]) or 0)
    found = _FUNCTION.search(token)
    if found is None or _spelt(found[1], b"wildcard") is None:
        return 0
    return max(0, _integer(found[2].strip(b" ")) or 0)


def _check_source(source: bytes) -> list[bytes]:
    tokens = source.split(b".")
    if b"" in tokens or b">" in tokens[:-1]:
        raise SubjectMappingError(_INVALID_SUBJECT)
    return tokens


def _check_destination(destination: bytes, *, has_rest: bool) -> list[bytes]:
    tokens = destination.split(b".")
    is_ended = False
    for token in tokens:
        if not token or is_ended:
            raise _error("invalid transform", token)
        if _is_function(token):
            found = _FUNCTION.search(token)
            if found is None or _function_name(found[1]) is None:
                raise _error("unknown function", token)
        elif token == b">":
            is_ended = True
        elif token.translate(None, _WHITESPACE) != token:
            raise _error("invalid transform")
    if b"*" in tokens or has_rest != is_ended:
        raise SubjectMappingError(_INVALID_SUBJECT)
    return tokens


def _error(text: str, token: bytes = b"") -> SubjectMappingError:
    where = f" in {token.decode('utf-8', 'replace')}" if token else ""
    return SubjectMappingError(f"invalid mapping destination: {text}{where}")


# --- functions ------------------------------------------------------------------------------------

_NAMES: Final[dict[bytes, tuple[bytes, ...]]] = {
    b"wildcard": (b"wildcard",),
    b"partition": (b"partition",),
    b"splitfromleft": (b"split", b"from", b"left"),
    b"splitfromright": (b"split", b"from", b"right"),
    b"slicefromleft": (b"slice", b"from", b"left"),
    b"slicefromright": (b"slice", b"from", b"right"),
    b"split": (b"split",),
    b"left": (b"left",),
    b"right": (b"right",),
    b"random": (b"random",),
}
"""Names of the functions, with the words whose first letters may be capitals."""


def _is_function(token: bytes) -> bool:
    return len(token) > 4 and token[:2] == b"{{" and token[-2:] == b"}}"


def _spelt(given: bytes, name: bytes) -> bytes | None:
    """Return `name` if `given` is a spelling of it."""
    if given.lower() != name:
        return None
    at = 0
    for word in _NAMES[name]:
        if given[at + 1 : at + len(word)] != word[1:]:
            return None
        at += len(word)
    return name


def _function_name(given: bytes) -> bytes | None:
    name = given.lower()
    return _spelt(given, name) if name in _NAMES else None


def _integer(text: bytes) -> int | None:
    if _NUMBER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if -_INT64_MAX - 1 <= number <= _INT64_MAX else None


class _DestinationReader:
    """Reads the tokens of a destination, for a source with some wildcards."""

    def __init__(self, wildcard_count: int, *, has_rest: bool) -> None:
        self._wildcard_count = wildcard_count
        self._is_literal_source = not wildcard_count and not has_rest
        self.has_random = False
        self.was_wildcard = False  # the last token read is a wildcard function

    def read(self, token: bytes, random_below: RandomBelow) -> tuple[_Part, int]:
        """Return a token compiled, and how many wildcards it uses."""
        self.was_wildcard = False
        if len(token) > 1 and token[:1] == b"$":
            number = _integer(token[1:])
            if number is None:
                return token, 0
            return self._wildcard(number, token)
        if not _is_function(token):
            return token, 0
        found = _FUNCTION.search(token)
        name = None if found is None else _function_name(found[1])
        if found is None or name is None:
            raise _error("unknown function", token)
        arguments = _COMMA.split(found[2])
        if name == b"wildcard":
            return self._read_wildcard(token, arguments)
        if name == b"partition":
            return self._read_partition(token, arguments)
        if name == b"random":
            return self._read_random(token, arguments, random_below)
        if len(arguments) < 2:
            raise _error(_TOO_FEW, token)
        if len(arguments) > 2:
            raise _error(_TOO_MANY, token)
        number = self._argument(arguments[0], token)
        if name == b"split":
            if b" " in arguments[1] or b"." in arguments[1]:
                raise _error(_MALFORMED, token)
            self._check_number(number, token)
            return _split(self._value(number), arguments[1]), 1
        size = self._argument(arguments[1], token, is_int32=True)
        self._check_number(number, token)
        return _SIZED[name](self._value(number), size), 1

    def _read_wildcard(self, token: bytes, arguments: list[bytes]) -> tuple[_Part, int]:
        if arguments == [b""]:
            raise _error(_TOO_FEW, token)
        if len(arguments) > 1:
            raise _error(_TOO_MANY, token)
        return self._wildcard(self._argument(arguments[0], token), token)

    def _wildcard(self, number: int, token: bytes) -> tuple[_Part, int]:
        self._check_number(number, token)
        self.was_wildcard = True
        return (number - 1 if number > 0 else _first_token), 1

    def _read_partition(self, token: bytes, arguments: list[bytes]) -> tuple[_Part, int]:
        count = self._argument(arguments[0], token)
        if count > _INT32_MAX:
            raise _error(_MALFORMED, token)
        numbers = [self._argument(each, token) for each in arguments[1:]]
        if self._is_literal_source:
            # No wildcard is there: one number stands for the subject, more of them for nothing.
            values_of: list[Function] = [_nothing] if len(numbers) > 1 else []
        else:
            for number in numbers:
                self._check_number(number, token)
            values_of = [self._value(number) for number in numbers]
        return _partition(count & _UINT32, values_of), len(numbers)

    def _read_random(
        self, token: bytes, arguments: list[bytes], random_below: RandomBelow
    ) -> tuple[_Part, int]:
        if len(arguments) != 1:
            raise _error(_TOO_FEW, token)
        count = self._argument(arguments[0], token)
        if count > _INT32_MAX:
            raise _error(_MALFORMED, token)
        self.has_random = True
        return _random(abs(count), random_below), 0

    def _argument(self, text: bytes, token: bytes, *, is_int32: bool = False) -> int:
        number = _integer(text.strip(b" "))
        if number is None or (is_int32 and not -_INT32_MAX - 1 <= number <= _INT32_MAX):
            raise _error(_MALFORMED, token)
        return number

    def _check_number(self, number: int, token: bytes) -> None:
        if self._is_literal_source:
            raise _error(_OUT_OF_RANGE, token)
        if number > self._wildcard_count:
            raise _error(_OUT_OF_RANGE, token + b": [%d]" % number)

    @staticmethod
    def _value(number: int) -> Function:
        if number <= 0:
            return _first_token
        at = number - 1
        return lambda values, _subject: values[at]


def _zero(_below: int) -> int:
    return 0


def _nothing(_values: Sequence[bytes], _subject: bytes) -> bytes:
    return b""


def _first_token(_values: Sequence[bytes], subject: bytes) -> bytes:
    return subject.split(b".", 1)[0]


def fnv1a_32(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash, which chooses partitions."""
    value = 0x811C9DC5
    for byte in data:
        value = (value ^ byte) * 0x01000193 & _UINT32
    return value


def _partition(count: int, values_of: list[Function]) -> Function:
    def partition(values: Sequence[bytes], subject: bytes) -> bytes:
        key = b"".join([of(values, subject) for of in values_of]) if values_of else subject
        return b"%d" % (fnv1a_32(key) % count) if count else b"0"

    return partition


def _random(count: int, random_below: RandomBelow) -> Function:
    if count < 2:
        return lambda _values, _subject: b"0"
    return lambda _values, _subject: b"%d" % random_below(count)


def _split(value_of: Function, delimiter: bytes) -> Function:
    def split(values: Sequence[bytes], subject: bytes) -> bytes:
        value = value_of(values, subject)
        parts = value.split(delimiter) if delimiter else _characters(value)
        text = b""
        for at, part in enumerate(parts):
            # A delimiter at the start or end makes no empty token, and several in a row one
            # boundary; two at the start do make one, which nobody can subscribe to.
            if at and part and (at > 1 or parts[0]):
                text += b"."
            text += part
        return text

    return split


def _characters(value: bytes) -> list[bytes]:
    text = value.decode("utf-8", "surrogateescape")
    return [char.encode("utf-8", "surrogateescape") for char in text]


def _split_from_left(value_of: Function, size: int) -> Function:
    def split_from_left(values: Sequence[bytes], subject: bytes) -> bytes:
        value = value_of(values, subject)
        return value[:size] + b"." + value[size:] if 0 < size < len(value) else value

    return split_from_left


def _split_from_right(value_of: Function, size: int) -> Function:
    def split_from_right(values: Sequence[bytes], subject: bytes) -> bytes:
        value = value_of(values, subject)
        return value[:-size] + b"." + value[-size:] if 0 < size < len(value) else value

    return split_from_right


def _slice_from_left(value_of: Function, size: int) -> Function:
    def slice_from_left(values: Sequence[bytes], subject: bytes) -> bytes:
        value = value_of(values, subject)
        return _slices(value, size, 0) if 0 < size < len(value) else value

    return slice_from_left


def _slice_from_right(value_of: Function, size: int) -> Function:
    def slice_from_right(values: Sequence[bytes], subject: bytes) -> bytes:
        value = value_of(values, subject)
        return _slices(value, size, len(value) % size) if 0 < size < len(value) else value

    return slice_from_right


def _slices(value: bytes, size: int, first: int) -> bytes:
    """Return pieces of `size` bytes behind `first` bytes, as tokens."""
    pieces = [value[:first]] if first else []
    pieces += [value[at : at + size] for at in range(first, len(value), size)]
    return b".".join(pieces)


def _left(value_of: Function, size: int) -> Function:
    def left(values: Sequence[bytes], subject: bytes) -> bytes:
        value = value_of(values, subject)
        return value[:size] if size > 0 else value

    return left


def _right(value_of: Function, size: int) -> Function:
    def right(values: Sequence[bytes], subject: bytes) -> bytes:
        value = value_of(values, subject)
        return value[-size:] if size > 0 else value

    return right


_SIZED: Final[dict[bytes, Callable[[Function, int], Function]]] = {
    b"splitfromleft": _split_from_left,
    b"splitfromright": _split_from_right,
    b"slicefromleft": _slice_from_left,
    b"slicefromright": _slice_from_right,
    b"left": _left,
    b"right": _right,
}
"""Functions of a wildcard and a number of bytes."""


# --- compiled -------------------------------------------------------------------------------------


def _identity(source: bytes) -> Callable[[bytes], bytes | None]:
    if source == b">":
        return lambda subject: subject
    fits = subjects.Matcher((source,)).test
    return lambda subject: subject if fits(subject) else None


def _compile(
    tokens: list[bytes], parts: list[_Part], *, has_rest: bool
) -> Callable[[bytes], bytes | None]:
    if tokens == [b">"] and parts == [b">"]:
        return lambda subject: subject
    functions = [part for part in parts if not isinstance(part, bytes | int)]
    if b"*" not in tokens and not has_rest:
        return _from_literal(b".".join(tokens), parts)
    matcher = _pattern(tokens)
    # The rest is one more value, behind those of the wildcards.
    order = [part for part in parts if not isinstance(part, bytes)]
    if has_rest:
        order.append(tokens.count(b"*"))
        parts = [*parts[:-1], order[-1]]
    template = b".".join(
        part.replace(b"%", b"%%") if isinstance(part, bytes) else b"%b" for part in parts
    )
    if not functions:
        numbers = [part + 1 for part in order if isinstance(part, int)]
        return _from_groups(matcher, template, numbers)

    def apply(subject: bytes) -> bytes | None:
        found = matcher(subject)
        if found is None:
            return None
        values = found.groups()
        return template % tuple(
            [values[part] if isinstance(part, int) else part(values, subject) for part in order]
        )

    return apply


def _from_literal(source: bytes, parts: list[_Part]) -> Callable[[bytes], bytes | None]:
    fixed = [part for part in parts if isinstance(part, bytes)]
    if len(fixed) == len(parts):
        destination = b".".join(fixed)
        return lambda subject: destination if subject == source else None

    def apply(subject: bytes) -> bytes | None:
        if subject != source:
            return None
        texts = [part((), subject) if callable(part) else part for part in parts]
        return b".".join([text for text in texts if isinstance(text, bytes)])

    return apply


def _from_groups(
    matcher: Callable[[bytes], re.Match[bytes] | None], template: bytes, numbers: list[int]
) -> Callable[[bytes], bytes | None]:
    if not numbers:
        destination = template % ()
        return lambda subject: None if matcher(subject) is None else destination
    if len(numbers) == 1:
        only = numbers[0]

        def apply_one(subject: bytes) -> bytes | None:
            found = matcher(subject)
            return None if found is None else template % found[only]

        return apply_one

    def apply(subject: bytes) -> bytes | None:
        found = matcher(subject)
        return None if found is None else template % found.group(*numbers)

    return apply


def _pattern(tokens: list[bytes]) -> Callable[[bytes], re.Match[bytes] | None]:
    """Return the test of a source; its groups are the wildcards and the rest.

    A token `>` of a published subject is text, which `*` does not stand for.
    """
    wild = {b"*": rb"([^.>]|[^.]{2,})", b">": rb"([^.]+(?:\.[^.]+)*)"}
    expressions = [wild.get(token) or re.escape(token) for token in tokens]
    return re.compile(rb"\.".join(expressions), re.DOTALL).fullmatch


# --- the mappings of an account -------------------------------------------------------------------

_Share: TypeAlias = tuple[int, Callable[[bytes], bytes | None]]
"""(sum of the weights up to and with this destination, its transform)."""


class WeightedMappings:
    """The mappings of one account. An exact source goes before patterns, and these in their order.

    Weights are in per cent. What they leave of a hundred stays on the source; but if the source is
    itself a destination, it is dropped. Destinations for the cluster of this server stand in for
    those without one; those for other clusters are left out.
    """

    __slots__ = ("_fits", "_literals", "_patterns", "_random_below")

    def __init__(
        self, mappings: Iterable[Mapping], random_below: RandomBelow, *, cluster: str = ""
    ) -> None:
        """Raises SubjectMappingError for a mapping that makes no sense."""
        self._random_below = random_below
        self._literals: dict[bytes, list[_Share]] = {}
        self._patterns: list[tuple[Callable[[bytes], object], list[_Share]]] = []
        patterns: list[bytes] = []
        for mapping in mappings:
            source = mapping.source.encode()
            shares = _shares(source, mapping.destinations, random_below, cluster)
            if subjects.is_literal(source):
                self._literals[source] = shares
            else:
                patterns.append(source)
                self._patterns.append((_pattern(_check_source(source)), shares))
        # One look for all patterns: most subjects match none.
        self._fits = subjects.Matcher(patterns).test if patterns else _never

    def __bool__(self) -> bool:
        return bool(self._literals or self._patterns)

    def has(self, subject: bytes) -> bool:
        """Return True if a mapping is for `subject`."""
        return subject in self._literals or bool(self._fits(subject))

    def map(self, subject: bytes) -> bytes | None:
        """Return what a published subject becomes, itself if no mapping is for it; None: it is
        dropped."""
        shares = self._literals.get(subject)
        if shares is None:
            if not self._fits(subject):
                return subject
            shares = next((shares for fits, shares in self._patterns if fits(subject)), None)
            if shares is None:
                return subject
        if len(shares) == 1 and shares[0][0] == 100:
            return shares[0][1](subject)
        chosen = self._random_below(100)
        for until, apply in shares:
            if chosen < until:
                return apply(subject)
        return None


def check_mapping(mapping: Mapping) -> None:
    """Raise SubjectMappingError if a mapping makes no sense."""
    _shares(mapping.source.encode(), mapping.destinations, _zero, "")


def _shares(
    source: bytes, destinations: Sequence[Destination], random_below: RandomBelow, cluster: str
) -> list[_Share]:
    seen: set[str] = set()
    totals: dict[str, int] = {}
    by_cluster: dict[str, list[tuple[int, Callable[[bytes], bytes | None]]]] = {}
    for each in destinations:
        if each.subject in seen:
            raise SubjectMappingError(f'duplicate entry for "{each.subject}"')
        seen.add(each.subject)
        if not 0 <= each.weight <= 100:
            raise SubjectMappingError("individual weights need to be <= 100")
        totals[each.cluster] = totals.get(each.cluster, 0) + each.weight
        if totals[each.cluster] > 100:
            raise SubjectMappingError("total weight needs to be <= 100")
        if not each.subject:
            raise SubjectMappingError("a mapping destination is empty")
        transform = SubjectTransform(source, each.subject.encode(), random_below)
        by_cluster.setdefault(each.cluster, []).append((each.weight, transform.apply))
    chosen = by_cluster.get(cluster) or by_cluster.get("", [])
    left = 100 - sum(weight for weight, _ in chosen)
    if left and source.decode() not in seen:
        same = SubjectTransform(source, mark_wildcards(source))
        chosen = [*chosen, (left, same.apply)]
    shares: list[_Share] = []
    until = 0
    for weight, apply in chosen:
        if weight:
            until += weight
            shares.append((until, apply))
    return shares


def _never(_subject: bytes) -> bool:
    return False
