"""Messages of other streams in a stream machine: each once, with seqs and times as is due."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.machine import commands
from streamd.machine.streams.origins import index_name, named_in_header, short_hash
from streamd.machine.streams.stream import StreamMachine
from streamd.store.blocks.block_codec import BlockCodec
from tests.unit.machine.box import START_NS, Box

SOURCE: dict[str, Any] = {"name": "O"}
NAME = index_name({"name": "O"})


def mirror(**config: Any) -> Box:
    return Box(subjects=[], mirror={"name": "O"}, duplicate_window=0, **config)


def bring(
    box: Box,
    seqs: list[int],
    *,
    after: int,
    last: int = 0,
    times: list[int] | None = None,
    headers: bytes = b"",
    name: str = "",
    identity: str = "",
    payload: bytes = b"x",
    room: int | None = None,
) -> Any:
    """`room`: bytes that the account has left; None: enough."""
    if times is None:
        times = [START_NS + 1000 * seq for seq in seqs] if not name else []
    msgs = [[b"a.%d" % (seq % 3), headers, payload] for seq in seqs]
    last = last or (seqs[-1] if seqs else after)
    more = [] if room is None else [room]
    return box.do(commands.COPY, name, identity, after, last, seqs, times, msgs, *more)


def restored(box: Box) -> StreamMachine:
    return StreamMachine.restore(
        box.machine.snapshot(),
        None,
        codec=BlockCodec(),
        columns=box.blocks,
        scan=box.blocks.scan,
        block_bytes=box.block_bytes,
    )


def test_mirror_keeps_seqs_times_and_gaps() -> None:
    box = mirror()
    assert bring(box, [3, 4, 7], after=0) == 7
    state = box.machine.state()
    assert (state["first_seq"], state["last_seq"], state["messages"]) == (3, 7, 3)
    assert state["num_deleted"] == 2
    for seq in (3, 4, 7):
        message = box.read(seq)
        assert message is not None and message.ts == START_NS + 1000 * seq
    assert restored(box).fingerprint() == box.machine.fingerprint()


def test_what_was_taken_before_is_not_taken_again() -> None:
    box = mirror()
    assert bring(box, [1, 2], after=0) == 2
    assert bring(box, [1, 2, 3], after=0) == 2  # of a leader that knew less
    assert box.machine.index.count == 2
    assert bring(box, [3], after=2) == 3


def test_times_of_a_mirror_never_go_back() -> None:
    box = mirror()
    bring(box, [1, 2, 3], after=0, times=[START_NS + 50, START_NS + 20, START_NS + 60])
    found = [box.read(seq).ts - START_NS for seq in (1, 2, 3)]  # type: ignore[union-attr]
    assert found == [50, 50, 60]


def test_empty_mirror_is_moved_to_where_its_origin_begins() -> None:
    box = mirror()
    assert bring(box, [], after=0, last=499) == 499
    assert (box.machine.index.first_seq, box.machine.index.last_seq) == (500, 499)


def test_full_mirror_that_discards_new_stops_and_goes_on() -> None:
    box = mirror(max_msgs=2, discard="new")
    assert bring(box, [1, 2, 3], after=0) == 2
    assert bring(box, [3], after=2) == 2
    box.do(commands.DELETE_MSG, 1, False)
    assert bring(box, [3], after=2) == 3


@pytest.mark.parametrize("name", ["", NAME])
def test_a_full_account_is_brought_the_rest_later(name: str) -> None:
    """Messages are taken as long as they fit, the rest when there is room."""
    box = Box(sources=[SOURCE], duplicate_window=0) if name else mirror()
    size = box.machine.index.sizes.of_message((b"a.1", b"", b"x"))
    assert bring(box, [1, 2, 3], after=0, room=3 * size - 1, name=name) == 2
    assert box.machine.index.count == 2
    assert bring(box, [3], after=2, room=0, name=name) == 2
    assert bring(box, [3, 4], after=2, room=2 * size, name=name) == 4
    assert box.machine.index.count == 4
    assert restored(box).fingerprint() == box.machine.fingerprint()


def test_ids_that_were_seen_need_no_room() -> None:
    box = Box(sources=[SOURCE])
    headers = b"NATS/1.0\r\nNats-Msg-Id: m\r\n\r\n"
    assert bring(box, [1, 2], after=0, name=NAME, headers=headers) == 2
    assert bring(box, [3, 4], after=2, name=NAME, headers=headers, room=0) == 4
    assert box.machine.index.count == 1


def test_limits_of_a_mirror_are_its_own() -> None:
    box = mirror(max_msgs_per_subject=1)
    bring(box, [1, 2, 3, 4, 5], after=0)
    assert list(box.machine.index.live.seqs(1, 5)) == [3, 4, 5]


def test_promoted_mirror_takes_nothing_more() -> None:
    box = mirror()
    bring(box, [1, 2], after=0)
    box.config(mirror=None, subjects=["a.>"])
    assert bring(box, [3], after=2) == 2
    assert box.put(b"a.b") == 3


def test_ttl_counts_from_the_origins_time_where_the_mirror_allows_it() -> None:
    headers = b"NATS/1.0\r\nNats-TTL: 5\r\n\r\n"
    box = mirror(allow_msg_ttl=True)
    bring(box, [1], after=0, headers=headers)
    assert box.machine.next_expiry_ns() == START_NS + 1000 + 5_000_000_000
    plain = mirror()
    bring(plain, [1], after=0, headers=headers)
    assert plain.machine.next_expiry_ns() == 0


def test_a_mirror_knows_no_ids_and_fires_no_schedules() -> None:
    box = mirror()
    ids = b"NATS/1.0\r\nNats-Msg-Id: m\r\n\r\n"
    assert bring(box, [1, 2], after=0, headers=ids) == 2
    assert box.machine.index.count == 2
    plan = b"NATS/1.0\r\nNats-Schedule: @every 1s\r\nNats-Schedule-Target: a.t\r\n\r\n"
    bring(box, [3], after=2, headers=plan)
    assert box.machine.index.count == 3 and not box.machine.content.schedules


def test_rollup_of_a_mirror_needs_its_permission() -> None:
    headers = b"NATS/1.0\r\nNats-Rollup: all\r\n\r\n"
    for allows, left in ((False, 3), (True, 1)):
        box = mirror(allow_rollup_hdrs=allows)
        bring(box, [1, 2], after=0)
        bring(box, [3], after=2, headers=headers)
        assert box.machine.index.count == left


def test_source_gives_new_seqs_and_remembers_its_position() -> None:
    box = Box(sources=[SOURCE], duplicate_window=0)
    box.put(b"a.own")
    assert bring(box, [4, 9], after=0, name=NAME, identity="one") == 9
    assert box.machine.index.last_seq == 3
    stored = box.read(3)
    assert stored is not None and box.now <= stored.ts < box.now + 1000  # not when O stored it
    assert bring(box, [4, 9], after=0, name=NAME, identity="one") == 9
    box.do(commands.PURGE, b"", 0, 0)
    again = restored(box)
    assert again.content.origins.positions == {NAME: ("one", 9)}
    assert again.fingerprint() == box.machine.fingerprint()


def test_origin_created_anew_is_taken_from_its_beginning() -> None:
    box = Box(sources=[SOURCE], duplicate_window=0)
    bring(box, [1, 2], after=0, name=NAME, identity="one")
    assert bring(box, [1], after=0, name=NAME, identity="two") == 1
    assert box.machine.index.count == 3
    assert box.machine.content.origins.positions == {NAME: ("two", 1)}


def test_source_skips_ids_that_were_seen() -> None:
    box = Box(sources=[SOURCE])
    headers = b"NATS/1.0\r\nNats-Msg-Id: m\r\n\r\n"
    bring(box, [1, 2], after=0, name=NAME, headers=headers)
    assert box.machine.index.count == 1
    assert box.put(b"a.b", Msg_Id="m") == (commands.DUPLICATE, 1)
    assert box.machine.content.origins.positions[NAME].seq == 2


def test_full_destination_takes_the_rest_later() -> None:
    box = Box(sources=[SOURCE], max_msgs=2, discard="new")
    assert bring(box, [1, 5, 6], after=0, name=NAME) == 5
    box.do(commands.DELETE_MSG, 1, False)
    assert bring(box, [6], after=5, name=NAME) == 6


def test_source_that_is_not_configured_brings_nothing() -> None:
    box = Box(duplicate_window=0)
    assert bring(box, [1], after=0, name=NAME) == 0
    assert not box.machine.index.count


def test_large_payloads_have_their_times() -> None:
    box = mirror(block_bytes=1 << 20)
    bring(box, [1, 2], after=0, payload=b"y" * 5000)
    message = box.read(2)
    assert message is not None and (message.ts, len(message.payload)) == (START_NS + 2000, 5000)


def test_header_tells_index_name_and_position() -> None:
    transforms: Any = [{"src": "b.0", "dest": "t.0"}, {"src": "b.2", "dest": ""}]
    name = index_name({"name": "SB", "subject_transforms": transforms})
    header = b"SB 12 b.0\fb.2 t.0\f> b.0 uoDGYapx"
    assert named_in_header(header) == (name, ("uoDGYapx", 12))
    assert named_in_header(b"nothing of the kind") is None


def test_index_names_tell_what_is_not_an_origin_of_this_account() -> None:
    """By hashes that nats-server makes, too: its headers are read again after a restore."""
    external: Any = {"name": "O", "external": {"api": "x.api", "deliver": "d"}}
    assert index_name(external) == f"O:{short_hash('x.api')} > >"
    used: Any = {"name": "O", "consumer": {"name": "C", "deliver_subject": "d"}}
    assert index_name(used) == f"O:C={short_hash('C')} > >"
    start: Any = {"name": "O", "opt_start_seq": 7, "filter_subject": ">"}
    assert index_name(start) == index_name({"name": "O"})


def counter_box() -> Box:
    return Box(sources=[SOURCE], duplicate_window=0, allow_msg_counter=True)


def bring_count(box: Box, seq: int, value: int, *, after: int) -> Any:
    """A counter's message of the origin, whose total is `value` then."""
    headers = b"NATS/1.0\r\nNats-Incr: 9\r\nNats-Stream-Source: O %d > > o.x one\r\n\r\n" % seq
    msg = [b"a.x", headers, b'{"val":"%d"}' % value]
    return box.do(commands.COPY, NAME, "one", after, seq, [seq], [], [msg])


def test_counter_moves_as_its_origin_did() -> None:
    """Not to where that stands: it has increments of its own. Nothing is counted twice, though the
    origin's total comes again with each message."""
    box = counter_box()
    assert bring_count(box, 1, 5, after=0) == 1
    box.put(b"a.x", b"", Incr="100")
    assert bring_count(box, 4, 7, after=1) == 4
    message = box.read(3)
    assert message is not None and message.payload == b'{"val":"107"}'
    assert b"Nats-Incr: 2\r\n" in message.headers
    assert b'Nats-Counter-Sources: {"O":{"o.x":"7"}}' in message.headers
    assert restored(box).content.counters.of(b"a.x") == box.machine.content.counters.of(b"a.x")


def test_what_is_no_counters_message_is_left_out() -> None:
    box = counter_box()
    assert bring(box, [1, 2], after=0, name=NAME) == 2
    assert not box.machine.index.count
