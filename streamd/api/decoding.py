"""Requests of the JetStream API: JSON to a dict of known fields, refused as nats-server refuses.

A request has a `Shape`: its fields and their types. Decoding is strict: a field the shape does not
have is an error, and so is a value of another type. Field names match in any case. The texts of
the errors are nats-server's own (it decodes with Go's encoding/json), because clients show them to
people and tests compare them. A good request costs one C call and one walk; only a bad one is
scanned by hand for the words of its refusal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final, NoReturn, TypeAlias

from streamd import errors, go_json
from streamd.api import times
from streamd.errors import JsError
from streamd.go_json import Number
from streamd.types import Document

INT_RANGES: Final = {
    "int": (-(1 << 63), (1 << 63) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint64": (0, (1 << 64) - 1),
    "time.Duration": (-(1 << 63), (1 << 63) - 1),
    "server.ConnState": (-(1 << 63), (1 << 63) - 1),
}
_SPACE: Final = " \t\r\n"
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_NO_DIGITS = re.compile(r"\.|[eE][+-]?")  # where a fraction or an exponent should be
_DEPTH_MAX: Final = 100  # of nesting; the deepest request has five


class _Refused(Exception):
    """A value that is not what its field wants; the text is the whole reason."""

    field = ""  # with those it is in, outermost first


class Shape:
    """The fields of one JSON object and their types.

    A type is a name ("string", "bool", one of INT_RANGES, "time.Time"), an `Enum`, a `Shape`, or a
    one-item list or dict holding the type of the elements.
    """

    def __init__(self, name: str, fields: Mapping[str, FieldType]) -> None:
        self.name = name  # nats-server's name of the struct, for its error texts
        self.fields = fields

    def find(self, key: str) -> str | None:
        """Return the field called `key`, in whatever case it is written."""
        if key in self.fields:
            return key
        lowered = key.lower()
        return lowered if lowered in self.fields else None


class Enum:
    """A string field with a fixed set of values; anything else is refused with `refusal`.

    `refusal` gets the value as JSON text and returns the reason.
    """

    def __init__(self, values: dict[str, str], refusal: Callable[[str], str]) -> None:
        self.values = values
        self.refusal = refusal


FieldType: TypeAlias = "str | Enum | Shape | list[FieldType] | dict[str, str]"


def decode(body: bytes, shape: Shape, *, is_strict: bool = True) -> Document:
    """Return the fields given in `body`, by the names the shape has for them.

    An empty body is an empty object. Absent and null fields are absent from the result. Raises
    JsError 10025.
    """
    text = body.decode("utf-8", "replace")
    out: Document = {}
    position = _skip_space(text, 0)
    while position < len(text):
        # nats-server decodes value after value into the same struct until the end of the body.
        value, position = _parse(text, position)
        try:
            _fill_top(out, value, shape, is_strict)
        except _Refused as err:
            raise _invalid(err) from None
        position = _skip_space(text, position)
    return out


def decode_one(body: bytes, shape: Shape) -> Document:
    """`decode` of a body that holds one value and nothing else, in which unknown fields are passed
    over. Raises JsError 10025."""
    text = body.decode("utf-8", "replace")
    value, end = _parse(text, _skip_space(text, 0))
    end = _skip_space(text, end)
    if end < len(text):
        raise errors.INVALID_JSON(err=_bad(text, end, "after top-level value"))
    out: Document = {}
    try:
        _fill_top(out, value, shape, is_strict=False)
    except _Refused as err:
        raise _invalid(err) from None
    return out


def _invalid(err: _Refused) -> JsError:
    refusal = errors.INVALID_JSON(err=err)
    refusal.field = err.field
    return refusal


def is_empty_request(body: bytes) -> bool:
    """True for the bodies that mean "nothing asked": none, or an empty object."""
    stripped = body.strip()
    is_object = stripped[:1] == b"{" and stripped[-1:] == b"}"
    return not body or (is_object and not stripped[1:-1].strip())


def decode_optional(body: bytes, shape: Shape) -> Document:
    """`decode` of a body that begins as a JSON object or array; any other asks for nothing."""
    return decode(body, shape) if body.lstrip()[:1] in (b"{", b"[") else {}


# --- values -------------------------------------------------------------------------------------


def _fill_top(out: Document, value: object, shape: Shape, is_strict: bool) -> None:
    if value is None:
        return
    if not isinstance(value, dict):
        raise _Refused(go_json.misfit(go_json.kind(value), "Go value", f"server.{shape.name}"))
    _fill(out, value, shape, shape.name, is_strict)


def _fill(out: Document, given: Document, shape: Shape, path: str, is_strict: bool) -> None:
    for key, value in given.items():
        field = shape.find(key)
        if field is None:
            if is_strict:
                unknown = _Refused(f"json: unknown field {json.dumps(key, ensure_ascii=False)}")
                unknown.field = key
                raise unknown
            continue
        wanted = shape.fields[field]
        if value is None and not isinstance(wanted, Enum):
            continue
        try:
            out[field] = _convert(value, wanted, f"{path}.{field}", is_strict)
        except _Refused as err:
            err.field = f"{field}.{err.field}" if err.field else field
            raise


def _convert(value: object, wanted: FieldType, path: str, is_strict: bool) -> object:
    if isinstance(wanted, str):
        return _convert_plain(value, wanted, path)
    if isinstance(wanted, Enum):
        if isinstance(value, str) and not isinstance(value, Number) and value in wanted.values:
            return wanted.values[value]
        raise _Refused(wanted.refusal(_as_text(value)))
    if isinstance(wanted, Shape):
        if not isinstance(value, dict):
            raise _Refused(_mismatch(value, path, f"server.{wanted.name}"))
        inner: Document = {}
        _fill(inner, value, wanted, path, is_strict)
        return inner
    if isinstance(wanted, list):
        if not isinstance(value, list):
            raise _Refused(_mismatch(value, path, f"[]{_type_name(wanted[0])}"))
        return [
            _zero(wanted[0])
            if item is None
            else _convert(item, wanted[0], f"{path}.{position}", is_strict)
            for position, item in enumerate(value)
        ]
    if not isinstance(value, dict):
        raise _Refused(_mismatch(value, path, "map[string]string"))
    return {
        _clean(key): "" if item is None else _convert_plain(item, "string", f"{path}.{key}")
        for key, item in value.items()
    }


def _zero(wanted: FieldType) -> object:
    """Return what null is as an element of a list, where it can't be left out."""
    if isinstance(wanted, Shape):
        return {}
    return "" if wanted == "string" else 0


