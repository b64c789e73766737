"""The configuration grammar over generated text: JSON is a subset, and garbage is only refused."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.config import grammar, reader
from streamd.config.options import finish
from streamd.errors import ConfigError

# Strings without control characters: JSON's \u escapes are not part of nats-server's grammar.
words = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8)
keys = st.text(st.sampled_from("abcxyz_09 :="), min_size=1, max_size=6)
scalars = st.booleans() | st.integers(-(2**62), 2**62) | words
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
pieces = st.lists(
    st.sampled_from(
        ["port", "users", "jetstream", "include", "'", '"', "{", "}", "[", "]", "(", ")", ":", "=",
         ",", ";", "\n", " ", "#", "//", "$X", "$2a$11$x", "-1", "5", "10MB", "2.5", "true", "x",
         "\\", "\\x4", "authorization", "'5s'", "permissions", "\t", "\r", "é"]
    ),
    max_size=24,
).map("".join)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(keys, values, max_size=5), st.sampled_from([None, 2]))
def test_json_documents_mean_what_they_mean_as_json(document: Any, indent: int | None) -> None:
    """Dumped as JSON, compact or over many lines, a document reads back as itself."""
    text = json.dumps(document, indent=indent, ensure_ascii=False)
    assert grammar.parse(text, environ={}).plain() == document


@settings(max_examples=300, deadline=None)
@given(pieces)
def test_garbage_is_refused_or_read_but_never_breaks(text: str) -> None:
    """Whatever the text, the outcome is options or a ConfigError with a place inside the text."""
    try:
        root = grammar.parse(text, "x.conf", environ={"X": "7"})
        grammar.digest(root)
        finish(reader.from_tree(root))
    except ConfigError as err:
        assert err.line <= text.count("\n") + 1
