"""Schemas of what `streamctl --output json` prints, by command: `check_output`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jsonschema

from streamd.ctl.command_groups import COMMANDS


@cache
def schemas() -> dict[str, Any]:
    """Return the schema of each command, and the definitions that they share."""
    text = (files("streamd.ctl") / "schemas" / "outputs.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def check_output(words: Sequence[str], text: str) -> None:
    """Raise ValidationError if the output of the command line `words` is not as its schema says.
    Commands that go on print a document a line."""
    plain = [word for word in words if not word.startswith("-")]
    at = next(i for i, word in enumerate(plain) if word in COMMANDS)
    outputs = schemas()["outputs"]
    name = next(n for n in (" ".join(plain[at : at + 2]), plain[at]) if n in outputs)
    is_lines = outputs[name].get("x-lines", False)
    for part in text.splitlines() if is_lines else [text]:
        _validator(name).validate(json.loads(part))


@cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    known = schemas()
    return jsonschema.Draft202012Validator({"$defs": known["$defs"], **known["outputs"][name]})
