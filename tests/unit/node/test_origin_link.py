"""One origin of a mirror or source: what is asked for, taken, proposed and acknowledged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamd import limits
from streamd.machine.commands import Command
from streamd.machine.streams.origins import MIRROR, index_name
from streamd.node.groups.turn import TurnTime
from streamd.node.importing.origin_link import OriginLink
from streamd.node.importing.origin_requests import Origin, origins_of

STALLED = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n"
FLOW = b"NATS/1.0 100 FlowControl Request\r\n\r\n"
ENDED = b"NATS/1.0 409 Leadership Change\r\n\r\n"


class Host:
    """LinkHost whose log takes everything, and applies it when it is told to."""

    def __init__(self, source: dict[str, Any] | None = None) -> None:
        self.now = TurnTime()
        self.now.ms = 1
        config: Any = {"name": "M", "mirror": {"name": "O"}}
        if source is not None:
            config = {"name": "M", "sources": [source]}
        (self.origin,) = origins_of(config, "")
        self.positions: dict[tuple[str, str], int] = {}
        self.log: list[Command] = []
        self.room = 1 << 62
        self.asked: list[tuple[bytes, dict[str, Any]]] = []
        self.asked_of: list[bytes] = []
        self.sent: list[tuple[bytes, bytes]] = []
        self.listening = False
        self.is_full = False
        self._tokens = 0
        self.link = OriginLink(self.origin, self)

    # LinkHost
    def position(self, name: str, identity: str) -> int:
        return self.positions.get((name, identity), 0)

    def known_identity(self, name: str) -> str:
        return next((identity for known, identity in self.positions if known == name), "")

    def propose(self, command: Command) -> int:
        if self.is_full:
            return 0
        self.log.append(command)
        return 100

    def subscribe(self, link: OriginLink, token: str, deliver: bytes, reply: bytes) -> None:
        self.listening = True

    def unsubscribe(self, link: OriginLink) -> None:
        self.listening = False

    def request(self, origin: Origin, reply: bytes, request: tuple[bytes, bytes, bytes]) -> None:
        subject, headers, payload = request
        if reply:
            self.asked.append((subject, json.loads(payload or b"{}")))
            self.asked_of.append(subject)
        else:
            self.sent.append((subject, headers))

    def new_token(self) -> str:
        self._tokens += 1
        return f"token{self._tokens}"

    # steps
    def tick(self, ms: int) -> None:
        self.now.ms += ms
        self.link.poll()

    def answer(self, *, cseq: int = 0, sseq: int = 0, pending: int = 0, identity: str = "") -> None:
        headers = f"NATS/1.0\r\nNats-Stream-Identity: {identity}\r\n\r\n".encode()
        delivered = {"consumer_seq": cseq, "stream_seq": sseq}
        body = {"config": {}, "delivered": delivered, "num_pending": pending}
        self.link.on_answer(self.link.token, headers, json.dumps(body).encode())

    def refuse(self, code: int, err_code: int, text: str = "no") -> None:
        error = {"code": code, "err_code": err_code, "description": text}
        self.link.on_answer(self.link.token, b"", json.dumps({"error": error}).encode())

    def deliver(self, *rows: tuple[int, int]) -> None:
        """(consumer seq, stream seq) each."""
        batch = [
            (b"o.a", b"$JS.ACK.O.C.1.%d.%d.%d.0" % (sseq, cseq, 1000 + sseq), b"", b"x")
            for cseq, sseq in rows
        ]
        self.link.on_messages(self.link.token, batch)
        self.link.flush()

    def status(self, headers: bytes, reply: bytes = b"") -> None:
        self.link.on_messages(self.link.token, [(b"d", reply, headers, b"")])
        self.link.flush()

    def apply(self) -> None:
        """Apply all that is proposed, as far as there is room."""
        log, self.log = self.log, []
        for command in log:
            _, _, name, identity, after, last, *_ = command
            if self.position(name, identity) == after:
                self.positions[name, identity] = min(last, self.room)
            self.link.on_applied(command, 100)


@pytest.fixture
def host() -> Host:
    made = Host()
    made.link.poll()
    made.answer()
    return made


def test_messages_become_one_entry_that_names_its_place(host: Host) -> None:
    host.deliver((1, 4), (2, 5), (3, 9))
    (command,) = host.log
    assert command[2:6] == [MIRROR, "", 0, 9]
    assert command[6] == [4, 5, 9] and command[7] == [1004, 1005, 1009]
    host.deliver((4, 10))
    assert host.log[1][4:6] == [9, 10]  # follows on the one that is not applied yet


def test_a_number_that_is_missing_ends_the_subscription(host: Host) -> None:
    host.deliver((1, 1), (3, 3))
    assert not host.listening and not host.log
    host.tick(limits.ORIGIN_RETRY_MS - 1)
    assert len(host.asked) == 1  # not twice at once
    host.tick(1)
    assert len(host.asked) == 2 and host.listening


def test_what_was_proposed_is_not_asked_for_again(host: Host) -> None:
    host.deliver((1, 1), (2, 2))
    host.tick(limits.ORIGIN_RETRY_MS)
    host.deliver((9, 9))
    host.tick(0)
    assert host.asked[-1][1]["config"]["opt_start_seq"] == 3


def test_a_heartbeat_that_knows_of_more_ends_the_subscription(host: Host) -> None:
    host.deliver((1, 1))
    host.status(STALLED % (1, 1))
    assert host.listening
    host.status(STALLED % (2, 2))
    assert not host.listening


def test_another_leader_of_the_origin_is_asked_at_once(host: Host) -> None:
    host.tick(limits.ORIGIN_RETRY_MS)
    host.status(ENDED)
    host.tick(0)
    assert len(host.asked) == 2


def test_silence_ends_the_subscription(host: Host) -> None:
    host.tick(limits.ORIGIN_SILENT_MS + 1)
    assert not host.listening
    host.tick(0)
    assert len(host.asked) == 2


def test_flow_control_is_answered_when_all_before_is_applied(host: Host) -> None:
    host.deliver((1, 7))
    host.status(FLOW, b"$JS.FC.O.C.1")
    assert not host.sent
    host.apply()
    ((subject, headers),) = host.sent
    assert subject == b"$JS.FC.O.C.1"
    assert b"Nats-Last-Consumer: 1\r\n" in headers and b"Nats-Last-Stream: 7\r\n" in headers


def test_failures_are_asked_again_later_and_later(host: Host) -> None:
    host = Host()
    host.link.poll()
    for fails in (1, 2, 3):
        host.refuse(404, 10059, "stream not found")
        error = host.link.info().error
        assert error is not None and error["err_code"] == 10059
        wait_ms = limits.ORIGIN_RETRY_MS + fails * limits.ORIGIN_BACKOFF_MS
        host.tick(wait_ms - 1)
        assert len(host.asked) == fails
        host.tick(1)
        assert len(host.asked) == fails + 1 and host.link.info().error is None


def test_no_wait_is_longer_than_two_minutes_and_an_answer_ends_them() -> None:
    """However often it failed; and after an answer the first failure counts as the first again."""
    host = Host()
    host.link.poll()
    for _ in range(15):
        host.refuse(404, 10059)
        host.tick(limits.ORIGIN_BACKOFF_MS_MAX)
    assert len(host.asked) == 16
    host.answer()
    host.status(ENDED)
    host.tick(limits.ORIGIN_RETRY_MS)
    host.refuse(404, 10059)
    host.tick(limits.ORIGIN_RETRY_MS + limits.ORIGIN_BACKOFF_MS)
    assert len(host.asked) == 18


def test_a_deleted_origin_is_silent_and_then_missing() -> None:
    """What was heard of it stays the last that was heard."""
    host = Host()
    host.link.poll()
    host.answer()
    host.tick(limits.ORIGIN_SILENT_MS + 1)
    host.tick(0)
    host.refuse(404, 10059, "stream not found")
    info = host.link.info()
    assert info.error is not None and info.error["err_code"] == 10059
    assert info.active_ns == (limits.ORIGIN_SILENT_MS + 1) * 1_000_000


def test_a_mirror_goes_on_with_an_origin_that_is_behind() -> None:
    """One that was created anew has its name: the mirror waits for what it has not, and says
    nothing."""
    host = Host()
    host.positions["", ""] = 5
    host.link.poll()
    assert host.asked[0][1]["config"]["opt_start_seq"] == 6
    host.answer()
    assert host.listening and host.link.info().error is None and not host.log
    host.deliver((1, 6))
    assert host.log[0][4:7] == [5, 6, [6]]


def test_the_configured_start_is_for_the_first_time_alone() -> None:
    host = Host({"name": "O", "opt_start_seq": 3})
    host.link.poll()
    assert host.asked[-1][1]["config"]["opt_start_seq"] == 3
    host.answer(identity="one")
    host.deliver((1, 3), (2, 4))
    host.apply()
    host.status(ENDED)
    host.tick(limits.ORIGIN_RETRY_MS)
    assert host.asked[-1][1]["config"]["opt_start_seq"] == 5


def test_an_answer_says_how_much_is_left_and_how_long_ago_it_was() -> None:
    host = Host()
    host.link.poll()
    assert host.link.info()[:2] == (0, -1)
    host.answer(pending=4)
    host.tick(700)
    assert host.link.info()[:2] == (4, 700_000_000)


def test_a_consumer_that_a_user_made_is_reset_and_waited_for() -> None:
    """For less long than the creation of one; that it is missing is told."""
    own = {"name": "C", "deliver_subject": "d.c"}
    host = Host({"name": "O", "consumer": own})
    host.link.poll()
    assert host.asked_of[-1] == b"$JS.API.CONSUMER.RESET.O.C"
    host.tick(limits.ORIGIN_RESET_MS)
    assert not host.listening
    host.tick(limits.ORIGIN_RETRY_MS + limits.ORIGIN_BACKOFF_MS)
    host.refuse(404, 10014, "consumer not found")
    info = host.link.info()
    assert info.error is not None and info.error["err_code"] == 10014 and info.active_ns == -1


def test_an_origin_without_a_leader_is_asked_again_soon() -> None:
    host = Host()
    host.link.poll()
    host.refuse(503, 10008)
    host.tick(limits.ORIGIN_RETRY_MS)
    assert len(host.asked) == 2


def test_no_answer_is_given_up() -> None:
    host = Host()
    host.link.poll()
    host.tick(limits.ORIGIN_ANSWER_MS)
    assert not host.listening and host.link.info().active_ns == -1


def test_what_overtakes_the_answer_is_kept() -> None:
    host = Host()
    host.link.poll()
    host.deliver((1, 1), (2, 2))
    assert not host.log
    host.answer()
    host.link.flush()
    assert host.log[0][6] == [1, 2]


def test_an_empty_mirror_begins_where_its_origin_does() -> None:
    host = Host()
    host.link.poll()
    host.answer(sseq=499)
    (command,) = host.log
    assert command[4:] == [0, 499, [], [], []]


def test_a_full_stream_is_brought_the_rest_later(host: Host) -> None:
    host.room = 2
    host.deliver((1, 1), (2, 2), (3, 3))
    host.apply()
    assert not host.listening
    host.tick(limits.ORIGIN_RETRY_MS)
    assert host.asked[-1][1]["config"]["opt_start_seq"] == 3


def test_a_leader_that_nobody_follows_stops_by_itself(host: Host) -> None:
    """What it proposed is never applied; it asks for no more than the window allows."""
    host.deliver((1, 1))
    host.status(FLOW, b"$JS.FC.O.C.1")
    host.link._flight_bytes = limits.ORIGIN_FLIGHT_BYTES_MAX + 1
    for _ in range(20):
        host.tick(limits.ORIGIN_SILENT_MS + 1)
    assert len(host.asked) == 1 and not host.sent and len(host.log) == 1


def test_no_room_in_the_log_loses_nothing(host: Host) -> None:
    host.is_full = True
    host.deliver((1, 1))
    host.is_full = False
    host.tick(limits.ORIGIN_RETRY_MS)
    assert host.asked[-1][1]["config"]["deliver_policy"] == "all"
    host.answer()
    host.deliver((1, 1))
    assert host.log[0][4:6] == [0, 1]


SOURCE = {"name": "O", "subject_transforms": [{"src": "o.*", "dest": "t.$1"}]}


def test_a_source_names_where_its_messages_come_from() -> None:
    host = Host(SOURCE)
    host.link.poll()
    subject, request = host.asked[0]
    assert subject.startswith(b"$JS.API.CONSUMER.CREATE.O.JS_SRC_") and subject.endswith(b".o.*")
    assert request["config"]["filter_subject"] == "o.*"
    host.answer(identity="one")
    host.deliver((1, 3))
    (command,) = host.log
    assert command[2:4] == [index_name(SOURCE), "one"]  # type: ignore[arg-type]
    ((to, headers, _),) = command[8]
    assert to == b"t.a"
    assert headers == b"NATS/1.0\r\nNats-Stream-Source: O 3 o.* t.$1 o.a one\r\n\r\n"


def test_an_origin_that_was_created_anew_is_taken_from_its_beginning() -> None:
    host = Host({"name": "O"})
    name = host.origin.name
    host.positions[name, "one"] = 7
    host.link = OriginLink(host.origin, host)
    host.link.poll()
    assert host.asked[-1][1]["config"]["opt_start_seq"] == 8
    host.refuse(400, 10225, "consumer's stream identity does not match: two")
    host.tick(limits.ORIGIN_RETRY_MS)
    assert host.asked[-1][1]["config"]["deliver_policy"] == "all"
    host.answer(identity="two")
    host.deliver((1, 1))
    assert host.log[-1][3:6] == ["two", 0, 1]


def test_an_old_server_is_asked_as_of_old() -> None:
    host = Host()
    host.link.poll()
    assert host.asked[-1][1]["config"]["sourcing"]
    host.refuse(400, 10025, 'invalid JSON: json: unknown field "sourcing"')
    host.tick(0)
    config = host.asked[-1][1]["config"]
    assert "sourcing" not in config and config["name"].startswith("JS_MIRROR_")
    assert config["name"].endswith("-token2")
