"""Subject transforms: which subject a message goes out under when it is republished.

A transform has a source pattern and a destination whose tokens may be `$1` or `{{wildcard(1)}}`,
the token that the source's first `*` stood for, and so on; a final `>` carries the rest over.
"""

from __future__ import annotations

import re

from streamd import subjects

_REFERENCE = re.compile(rb"\$(\d+)|\{\{\s*(?:[wW]ildcard)\s*\(\s*(\d+)\s*\)\s*\}\}")


class Transform:
    """Compiled transform of a subject. Raises ValueError if source and destination do not fit."""

    def __init__(self, source: bytes, destination: bytes) -> None:
        self._source = source or b">"
        if not subjects.is_valid(self._source):
            raise ValueError("invalid subject")
        from_tokens = self._source.split(b".")
        self._has_rest = from_tokens[-1] == b">"
        wildcards = [at for at, token in enumerate(from_tokens) if token == b"*"]
        # Each destination token is fixed bytes, or the place of a token of the subject.
        self._parts: list[bytes | int] = []
        self._rest_from = len(from_tokens) - 1
        to_tokens = destination.split(b".") if destination else []
        for at, token in enumerate(to_tokens):
            found = _REFERENCE.fullmatch(token)
            if found is not None:
                number = int(found.group(1) or found.group(2))
                if not 1 <= number <= len(wildcards):
                    raise ValueError("wildcard index out of range")
                self._parts.append(wildcards[number - 1])
            elif token == b">":
                if at != len(to_tokens) - 1 or not self._has_rest:
                    raise ValueError("destination has a rest that the source has not")
            elif token == b"*" or not subjects.is_valid(token):
                raise ValueError("invalid subject")
            else:
                self._parts.append(token)
        if to_tokens and self._has_rest and to_tokens[-1] != b">":
            raise ValueError("source has a rest that the destination has not")
        self._is_identity = not to_tokens

    def apply(self, subject: bytes) -> bytes | None:
        """Return what `subject` becomes; None if the source does not match it."""
        if not subjects.matches(self._source, subject):
            return None
        if self._is_identity:
            return subject
        tokens = subject.split(b".")
        out = [part if isinstance(part, bytes) else tokens[part] for part in self._parts]
        if self._has_rest:
            out += tokens[self._rest_from :]
        return b".".join(out)
