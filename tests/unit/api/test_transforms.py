"""Subject transforms as republish uses them."""

from __future__ import annotations

import pytest

from streamd.api.transforms import Transform


@pytest.mark.parametrize(
    ("source", "destination", "subject", "expected"),
    [
        (b">", b"r.>", b"a.b", b"r.a.b"),
        (b"", b"r.>", b"a", b"r.a"),
        (b"a.>", b"r.>", b"a.b.c", b"r.b.c"),
        (b"a.>", b"r.>", b"b.c", None),
        (b"a.*.*", b"x.$2.$1", b"a.1.2", b"x.2.1"),
        (b"a.*.*", b"x.{{wildcard(2)}}", b"a.1.2", b"x.2"),
        (b"a.*.>", b"x.{{ wildcard(1) }}.>", b"a.1.2.3", b"x.1.2.3"),
        (b"a.*", b"fixed", b"a.1", b"fixed"),
        (b"a.*", b"", b"a.1", b"a.1"),
        (b"a", b"b", b"a", b"b"),
    ],
)
def test_apply(source: bytes, destination: bytes, subject: bytes, expected: bytes | None) -> None:
    assert Transform(source, destination).apply(subject) == expected


@pytest.mark.parametrize(
    ("source", "destination"),
    [
        (b"a..b", b"r"),
        (b"a", b"r.>"),
        (b"a.>", b"r"),
        (b"a.*", b"r.*"),
        (b"a.*", b"r.$2"),
        (b"a.*", b"r.$0"),
        (b"a.*", b"r..b"),
        (b"a.>", b"r.>.b"),
    ],
)
def test_transforms_that_do_not_fit_are_refused(source: bytes, destination: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Transform(source, destination)
