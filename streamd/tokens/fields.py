"""Reader of JSON objects in the way of Go's decoder, which all tools of NATS use for claims.

A field that is absent or null is the zero of its type; names are matched regardless of case; a
value of another type is an error, which names the field. Unknown fields are not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from streamd.errors import TokenError
from streamd.go_json import kind, misfit

_INT64: Final = range(-(1 << 63), 1 << 63)
T = TypeVar("T")


class Fields:
    """Fields of one JSON object; `place` is how errors name it."""

    __slots__ = ("_place", "_values")

    def __init__(self, value: Mapping[str, Any], place: str) -> None:
        self._values = {name.casefold(): field for name, field in value.items()}
        self._place = place

    @property
    def raw(self) -> Mapping[str, Any]:
        """The fields as they are in the JSON, by lower-case name."""
        return self._values

    def has(self, name: str) -> bool:
        """Return True if the field is there, and not null."""
        return self._values.get(name) is not None

    def value(self, name: str) -> Any:
        """Return the field as it is in the JSON; None if it is absent."""
        return self._values.get(name)

    def text(self, name: str) -> str:
        value = self._values.get(name)
        return "" if value is None else self._text(value, name)

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self._misfit(value, name, "bool")
        return value

    def integer(
        self, name: str, *, default: int = 0, within: range = _INT64, wanted: str = "int64"
    ) -> int:
        value = self._values.get(name)
        return default if value is None else self._integer(value, name, within, wanted)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts; an absent one is empty."""
        return tuple(
            "" if item is None else self._text(item, name) for item in self._list(name, "[]string")
        )

    def objects(self, name: str) -> Iterator[Fields | None]:
        """Yield the objects of a list; None for a null."""
        for item in self._list(name, "[]struct"):
            yield None if item is None else self._object(item, name)

    def object(self, name: str) -> Fields:
        """Return an object; an absent one is empty."""
        value = self._values.get(name)
        return self._object({} if value is None else value, name)

    def integers(self, name: str) -> dict[str, int]:
        """Return a map of names to integers."""
        found = self._map(name)
        return {key: self._integer(item, name, _INT64, "int64") for key, item in found.items()}

    def map(self, name: str, read: Callable[[Fields], T]) -> dict[str, T]:
        """Return a map of names to what `read` makes of the object of each."""
        found = self._map(name)
        return {key: read(self._object(item or {}, name)) for key, item in found.items()}

    def lists(self, name: str, read: Callable[[Fields], T]) -> dict[str, tuple[T, ...]]:
        """Return a map of names to lists of what `read` makes of objects."""
        found = {}
        for key, items in self._map(name).items():
            if not isinstance(items, list) and items is not None:
                raise self._misfit(items, name, "[]struct")
            found[key] = tuple(read(self._object(item or {}, name)) for item in items or ())
        return found

    def as_object(self, value: Any, name: str) -> Fields:
        """Return a value that was found in the field `name` as an object."""
        return self._object(value, name)

    def _text(self, value: Any, name: str) -> str:
        if not isinstance(value, str):
            raise self._misfit(value, name, "string")
        return whole_text(value)

    def _integer(self, value: Any, name: str, within: range, wanted: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._misfit(value, name, wanted)
        if value not in within:
            raise TokenError(
                misfit(f"number {value}"[:40], f"Go struct field {self._path(name)}", wanted)
            )
        return value

    def _list(self, name: str, wanted: str) -> list[Any]:
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._misfit(value, name, wanted)
        return value

    def _map(self, name: str) -> dict[str, Any]:
        value = self._values.get(name)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._misfit(value, name, "map")
        return {whole_text(key): item for key, item in value.items()}

    def _object(self, value: Any, name: str) -> Fields:
        if not isinstance(value, dict):
            raise self._misfit(value, name, "struct")
        return Fields(value, self._path(name))

    def _misfit(self, value: Any, name: str, wanted: str) -> TokenError:
        return TokenError(misfit(kind(value), f"Go struct field {self._path(name)}", wanted))

    def _path(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name


def whole_text(text: str) -> str:
    """Return `text` with each half of a surrogate pair replaced: JSON may hold one, UTF-8 not."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
