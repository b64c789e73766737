"""Dead letters on their way: in order, ahead of answers, and again after whatever goes wrong."""

from __future__ import annotations

import json
from typing import Any

from streamd import limits
from streamd.machine import commands
from streamd.machine.message_headers import get
from streamd.node.groups.group_shell import GroupShell
from streamd.node.groups.turn import Turn, TurnTime
from streamd.node.stream_groups.letter_sending import LetterSending
from tests.unit.machine.box import Box

HEADERS = b"NATS/1.0\r\nTrace: abc\r\nNats-Msg-Id: own%d\r\n\r\n"


class Bed:
    """A stream with letters, its leader's sending, and core NATS that keeps what is sent."""

    def __init__(self, count: int = 3) -> None:
        self.box = Box(retention="workqueue")
        self.box.consumer("C", max_deliver=1, metadata={"streamd.dead_letter": "dlq.a"})
        self.uid = self.box.machine.consumers["C"].uid
        self.box.store(*[(b"a.%d" % at, HEADERS % at, b"body%d" % at) for at in range(count)])
        self.box.do(commands.DELIVERED, self.uid, [(1, count, 1, False)], 0)
        self.now = TurnTime()
        self.now.ms, self.now.ns = 1000, self.box.now
        self.sent: list[tuple[bytes, bytes, bytes, bytes]] = []
        self.listening: dict[bytes, Any] = {}
        self.posted: list[Any] = []
        self.is_refusing = False
        shell = GroupShell()
        shell.post = self.posted.append
        reader: Any = self
        wires: Any = self
        proposer: Any = self
        self.sending = LetterSending(
            self.box.machine, reader, proposer, shell, self.now, wires=wires
        )

    # MessageReader, Proposer, Wires

    def chunk(self, block_no: int, offset: int) -> Any:
        return (0, bytes(self.box.blocks.files[block_no])), 0

    def propose(self, command: list[Any], tag: Any) -> bool:
        if not self.is_refusing:
            self.box.do(command[0], *command[2:])
        return not self.is_refusing

    def publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        self.sent.append((subject, reply, headers, payload))

    def subscribe(self, subject: bytes, on_messages: Any) -> bytes:
        self.listening[subject] = on_messages
        return subject

    def unsubscribe(self, token: Any) -> None:
        del self.listening[token]

    # what a test does

    def give_up(self, *sseqs: int) -> None:
        self.box.do(commands.TERMED, self.uid, [(sseq, "why") for sseq in sseqs])

    def turn(self, ms: int = 0) -> list[int]:
        """Let time pass and take a turn; the numbers of the letters that it sent."""
        self.now.ms += ms
        before = len(self.sent)
        self.sending.poll(Turn())
        return [int(reply.rpartition(b".")[2]) for _, reply, _, _ in self.sent[before:]]

    def answer(self, reply: bytes, **document: Any) -> None:
        body = json.dumps(document or {"stream": "D", "seq": 9}).encode()
        for pattern, on_messages in self.listening.items():
            if reply.startswith(pattern[:-1]):
                on_messages([(reply, b"", b"", body)])
        for message in self.posted:
            self.sending.on_answers(message)
        self.posted.clear()

    def refuse(self, reply: bytes, err_code: int, text: str = "no") -> None:
        self.answer(reply, error={"code": 400, "err_code": err_code, "description": text})


def headers_of(sent: tuple[bytes, bytes, bytes, bytes]) -> dict[str, str]:
    lines = sent[2][:-4].decode().split("\r\n")[1:]
    return dict(line.split(": ", 1) for line in lines)


