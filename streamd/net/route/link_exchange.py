"""Exchange over a link that is up: Raft messages, notes, calls and their answers, both ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from streamd.errors import BAD_REQUEST, CLUSTER_NOT_AVAIL, JsError, RequestError, StreamdError
from streamd.limits import (
    PEER_APPEND_BUFFER_BYTES_MAX,
    PEER_BUFFER_BYTES_MAX,
    PEER_CALLS_MAX,
    PEER_FAULTS_TOLD_MAX,
)
from streamd.net.route.frame_writer import FrameWriter
from streamd.node.ports import Done, PeerHandler
from streamd.protocol import peer_frames, peer_schemas
from streamd.protocol.peer_frames import Frame, ProtocolError, RaftMessage
from streamd.protocol.peer_schemas import MalformedArgs
from streamd.types import NodeId, Uid


class Inbound(Protocol):
    """Receivers of messages from other servers."""

    handler: PeerHandler

    def on_note(self, sender: NodeId, kind: str, args: list[object]) -> None:
        """Give a note to its receiver."""

    def message_failed(self, name: NodeId, what: str, err: Exception, *, is_new: bool) -> None:
        """Count a message that could not be handled; `is_new`: the first of its kind on a link."""


class LinkExchange:
    """Messages of one link while it is up, and the calls under way.

    Raft messages may be lost: Raft repeats them. A note or call that the link can't take ends the
    link (`cut`), since neither must get lost unseen. A message that a receiver fails on is the end
    of that message alone.
    """

    __slots__ = (
        "_call_no",
        "_calls",
        "_cut",
        "_failing",
        "_inbound",
        "_loop",
        "_name",
        "_on_close",
        "_writer",
        "in_msgs",
        "is_up",
        "out_msgs",
    )

    def __init__(
        self,
        writer: FrameWriter,
        inbound: Inbound,
        loop: asyncio.AbstractEventLoop,
        cut: Callable[[str], None],
        on_close: Callable[[str], None],
    ) -> None:
        """`on_close` is told the reason when the other side says that it closes the link."""
        self._writer = writer
        self._inbound = inbound
        self._loop = loop
        self._cut = cut
        self._on_close = on_close
        self._name: NodeId = ""
        self._calls: dict[int, tuple[str, Done, asyncio.TimerHandle]] = {}
        self._call_no = 0
        self._failing: set[tuple[str, type]] = set()  # (what, error) that the log was told of
        self.is_up = False
        self.in_msgs = self.out_msgs = 0  # frames, beats left out

    def open(self, name: NodeId) -> None:
        """Exchange messages with server `name` from here on."""
        self._name = name
        self.is_up = True

    def close(self) -> None:
        """Fail the calls under way: no answer comes any more."""
        calls, self._calls = self._calls, {}
        for _, done, timer in calls.values():
            timer.cancel()
            self._loop.call_soon(done, CLUSTER_NOT_AVAIL())

    # --- sending --------------------------------------------------------------------------------

    def send_raft(self, uid: Uid, messages: list[RaftMessage]) -> None:
        """Send messages of one group, or lose them: appends first when the link is behind."""
        buffered = self._writer.buffered_bytes
        if buffered > PEER_APPEND_BUFFER_BYTES_MAX:
            if buffered > PEER_BUFFER_BYTES_MAX:
                return
            messages = peer_frames.without_appends(messages)
        if messages:
            self.out_msgs += 1
            self._writer.write(peer_frames.encode_raft(uid, messages))

    def note(self, kind: str, args: Sequence[object]) -> None:
        """Send a note."""
        self.out_msgs += 1
        self._writer.write(peer_frames.frame(peer_frames.NOTE, kind, args))
        self._check_buffer()

    def call(self, method: str, args: Sequence[object], done: Done, timeout_ms: int) -> None:
        """Ask the other side; `done` gets the outcome once, later."""
        if len(self._calls) >= PEER_CALLS_MAX:
            self._loop.call_soon(done, CLUSTER_NOT_AVAIL())
            return
        self._call_no += 1
        timer = self._loop.call_later(timeout_ms / 1000, self._timed_out, self._call_no)
        self._calls[self._call_no] = (method, done, timer)
        self.out_msgs += 1
        self._writer.write(peer_frames.frame(peer_frames.CALL, self._call_no, method, args))
        self._check_buffer()

    def _timed_out(self, number: int) -> None:
        _, done, _ = self._calls.pop(number)
        done(CLUSTER_NOT_AVAIL())

    def _answer(self, number: int, outcome: object) -> None:
        if not self.is_up:
            return  # the other side knows that the link is gone
        is_error = isinstance(outcome, StreamdError)
        if isinstance(outcome, JsError):
            outcome = list(outcome.args)
        elif is_error:
            outcome = [0, 0, str(outcome)]
        self.out_msgs += 1
        self._writer.write(peer_frames.frame(peer_frames.ANSWER, number, is_error, outcome))
        self._check_buffer()

    def _check_buffer(self) -> None:
        if self._writer.buffered_bytes > PEER_BUFFER_BYTES_MAX:
            self._cut("Slow Consumer (Pending Bytes)")

    # --- receiving ------------------------------------------------------------------------------

    def receive(self, frame: Frame) -> None:
        """Give a frame to its receiver. Raises ProtocolError if it is none of this exchange."""
        self.in_msgs += 1
        try:
            self._handle(frame)
        except ProtocolError:
            raise
        except Exception as err:  # noqa: BLE001 - whatever it was, it ends this message, no other
            self._failed(frame, err)

    def _handle(self, frame: Frame) -> None:
        kind = frame[0]
        if kind == peer_frames.RAFT:
            uid, messages = peer_frames.raft_of(frame)
            self._inbound.handler.on_raft(self._name, uid, messages)
        elif kind == peer_frames.NOTE:
            peer_schemas.check_note(frame[1], frame[2])
            self._inbound.on_note(self._name, frame[1], frame[2])
        elif kind == peer_frames.CALL:
            _, number, method, args = frame
            peer_schemas.check_call(method, args)
            self._inbound.handler.on_call(
                self._name, method, args, lambda outcome: self._answer(number, outcome)
            )
        elif kind == peer_frames.ANSWER:
            self._on_answer(frame[1], frame[2], frame[3])
        elif kind == peer_frames.CLOSE:
            self._on_close(frame[1])
        else:
            raise ProtocolError(f"frame of kind {kind} after the handshake")

    def _on_answer(self, number: int, is_error: bool, value: object) -> None:
        waiting = self._calls.pop(number, None)
        if waiting is None:
            return  # it came too late
        method, done, timer = waiting
        timer.cancel()
        if is_error:
            value = _error_of(value)
        else:
            try:
                peer_schemas.check_answer(method, value)
            except MalformedArgs:
                done(CLUSTER_NOT_AVAIL())  # the caller must not wait for ever
                raise
        done(value)

    def _failed(self, frame: Frame, err: Exception) -> None:
        """Report a frame that could not be handled. The log is told once a link of each kind of
        failure: a peer that sends one sends thousands."""
        kind = frame[0]
        what = (
            f"{peer_frames.name_of(kind)} {frame[1]}"
            if kind == peer_frames.NOTE
            else peer_frames.name_of(kind)
        )
        if kind == peer_frames.CALL:
            what = f"CALL {frame[2]}"
            is_theirs = isinstance(err, MalformedArgs)
            self._answer(frame[1], BAD_REQUEST() if is_theirs else CLUSTER_NOT_AVAIL())
        fault = (what, type(err))
        is_new = fault not in self._failing and len(self._failing) < PEER_FAULTS_TOLD_MAX
        if is_new:
            self._failing.add(fault)
        self._inbound.message_failed(self._name, what, err, is_new=is_new)


def _error_of(value: object) -> RequestError:
    """Return the error that an answer brings. Raises ProtocolError."""
    if type(value) is not list or list(map(type, value)) != [int, int, str]:
        raise ProtocolError("an error that is not two codes and a text")
    code, err_code, text = value
    return JsError(code, err_code, text) if err_code else RequestError(text)
