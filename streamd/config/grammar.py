"""nats-server's configuration grammar: text in, a tree of values with their places out.

JSON is a subset of it. A value keeps its file, line and column, so that whoever interprets the
tree (`options.py`) can say where a wrong value stands, and remembers whether it was used as a
variable: an unknown key is an error unless it was only defined to be referred to.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias, Union

from streamd.errors import ConfigError, ConfigSyntaxError
from streamd.limits import CONFIG_DEPTH_MAX

Reader = Callable[[str], str]
Scalar: TypeAlias = str | int | float | bool
Raw: TypeAlias = Union[Scalar, "list[Value]", "dict[str, Value]"]
Plain: TypeAlias = Union[Scalar, "list[Plain]", "dict[str, Plain]"]


class Value:
    """A value of the tree: a scalar, a list or a block."""

    __slots__ = ("col", "file", "is_referred_to", "key", "line", "raw")

    def __init__(self, raw: Raw, file: str, line: int, col: int) -> None:
        self.raw = raw
        self.file = file
        self.line = line
        self.col = col
        self.key = ""  # the setting it is the value of, as in `cluster.name`; its reader sets it
        self.is_referred_to = False

    def error(self, text: str) -> ConfigError:
        """Return (not raise) an error that names this value's place."""
        return ConfigError(text, self.file, self.line, self.col)

    def plain(self) -> Plain:
        """Return the value as ordinary lists, dicts and scalars, without places."""
        if isinstance(self.raw, dict):
            return {key: value.plain() for key, value in self.raw.items()}
        if isinstance(self.raw, list):
            return [value.plain() for value in self.raw]
        return self.raw


def parse(text: str, file: str = "", *, environ: Mapping[str, str] | None = None) -> Value:
    """Parse configuration text. Raises ConfigError with the place of the first mistake."""
    return _Parser(text, file, os.environ if environ is None else environ, _read_text).document()


def parse_file(path: str) -> Value:
    """Parse the configuration file at `path` and what it includes."""
    root = parse(_read_text(path), path)
    if not root.raw:
        raise ConfigError(f"{path}: config has no values or is empty", path)
    return root


