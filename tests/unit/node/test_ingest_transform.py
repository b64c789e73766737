"""IngestTransform: subjects are transformed once, where an entry is proposed."""

from __future__ import annotations

from typing import Any

from streamd.node.stream_groups.ingest_transform import SUBJECT_BYTES_MAX, IngestTransform


def config(source: str, destination: str) -> Any:
    return {"name": "S", "subject_transform": {"src": source, "dest": destination}}


def subjects(transform: IngestTransform, given: Any, *names: bytes, salt: int = 1) -> list[bytes]:
    msgs = [(name, b"h", b"p") for name in names]
    found = transform.apply(given, msgs, salt)
    assert [msg[1:] for msg in found] == [(b"h", b"p")] * len(names)
    return [msg[0] for msg in found]


def test_streams_without_a_transform_keep_the_very_same_list() -> None:
    msgs = [(b"a", b"", b"x")]
    assert IngestTransform().apply({"name": "S"}, msgs, 1) is msgs
    assert IngestTransform().apply(config("a", ""), msgs, 1) is msgs


def test_what_matches_is_transformed_and_the_rest_is_as_it_was() -> None:
    given = config("f.*", "g.$1")
    assert subjects(IngestTransform(), given, b"f.a", b"h", b"f.a", b"f.b.c") == [
        b"g.a", b"h", b"g.a", b"f.b.c",
    ]  # fmt: skip


def test_another_configuration_holds_at_once() -> None:
    transform = IngestTransform()
    assert subjects(transform, config("f.*", "g.$1"), b"f.a") == [b"g.a"]
    assert subjects(transform, config("f.*", "k.$1"), b"f.a") == [b"k.a"]
    assert subjects(transform, {"name": "S"}, b"f.a") == [b"f.a"]


def test_chance_spreads_messages_of_one_subject_and_depends_on_the_entry() -> None:
    given = config("f.*", "g.{{random(4)}}")
    names = [b"f.a"] * 400
    found = subjects(IngestTransform(), given, *names, salt=7)
    assert set(found) == {b"g.0", b"g.1", b"g.2", b"g.3"}
    assert subjects(IngestTransform(), given, *names, salt=7) == found
    assert subjects(IngestTransform(), given, *names, salt=8) != found


def test_a_subject_that_no_record_can_hold_is_not_made() -> None:
    given = config("f.*", "g." + ".".join(["$1"] * 100))
    long = b"f." + b"x" * (SUBJECT_BYTES_MAX // 50)
    assert subjects(IngestTransform(), given, long, b"f.y") == [
        long,
        b"g." + b".".join([b"y"] * 100),
    ]
