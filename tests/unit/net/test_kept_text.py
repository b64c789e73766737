"""Text of /metrics that is kept from one exposition to the next: never that of another moment."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

from streamd.obs import metrics
from streamd.obs.metrics import BLOCK_GAUGES, STREAM_GAUGES, KeptText, Lines, StreamSamples

VARZ = {"server_id": "ID", "server_name": "n1", "http_req_stats": {}}


def samples(number: int, messages: int, *, has_blocks: bool = True) -> StreamSamples:
    numbers = (messages, 0, 0, 0, 0, 0)
    labels = metrics.labels_of(stream_name=f"S{number}")
    groups: list[Lines] = [metrics.lines_of(STREAM_GAUGES, numbers, labels)]
    if has_blocks:
        groups.append(metrics.lines_of(BLOCK_GAUGES, (messages, messages), labels))
    return StreamSamples(numbers, groups)


def pieces(streams: Iterable[StreamSamples], kept: KeptText | None) -> Iterator[str]:
    return metrics.pieces(VARZ, {}, streams, kept=kept)


def text(streams: Iterable[StreamSamples], kept: KeptText | None = None) -> str:
    return "".join(pieces(streams, kept))


def test_what_is_kept_is_what_would_be_written_anew() -> None:
    """Streams come, go and change, wherever they stand among the others."""
    rng = random.Random(3)
    kept, streams = KeptText(), [samples(number, 1) for number in range(100)]
    for number in range(100, 400):
        at = rng.randrange(len(streams) + 1)
        what = rng.random()
        if what < 0.3 or not streams:
            streams.insert(at, samples(number, 1, has_blocks=rng.random() < 0.5))
        elif what < 0.6 and at < len(streams):
            del streams[at]
        elif at < len(streams):
            streams[at] = samples(number, rng.randrange(100))
        assert text(streams, kept) == text(streams)
    assert text([], kept) == text([])
    assert text(streams, kept) == text(streams)


def test_lines_of_quiet_streams_are_joined_once() -> None:
    kept, streams = KeptText(), [samples(number, 1) for number in range(100)]
    first = list(pieces(streams, kept))
    streams[0] = samples(0, 2)
    again = list(pieces(streams, kept))
    are_same = [one is other for one, other in zip(first, again, strict=True) if '"S50"' in one]
    assert are_same and all(are_same)
    assert sum(one != other for one, other in zip(first, again, strict=True)) < len(first) / 2


def test_expositions_that_are_made_at_the_same_time_do_not_mix() -> None:
    kept = KeptText()
    moments = [
        [samples(number, moment) for number in range(count)]
        for moment, count in enumerate((100, 40, 0, 130))
    ]
    being_made = [(moment, pieces(moment, kept), list[str]()) for moment in moments]
    unfinished = list(being_made)
    while unfinished:
        for one in list(unfinished):
            piece = next(one[1], None)
            if piece is None:
                unfinished.remove(one)
            else:
                one[2].append(piece)
    for moment, _, found in being_made:
        assert "".join(found) == text(moment)


def test_what_is_gone_is_forgotten() -> None:
    kept = KeptText()
    text([samples(number, 1) for number in range(100)], kept)
    assert sorted(kept.chunks(STREAM_GAUGES)) == [0, 1, 2, 3]
    text([samples(number, 1, has_blocks=False) for number in range(40)], kept)
    assert sorted(kept.chunks(STREAM_GAUGES)) == [0, 1]
    assert not kept.chunks(BLOCK_GAUGES)