def _convert_plain(value: object, wanted: str, path: str) -> object:
    if wanted == "string":
        if isinstance(value, str) and not isinstance(value, Number):
            return _clean(value)
    elif wanted == "bool":
        if isinstance(value, bool):
            return value
    elif wanted == "time.Time":
        if isinstance(value, str) and not isinstance(value, Number):
            try:
                return times.bounded(value)
            except ValueError as err:
                raise _Refused(str(err)) from None
    elif isinstance(value, int) and not isinstance(value, bool):
        low, high = INT_RANGES[wanted]
        if low <= value <= high:
            return value
        raise _Refused(_mismatch(value, path, wanted, literal=str(value)))
    elif isinstance(value, Number):
        raise _Refused(_mismatch(value, path, wanted, literal=str(value)))
    raise _Refused(_mismatch(value, path, wanted))


def _mismatch(value: object, path: str, wanted: str, literal: str = "") -> str:
    kind = go_json.kind(value) + (f" {literal}" if literal else "")
    # Elements of a list are named without the words "Go struct field".
    place = path if path.rpartition(".")[2].isdigit() else f"Go struct field {path}"
    return go_json.misfit(kind, place, wanted)


def _type_name(wanted: FieldType) -> str:
    if isinstance(wanted, str):
        return wanted
    return f"*server.{wanted.name}" if isinstance(wanted, Shape) else "string"