def test_a_letter_has_the_body_and_says_why() -> None:
    bed = Bed()
    bed.give_up(2)
    assert bed.turn() == [1]
    subject, _, _, payload = bed.sent[0]
    assert (subject, payload) == (b"dlq.a", b"body1")
    headers = headers_of(bed.sent[0])
    producer = headers.pop("Nats-Producer-Id")
    assert headers.pop("Nats-Msg-Id") == f"{producer}.1"
    assert headers.pop("Nats-Dead-Letter-Time").startswith("2023-11-14T22:13:20.0")
    assert headers == {
        "Trace": "abc", "Nats-Producer-Seq": "1", "Nats-Producer-Previous": "any",
        "Nats-Dead-Letter-Reason": "terminated", "Nats-Dead-Letter-Text": "why",
        "Nats-Dead-Letter-Stream": "S", "Nats-Dead-Letter-Consumer": "C",
        "Nats-Dead-Letter-Subject": "a.1", "Nats-Dead-Letter-Sequence": "2",
        "Nats-Dead-Letter-Deliveries": "1",
    }  # fmt: skip
    assert bed.box.live() == [1, 2, 3]
    bed.answer(bed.sent[0][1])
    assert bed.turn() == []
    assert bed.box.live() == [1, 3] and not len(bed.box.machine.content.letters)
    assert bed.sending.deadline_ms() == 0


def test_letters_name_the_one_before() -> None:
    bed = Bed(5)
    bed.give_up(1, 2, 3)
    assert bed.turn() == [1, 2, 3]
    assert [get(sent[2], b"Nats-Producer-Previous") for sent in bed.sent] == [b"any", b"1", b"2"]
    bed.answer(bed.sent[0][1])
    bed.answer(bed.sent[1][1])
    bed.turn()
    assert [each.number for each in bed.box.machine.content.letters.after(0)] == [3]
    bed.give_up(4)
    assert bed.turn() == [4]
    assert get(bed.sent[-1][2], b"Nats-Producer-Previous") == b"3"


def test_an_answer_is_for_its_letter_alone() -> None:
    """Who knows no producers may have stored the second and lost the first: that is sent again, and
    what is new names the last that is stored. Answers to others do not put that off."""
    bed = Bed(5)
    bed.give_up(1, 2, 3)
    assert bed.turn() == [1, 2, 3]
    bed.answer(bed.sent[2][1])
    bed.turn()
    assert [each.number for each in bed.box.machine.content.letters.after(0)] == [1, 2]
    assert bed.box.live() == [1, 2, 4, 5]
    bed.give_up(4)
    assert bed.turn(limits.DEAD_LETTER_ANSWER_MS - 1) == [4]
    assert bed.turn(1) == []
    assert bed.turn(limits.DEAD_LETTER_RETRY_MS) == [1, 2, 4]
    previous = [get(sent[2], b"Nats-Producer-Previous") for sent in bed.sent[-3:]]
    assert previous == [b"any", b"1", b"3"]
    for sent in bed.sent[-3:]:
        bed.answer(sent[1])
    bed.turn()
    assert not len(bed.box.machine.content.letters) and bed.sending.deadline_ms() == 0


def test_after_silence_all_are_sent_again_later_and_later() -> None:
    bed = Bed()
    bed.give_up(1, 2)
    assert bed.turn() == [1, 2]
    answer_ms, retry_ms = limits.DEAD_LETTER_ANSWER_MS, limits.DEAD_LETTER_RETRY_MS
    assert bed.sending.deadline_ms() == bed.now.ms + answer_ms
    assert bed.turn(answer_ms) == []
    assert bed.sending.error_of(b"dlq.a").startswith("no answer")
    assert bed.sending.deadline_ms() == bed.now.ms + retry_ms
    assert bed.turn(retry_ms) == [1, 2]
    assert get(bed.sent[-2][2], b"Nats-Producer-Previous") == b"any"
    bed.turn(answer_ms)
    assert bed.turn(retry_ms) == [] and bed.turn(retry_ms) == [1, 2]
    bed.answer(bed.sent[-2][1])
    bed.answer(bed.sent[-1][1])
    assert not bed.sending.error_of(b"dlq.a")
    bed.turn()
    assert not len(bed.box.machine.content.letters)


