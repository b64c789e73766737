"""Any request gets an answer or silence, never an exception: endpoints against hostile bodies."""

from __future__ import annotations

import json
from typing import Any

import msgpack
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamd.api import shapes
from streamd.api.decoding import Enum, Shape
from tests.unit.api.bed import Bed

SUBJECTS = [
    "INFO",
    "STREAM.CREATE.A",
    "STREAM.UPDATE.T",
    "STREAM.NAMES",
    "STREAM.LIST",
    "STREAM.INFO.T",
    "STREAM.PURGE.T",
    "STREAM.MSG.GET.T",
    "STREAM.MSG.DELETE.T",
    "CONSUMER.CREATE.T",
    "CONSUMER.CREATE.T.c",
    "CONSUMER.CREATE.T.c.t.1",
    "CONSUMER.DURABLE.CREATE.T.c",
    "CONSUMER.NAMES.T",
    "CONSUMER.LIST.T",
    "CONSUMER.INFO.T.c",
    "CONSUMER.PAUSE.T.c",
    "CONSUMER.RESET.T.c",
    "DIRECT.GET.T",
    "DIRECT.GET.T.t.1",
]
SHAPES = [
    shapes.STREAM_CONFIG,
    shapes.CREATE_CONSUMER,
    shapes.MSG_GET,
    shapes.STREAM_PURGE,
    shapes.STREAM_INFO,
    shapes.CONSUMER_PAUSE,
]

texts = st.sampled_from(["T", "A", "t.1", "t.>", "*", "a..b", "", " ", "q", "x/y", "\u00e9", "50%"])
numbers = st.sampled_from([-(1 << 63), -5, -1, 0, 1, 3, 100, 10**9, (1 << 63) - 1, 1 << 64])
moments = st.sampled_from(
    ["0001-01-01T00:00:00Z", "0001-01-01T00:00:01+23:00", "9999-12-31T23:59:59Z", "zz"]
)


def values(wanted: Any) -> st.SearchStrategy[Any]:
    """Mostly values of the right type, some absurd."""
    if isinstance(wanted, Shape):
        return objects(wanted)
    if isinstance(wanted, Enum):
        return st.sampled_from([*wanted.values, "zz", 5])
    if isinstance(wanted, list):
        return st.lists(values(wanted[0]), max_size=3)
    if isinstance(wanted, dict):
        return st.dictionaries(texts, texts, max_size=2)
    right = {"string": texts, "bool": st.booleans(), "time.Time": moments}.get(wanted, numbers)
    return st.one_of(right, right, right, st.none(), st.just([]), st.just(1.5))


def objects(shape: Shape) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with a few of the shape's fields; names that the subjects carry are favoured."""
    fields = st.lists(st.sampled_from(sorted(shape.fields)), max_size=5, unique=True)
    return fields.flatmap(
        lambda chosen: st.fixed_dictionaries({name: values(shape.fields[name]) for name in chosen})
    )


bodies = st.one_of(
    st.binary(max_size=12),
    st.sampled_from(SHAPES).flatmap(objects).map(json.dumps).map(str.encode),
    objects(shapes.STREAM_CONFIG).map(lambda o: json.dumps(o | {"name": "T"}).encode()),
    objects(shapes.STREAM_CONFIG).map(lambda o: json.dumps(o | {"name": "A"}).encode()),
    objects(SHAPES[1]).map(lambda o: json.dumps(o | {"stream_name": "T"}).encode()),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.sampled_from(SUBJECTS), bodies), min_size=1, max_size=6))
def test_hostile_requests_are_answered(requests: list[tuple[str, bytes]]) -> None:
    bed = Bed()
    stream = bed.make("T", subjects=["t.>"], allow_direct=True)
    for at in range(3):
        stream.store(f"t.{at}")
    for subject, body in requests:
        replies = bed.ask_raw(subject, body)
        if not subject.startswith(("DIRECT", "CONSUMER.RESET")):
            assert len(replies) == 1
            json.loads(replies[0][1])
    # What was accepted can be logged and snapshotted.
    for handle in bed.node.streams():
        handle.machine.snapshot()
    msgpack.packb(bed.node.meta.snapshot())