def _as_text(value: object) -> str:
    if isinstance(value, Number):
        return str(value)
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _clean(text: str) -> str:
    """Replace lone surrogates, which cannot be written as UTF-8 again."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


# --- syntax -------------------------------------------------------------------------------------


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)


_decoder = json.JSONDecoder(parse_float=Number, parse_constant=_refuse_constant)


def _parse(text: str, position: int) -> tuple[object, int]:
    try:
        value: object
        value, end = _decoder.raw_decode(text, position)
    except (ValueError, RecursionError):
        raise _syntax_error(text, position) from None
    return value, end


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in _SPACE:
        position += 1
    return position


def _syntax_error(text: str, position: int) -> JsError:
    """Return the error for the first flaw in the JSON value that begins at `position`."""
    try:
        _scan_value(text, position, 0)
    except _Refused as err:
        return errors.INVALID_JSON(err=err)
    return errors.INVALID_JSON(err="exceeded max depth")


def _bad(text: str, position: int, context: str) -> _Refused:
    if position >= len(text):
        return _Refused("unexpected EOF")
    character = text[position]
    if character == "'":
        quoted = r"'\''"
    elif character == '"':
        quoted = "'\"'"
    else:
        escaped = json.dumps(character, ensure_ascii=False)[1:-1]
        if escaped.startswith("\\u00"):
            escaped = "\\x" + escaped[4:]
        quoted = f"'{escaped}'"
    offset = len(text[:position].encode()) + 1
    return _Refused(f"invalid character {quoted} {context} at offset {offset}")


def _scan_value(text: str, position: int, depth: int) -> int:
    """Return where the value that begins at `position` ends; raises _Refused at its first flaw."""
    if depth > _DEPTH_MAX:
        raise _Refused("exceeded max depth")
    position = _skip_space(text, position)
    if position >= len(text):
        raise _Refused("unexpected EOF")
    first = text[position]
    if first == "{":
        return _scan_object(text, position, depth)
    if first == "[":
        return _scan_array(text, position, depth)
    if first == '"':
        return _scan_string(text, position)
    if first == "-" or "0" <= first <= "9":
        return _scan_number(text, position)
    for literal in ("true", "false", "null"):
        if first == literal[0]:
            for step, expected in enumerate(literal):
                if text[position + step : position + step + 1] != expected:
                    context = f"in literal {literal} (expecting '{expected}')"
                    raise _bad(text, position + step, context)
            return position + len(literal)
    raise _bad(text, position, "looking for beginning of value")


def _scan_object(text: str, position: int, depth: int) -> int:
    position = _skip_space(text, position + 1)
    if text[position : position + 1] == "}":
        return position + 1
    while True:
        if text[position : position + 1] != '"':
            raise _bad(text, position, "looking for beginning of object key string")
        position = _skip_space(text, _scan_string(text, position))
        if text[position : position + 1] != ":":
            raise _bad(text, position, "after object key")
        position = _skip_space(text, _scan_value(text, position + 1, depth + 1))
        mark = text[position : position + 1]
        if mark == "}":
            return position + 1
        if mark != ",":
            raise _bad(text, position, "after object key:value pair")
        position = _skip_space(text, position + 1)


def _scan_array(text: str, position: int, depth: int) -> int:
    position = _skip_space(text, position + 1)
    if text[position : position + 1] == "]":
        return position + 1
    while True:
        position = _skip_space(text, _scan_value(text, position, depth + 1))
        mark = text[position : position + 1]
        if mark == "]":
            return position + 1
        if mark != ",":
            raise _bad(text, position, "after array element")
        position += 1


def _scan_string(text: str, position: int) -> int:
    position += 1
    while position < len(text):
        character = text[position]
        if character == '"':
            return position + 1
        if character < " ":
            raise _bad(text, position, "in string")
        if character != "\\":
            position += 1
            continue
        escape = text[position + 1 : position + 2]
        width = 6 if escape == "u" else 2
        sequence = text[position : position + width]
        if len(sequence) < width:
            break
        is_good = (
            all(digit in "0123456789abcdefABCDEF" for digit in sequence[2:])
            if escape == "u"
            else escape in '"\\/bfnrt'
        )
        if not is_good:
            offset = len(text[: position + width].encode())
            raise _Refused(f"invalid escape sequence `{sequence}` in string at offset {offset}")
        position += width
    raise _Refused("unexpected EOF")


def _scan_number(text: str, position: int) -> int:
    found = _NUMBER.match(text, position)
    if found is None:
        raise _bad(text, position + 1, "in numeric literal")
    fraction, exponent = found.groups()
    begun = _NO_DIGITS.match(text, found.end())
    if begun is not None and not exponent and not (fraction and begun[0] == "."):
        raise _bad(text, begun.end(), "in numeric literal")
    return found.end()