def test_what_is_refused_is_sent_again_and_what_lies_behind_it_waits() -> None:
    bed = Bed()
    bed.give_up(1, 2, 3)
    bed.turn()
    bed.refuse(bed.sent[2][1], 10902)
    assert bed.turn() == []  # it waits for what becomes of those before it
    bed.answer(bed.sent[0][1])
    assert bed.turn() == []
    bed.refuse(bed.sent[1][1], 10077, "maximum bytes exceeded")
    assert bed.sending.error_of(b"dlq.a") == "maximum bytes exceeded"
    assert bed.turn(limits.DEAD_LETTER_RETRY_MS) == [2, 3]


def test_a_refusal_that_comes_before_earlier_answers_counts_once_they_are_there() -> None:
    """Who stores letters may refuse one at sight, and store those before it a moment later."""
    bed = Bed(4)
    bed.give_up(1, 2, 3, 4)
    assert bed.turn() == [1, 2, 3, 4]
    bed.refuse(bed.sent[2][1], 10054)
    bed.refuse(bed.sent[3][1], 10902)
    bed.answer(bed.sent[1][1])
    assert bed.turn() == []
    bed.answer(bed.sent[0][1])
    assert bed.turn() == [3, 4]  # at once, the one without its body
    assert get(bed.sent[-2][2], b"Nats-Dead-Letter-Body") == b"too large"
    bed.answer(bed.sent[-2][1])
    bed.answer(bed.sent[-1][1])
    bed.turn()
    assert not len(bed.box.machine.content.letters) and bed.sending.deadline_ms() == 0


def test_one_that_is_too_large_goes_without_its_body() -> None:
    bed = Bed()
    bed.give_up(1)
    bed.turn()
    bed.refuse(bed.sent[0][1], 10054)
    assert bed.turn() == [1]
    assert bed.sent[-1][3] == b""
    headers = headers_of(bed.sent[-1])
    assert headers["Nats-Dead-Letter-Body"] == "too large" and "Trace" not in headers
    assert headers["Nats-Dead-Letter-Sequence"] == "1"


def test_one_whose_message_is_gone_goes_without_its_body() -> None:
    bed = Bed()
    bed.give_up(1)
    bed.box.do(commands.DELETE_MSG, 1, True)
    assert bed.turn() == [1]
    assert headers_of(bed.sent[0])["Nats-Dead-Letter-Body"] == "gone"


def test_the_next_leader_sends_again_what_is_not_told_to_be_stored() -> None:
    bed = Bed()
    bed.give_up(1, 2)
    bed.turn()
    bed.is_refusing = True
    bed.answer(bed.sent[0][1])
    bed.turn()
    bed.sending.end()
    assert not bed.listening
    late = bed.sent[1][1]
    bed.is_refusing = False
    assert bed.turn() == [1, 2]
    bed.answer(late)  # to a life before
    bed.turn()
    assert len(bed.box.machine.content.letters) == 2
    bed.answer(bed.sent[-2][1])
    bed.answer(bed.sent[-1][1])
    bed.turn()
    assert not len(bed.box.machine.content.letters)


def test_so_many_are_under_way_and_lanes_do_not_wait_for_each_other() -> None:
    most = limits.DEAD_LETTERS_UNDER_WAY_MAX
    bed = Bed(most + 10)
    bed.give_up(*range(1, most + 6))
    assert len(bed.turn()) == most
    bed.box.consumer("C", max_deliver=1, metadata={"streamd.dead_letter": "dlq.b"})
    bed.give_up(most + 6)
    assert bed.turn() == [most + 6] and bed.sent[-1][0] == b"dlq.b"
    for sent in bed.sent[:most]:
        bed.answer(sent[1])
    assert bed.turn() == [most + 1, most + 2, most + 3, most + 4, most + 5]
