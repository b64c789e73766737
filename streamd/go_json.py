"""Words of Go's JSON decoder for values of the wrong type, as clients show them to people.

nats-server decodes requests with it, and tests compare the texts. Standard library only.
"""

from __future__ import annotations


class Number(str):
    """A JSON number that is not a plain integer, as it was written."""


def kind(value: object) -> str:
    """Return what Go calls the JSON value that was decoded to `value`."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float | Number):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object" if isinstance(value, dict) else "null"


def misfit(found: str, place: str, wanted: str) -> str:
    """Return the refusal of a value of the kind `found` where the type `wanted` belongs."""
    return f"json: cannot unmarshal {found} into {place} of type {wanted}"