def digest(root: Value) -> str:
    """Return `sha256:...` of the parsed content: the very digest that nats-server prints.

    Comments, order and layout do not count.
    """
    text = json.dumps(root.plain(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for char in "&<>\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return "sha256:" + hashlib.sha256(text.encode(errors="replace") + b"\n").hexdigest()


def _read_text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError as err:
        raise ConfigError(f"{path}: not UTF-8 text", path) from err
    except OSError as err:
        raise ConfigError(f"open {path}: {(err.strerror or str(err)).lower()}", path) from err


_SPACES = " \t\r"
_WORD_ENDS = " \t\r\n;,]}"
_INTEGER = re.compile(r"[+-]?\d+\Z")
_SIZE = re.compile(r"(-?\d+)([kmgtpe])(b|i|ib)?\Z", re.IGNORECASE)
_FLOAT = re.compile(r"-?\d+\.\d+\Z")
_BCRYPT = re.compile(r"2[abxy]\$\d\d\$")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", '"': '"', "\\": "\\"}


class _Parser:
    """A recursive-descent reader of one file; `include` starts another one in the same scope."""

    def __init__(
        self, text: str, file: str, environ: Mapping[str, str], read: Reader, depth: int = 0
    ) -> None:
        self._text = text
        self._file = file
        self._environ = environ
        self._read = read
        self._depth = depth
        self._position = 0
        self._scopes: list[dict[str, Value]] = []
        self._expanding: frozenset[str] = frozenset()

    def document(self) -> Value:
        members: dict[str, Value] = {}
        root = Value(members, self._file, 1, 1)
        self._fill(members)
        return root

    def _fill(self, into: dict[str, Value]) -> None:
        """Read the whole text as the members of one map."""
        self._scopes.append(into)
        self._skip_blanks(newlines=True)
        is_braced = self._peek() == "{"  # the outer braces of a JSON document
        if is_braced:
            self._position += 1
        while True:
            self._skip_blanks(newlines=True, others=";,")
            char = self._peek()
            if not char:
                break
            if char == "}":
                if not is_braced:  # more likely one too many than meant
                    raise self._error("Unexpected '}': no block is open.")
                is_braced = False
                self._position += 1
                continue
            self._member(into)
            self._end_of_value(
                "", "Expected a top-level value to end with a new line, comment or EOF"
            )
        self._scopes.pop()

    # --- places and errors --------------------------------------------------------------------

    def _place(self, position: int) -> tuple[int, int]:
        before = self._text.count("\n", 0, position)
        return before + 1, position - self._text.rfind("\n", 0, position)

    def _value(self, raw: Raw, position: int) -> Value:
        return Value(raw, self._file, *self._place(position))

    def _error(self, text: str, position: int | None = None) -> ConfigError:
        at = self._position if position is None else position
        line, col = self._place(min(at, len(self._text)))
        return ConfigSyntaxError(text, self._file, line, col)

    def _mistake(self, text: str, position: int) -> ConfigError:
        """An error in what the text refers to; the text itself is well formed."""
        return ConfigError(text, self._file, *self._place(position))

    # --- small steps --------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._text[self._position : self._position + 1]

    def _skip_blanks(self, *, newlines: bool, others: str = "") -> None:
        """Skip spaces and comments, and newlines and `others` too where they mean nothing."""
        blanks = _SPACES + ("\n" if newlines else "") + others
        text, size = self._text, len(self._text)
        at = self._position
        while at < size:
            char = text[at]
            if char in blanks:
                at += 1
            elif char == "#" or text.startswith("//", at):
                end = text.find("\n", at)
                at = size if end < 0 else end
            else:
                break
        self._position = at

    def _end_of_value(self, closing: str, complaint: str) -> None:
        """Step over what may follow a value: blanks, then a terminator (a closing stays)."""
        self._skip_blanks(newlines=False)
        char = self._peek()
        if char and (char in "\n;," or (char == "}" and not closing)):
            self._position += 1
        elif char and char not in (closing or "}"):
            raise self._error(f"{complaint}, but got '{char}' instead.")

    # --- members, maps, arrays ----------------------------------------------------------------

    def _member(self, into: dict[str, Value]) -> None:
        start = self._position
        key = self._key()
        if (
            key == "include"
            and self._text[start] not in "\"'"
            and self._peek() in ("'", '"', " ", "\t")
        ):
            self._skip_blanks(newlines=False)
            if self._peek() not in (":", "=", "{"):
                self._include(into)
                return
        self._skip_blanks(newlines=True)
        if self._peek() and self._peek() in ":=":
            self._position += 1
            self._skip_blanks(newlines=False)
            if self._peek() == "\n":
                raise self._error("Expected value but found new line")
        if not self._peek():
            raise self._error(f"Unexpected EOF: key '{key}' has no value.")
        value = self._any_value()
        # Errors about a member point at its key, behind the quote if it has one.
        value.line, value.col = self._place(start + (self._text[start] in "\"'"))
        value.file = self._file
        into[key] = value

    def _key(self) -> str:
        quote = self._peek()
        start = self._position
        if quote in ("'", '"'):
            end = self._text.find(quote, start + 1)
            if end < 0 or "\n" in self._text[start:end]:
                raise self._error("Unexpected EOF in a quoted key.", start)
            self._position = end + 1
            return self._text[start + 1 : end]
        if quote in (":", "="):
            raise self._error(f"Unexpected key separator '{quote}'.")
        if quote in ("]", "["):
            raise self._error(f"Unexpected array end '{quote}' processing map.")
        at, size = start, len(self._text)
        while at < size and self._text[at] not in " \t\r\n:={":
            at += 1
        self._position = at
        if at == start:
            raise self._error(f"Expected a key, but got '{quote}' instead.")
        return self._text[start:at]

    def _include(self, into: dict[str, Value]) -> None:
        start = self._position
        name = self._any_value().raw
        if not isinstance(name, str):
            raise self._mistake("include needs a file name", start)
        if self._depth >= CONFIG_DEPTH_MAX:
            raise self._mistake(f"includes nest deeper than {CONFIG_DEPTH_MAX}: '{name}'", start)
        path = os.path.normpath(os.path.join(os.path.dirname(self._file), name))
        try:
            text = self._read(path)
        except ConfigError as err:
            raise self._mistake(f"error parsing include file '{name}', {err.text}", start) from err
        inner = _Parser(text, path, self._environ, self._read, self._depth + 1)
        inner._scopes = list(self._scopes[:-1])  # the included keys land in the open scope
        inner._fill(into)

    def _any_value(self) -> Value:
        start = self._position
        char = self._peek()
        if char == "{":
            return self._map()
        if char == "[":
            return self._array()
        if char == "(":
            return self._block()
        if char == '"':
            return self._value(self._double_quoted(), start + 1)
        if char == "'":
            end = self._text.find("'", start + 1)
            if end < 0:
                raise self._error("Unexpected EOF.", len(self._text))
            self._position = end + 1
            return self._value(self._text[start + 1 : end], start + 1)
        return self._bare()

    def _nested(self) -> None:
        self._depth += 1
        if self._depth > CONFIG_DEPTH_MAX:
            raise self._error(f"blocks nest deeper than {CONFIG_DEPTH_MAX}")

    def _map(self) -> Value:
        self._nested()
        members: dict[str, Value] = {}
        found = self._value(members, self._position)
        self._position += 1
        self._scopes.append(members)
        while True:
            self._skip_blanks(newlines=True, others=";,")
            char = self._peek()
            if not char:
                raise self._error("Unexpected EOF processing map.")
            if char == "}":
                self._position += 1
                break
            self._member(members)
            self._end_of_value("}", 'Expected a map value terminator "," or a map terminator "}"')
        self._scopes.pop()
        self._depth -= 1
        return found

    def _array(self) -> Value:
        self._nested()
        elements: list[Value] = []
        found = self._value(elements, self._position)
        self._position += 1
        while True:
            self._skip_blanks(newlines=True)
            char = self._peek()
            if not char:
                raise self._error("Unexpected EOF processing array.")
            if char == "]":
                self._position += 1
                break
            if char == ",":
                raise self._error("Unexpected array value terminator ','.")
            element = self._any_value()
            if isinstance(element.raw, dict):  # errors about one point behind it
                element.line, element.col = self._place(self._position)
            elements.append(element)
            self._end_of_value(
                "]", 'Expected an array value terminator "," or an array terminator "]"'
            )
        self._depth -= 1
        return found

    # --- scalars ------------------------------------------------------------------------------

    def _block(self) -> Value:
        """`(` ... a line with only `)`: everything between, verbatim."""
        start = self._position
        end = re.compile(r"^[ \t]*\)", re.MULTILINE).search(self._text, start)
        if end is None:
            raise self._error("Unexpected EOF processing block.", len(self._text))
        self._position = end.end()
        return self._value(self._text[start + 1 : end.start()], start)

    def _double_quoted(self) -> str:
        text, at = self._text, self._position + 1
        parts: list[str] = []
        while True:
            char = text[at : at + 1]
            if not char:
                raise self._error("Unexpected EOF.", at)
            if char == '"':
                self._position = at + 1
                return "".join(parts)
            if char != "\\":
                parts.append(char)
                at += 1
                continue
            escape = text[at + 1 : at + 2]
            if escape == "x":
                digits = text[at + 2 : at + 4]
                if not re.fullmatch(r"[0-9a-fA-F]{2}", digits):
                    raise self._error(
                        f"Expected two hexadecimal digits after '\\x', but got '{digits}' instead.",
                        at,
                    )
                parts.append(chr(int(digits, 16)))
                at += 4
            elif escape in _ESCAPES and escape:
                parts.append(_ESCAPES[escape])
                at += 2
            else:
                raise self._error(
                    f"Invalid escape character '{escape}'. Only the following escape characters"
                    ' are allowed: \\xXX, \\t, \\n, \\r, \\", \\\\.',
                    at,
                )

    def _bare(self) -> Value:
        start = at = self._position
        text, size = self._text, len(self._text)
        while at < size and text[at] not in _WORD_ENDS:
            at += 1
        if at == start:
            got = f"'{text[at]}'" if at < len(text) else "the end of the file"
            raise self._error(f"Expected a value, but got {got} instead.")
        self._position = at
        word = text[start:at]
        if word[0] == "$" and not _BCRYPT.match(word, 1):
            return self._variable(word[1:], start)
        return self._value(_scalar(word), start)

    def _variable(self, name: str, start: int) -> Value:
        for scope in reversed(self._scopes):
            if name in scope:
                found = scope[name]
                found.is_referred_to = True
                return self._value(found.raw, start)
        line, col = self._place(start)
        if name not in self._environ:
            raise ConfigError(
                f"variable reference for '{name}' on line {line} can not be found",
                self._file,
                line,
                col,
            )
        if name in self._expanding:
            raise self._mistake(f"variable reference cycle for '{name}' on line {line}", start)
        inner = _Parser(f"{name} = {self._environ[name]}", self._file, self._environ, self._read)
        inner._expanding = self._expanding | {name}
        members: dict[str, Value] = {}
        try:
            inner._fill(members)
            found = members[name]
        except ConfigError as err:
            raise self._mistake(f"variable '{name}' has a bad value: {err.text}", start) from err
        return self._value(found.raw, start)


def _scalar(word: str) -> Scalar:
    """Interpret a bare word: number, size, boolean, else a string."""
    if _INTEGER.match(word):
        return int(word)
    if (lowered := word.lower()) in _BOOLEANS:
        return _BOOLEANS[lowered]
    if match := _SIZE.match(word):
        count, unit, binary = match.groups()
        scale: int = (1024 if binary else 1000) ** _POWERS[unit.lower()]
        return int(count) * scale
    if _FLOAT.match(word):
        return float(word)
    return word
