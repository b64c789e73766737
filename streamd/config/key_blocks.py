"""`KeyBlocks`: reads blocks of a configuration; each key has a setter that takes its value."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, TypeVar

from streamd.config.duration_values import parse_duration
from streamd.config.grammar import Value
from streamd.config.options import Options
from streamd.config.values import as_flag, as_integer, as_members, as_text, quoted, unknown_field
from streamd.durations import SECOND_NS

Setter = Callable[[Value], None]
Item = TypeVar("Item")


class Unserved(NamedTuple):
    """Keys of nats-server's that this version does not serve.

    To ignore a `protecting` key would let a stranger in, show another account's data or change the
    meaning of a message: such a configuration is refused. An `additional` key opens another
    listener or tunes something: without it the server does less, as safely.
    """

    protecting: Collection[str] = ()
    additional: Collection[str] = ()


def words(text: str) -> frozenset[str]:
    """Return the keys in `text`."""
    return frozenset(text.split())


def put_on(target: object, attribute: str, convert: Callable[[Value], object]) -> Setter:
    """Return a setter of an attribute of `target`."""
    return lambda v: setattr(target, attribute, convert(v))


def put_in(target: dict[str, Item], key: str, convert: Callable[[Value], Item]) -> Setter:
    """Return a setter of a member of `target`."""
    return lambda v: target.__setitem__(key, convert(v))


class KeyBlocks:
    """Hands the values of a block to setters, and collects warnings and refusals in `Options`."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def read(
        self,
        block: Value,
        setters: dict[str, Setter],
        path: str = "",
        unserved: Unserved = Unserved(),  # noqa: B008
        *,
        unknown: str = "",
    ) -> None:
        """Hand each member of `block` to its setter; the key may have aliases (`a|b`).

        `unknown`: text of the error of an unknown key, with `{}` for it; "": the usual one.
        """
        by_name = {name: set_ for names, set_ in setters.items() for name in names.split("|")}
        for key, value in as_members(block, path or "configuration").items():
            name = key.lower()
            value.key = f"{path}{key}"
            if isinstance(value.raw, list):
                for element in value.raw:
                    element.key = value.key
            if name in by_name:
                by_name[name](value)
            elif name in unserved.protecting and value.raw is False:
                pass  # asks for nothing
            elif name in unserved.protecting:
                self.refuse(value, f'"{value.key}" is not served by this version')
            elif name in unserved.additional:
                self.warn(value, f'"{value.key}" is not served by this version and is ignored')
            elif not value.is_referred_to and unknown:
                raise value.error(unknown.format(quoted(key)))
            elif not value.is_referred_to:
                raise unknown_field(value, key, [*by_name, *unserved[0], *unserved[1]])

    def refuse(self, value: Value, text: str) -> None:
        """Add a setting that must not be ignored; `finish` decides whether the start fails."""
        self._options.unserved.append(str(value.error(text)))

    def warn(self, value: Value, text: str) -> None:
        """Add a warning that names the place of `value`."""
        self._options.warnings.append(f"{value.file}:{value.line}:{value.col}: {text}")

    def text(self, attribute: str) -> Setter:
        """Return the setter of an option that is a text."""
        return put_on(self._options, attribute, as_text)

    def flag(self, attribute: str) -> Setter:
        """Return the setter of an option that is a flag."""
        return put_on(self._options, attribute, as_flag)

    def integer(self, attribute: str) -> Setter:
        """Return the setter of an option that is a integer."""
        return put_on(self._options, attribute, as_integer)

    def bound(self, attribute: str, *, highest: int = 0x7FFFFFFF) -> Setter:
        """Return the setter of a bound, which is never unlimited. 0 stands for the default."""

        def as_bound(value: Value) -> int:
            number = as_integer(value)
            if not 0 <= number <= highest:
                raise value.error(f'"{value.key}": {number} is out of range: 1 to {highest}')
            return number

        return put_on(self._options, attribute, as_bound)

    def duration(self, attribute: str) -> Setter:
        """Return the setter of an option that is a duration in ns."""
        name = attribute.removesuffix("_ns")
        return put_on(self._options, attribute, lambda v: self.duration_of(v, name))

    def duration_of(self, value: Value, name: str) -> int:
        """Return a duration in ns; warns of a number without unit, which is taken for seconds."""
        if isinstance(value.raw, int) and not isinstance(value.raw, bool):
            if value.raw >= 1_000_000:  # a bare 2m is two million, not two minutes
                raise value.error(
                    f'"{value.key or name}": {value.raw} seconds: quote durations, as in "2m"'
                )
            self.warn(
                value, f'"{value.key or name}" is taken for {value.raw} s: write "{value.raw}s"'
            )
            return value.raw * SECOND_NS
        try:
            return parse_duration(as_text(value))
        except ValueError as err:
            raise value.error(f'"{value.key or name}": {err}') from err
