"""What clients say to a consumer: pulls and acks of all kinds, collected and then proposed."""

from __future__ import annotations

from streamd import limits
from streamd.machine import commands, message_headers
from streamd.machine.message_headers import parse_number
from streamd.node.delivery.delivery_targets import Receivers
from streamd.node.delivery.priority import priority_refusal
from streamd.node.delivery.pulls import (
    API_LEVEL,
    EXCEEDED_MAX_WAITING,
    NO_MESSAGES,
    PUSH_BASED,
    REQUESTS_PENDING,
    BadRequestError,
    PullRequest,
    bad_request,
    parse_options,
    refusal,
    waiting_max,
)
from streamd.protocol import acks
from streamd.types import Seq

_MS = 1_000_000  # ns


class AckIntake(Receivers):
    """A cursor that understands its clients."""

    __slots__ = ()

    def on_pull(self, reply: bytes, headers: bytes, payload: bytes) -> None:
        """A pull request: queue it, or answer it with a status."""
        host = self._host
        sink = host.sink(reply)
        if sink is None or self._is_stopped:
            return
        now_ms = host.now_ms()
        if self.is_push:
            sink.status(PUSH_BASED)
            return
        if headers:
            wanted = message_headers.get(headers, b"Nats-Required-Api-Level")
            if wanted is not None and not _is_level_served(wanted):
                sink.status(API_LEVEL)
                return
        try:
            options = parse_options(payload)
        except BadRequestError as err:
            sink.status(bad_request(str(err)))
            return
        self._active_ms = now_ms
        config = self.consumer.config
        refused = refusal(options, config) or priority_refusal(options, config)
        if refused is not None:
            sink.status(refused)
            return
        if self._priority_policy == "pinned_client":
            refused = self._pin.refusal(options, now_ms)
            if refused is not None:
                sink.status(refused)
                return
        if options.expires_ns < 0:
            PullRequest(reply, options, sink, now_ms).end(b"408 Request Timeout")
            return
        waiting = self._waiting
        if options.is_no_wait:
            available = self.num_pending() + self._redelivery.due_count
            if not available and not options.expires_ns:
                sink.status(NO_MESSAGES)
                return
            if available and waiting.queue and waiting.total_left(available + 1) > available:
                waiting.drop_closed()
                if waiting.total_left(available + 1) > available:
                    sink.status(REQUESTS_PENDING)
                    return
        if len(waiting) >= waiting_max(config):
            waiting.drop_closed()
            if len(waiting) >= waiting_max(config):
                if not options.heartbeat_ns:
                    sink.status(EXCEEDED_MAX_WAITING)
                return
        waiting.add(PullRequest(reply, options, sink, now_ms))

    def on_acks(self, sseqs: list[Seq]) -> None:
        """Plain positive acks that want no answer, of one chunk of one client."""
        if not self._has_acks:
            return
        sent = self._sent_sseq
        if max(sseqs) > sent:
            sseqs = [sseq for sseq in sseqs if sseq <= sent]
        self._acked += sseqs

    def on_ack(self, sseq: Seq, payload: bytes, reply: bytes) -> None:
        """An ack of any kind. Of what was never delivered: ignored, and so is its reply."""
        if payload in acks.PLAIN:
            if sseq <= self._sent_sseq and self._has_acks:
                self._acked.append(sseq)
                if reply:
                    self._ack_replies.append(reply)
            return
        self._active_ms = self._host.now_ms()  # who works on a message for long, too
        if sseq > self._sent_sseq or not self._has_acks:
            return
        verb = acks.parse_payload(payload)
        if verb is not None and verb.kind == acks.NEXT:
            self._acked.append(sseq)
            if reply:
                self.on_pull(reply, b"", verb.argument)
            return
        if reply:
            self._ack_replies.append(reply)
        if verb is None:
            return  # means nothing, but whoever asks is answered
        if verb.kind == acks.ACK:
            self._acked.append(sseq)
        elif not self._is_pending(sseq):
            if verb.kind == acks.TERM:  # of what was given up: an ack of it, and of what it covers
                self._acked.append(sseq)
        elif verb.kind == acks.NAK:
            self._naks.append((sseq, verb.delay_ns))
        elif verb.kind == acks.PROGRESS:
            self._progress.append(sseq)
        elif verb.kind == acks.TERM:
            self._terms.append((sseq, verb.argument.decode(errors="replace")))

    def on_flow_reply(self, subject: bytes, headers: bytes = b"") -> None:
        """The client has processed everything before a flow-control request."""
        if self._window is None or not self._window.answered(subject):
            return
        if self._is_acked_by_flow and headers:
            last = message_headers.get(headers, b"Nats-Last-Stream")
            seq = -1 if last is None else parse_number(last)
            if 0 <= seq <= self._sent_sseq:
                self._acked.append(seq)

    def _flush_acks(self) -> None:
        replies, self._ack_replies = self._ack_replies, []
        if self._progress:
            self._flush_progress()
        if self._naks:
            self._flush_naks()
        if self._terms:
            terms, self._terms = self._terms, []
            self._acking.update(sseq for sseq, _ in terms)
            self.last_acked_ns = self._host.now_ns()
            if self.consumer.is_ack_all:  # as any ack: of all before it too
                for term in sorted(terms):
                    self._propose(commands.ACKED, [term[0] - 1])
                    self._propose(commands.TERMED, [term])
            else:
                self._propose(commands.TERMED, terms)
        if self._acked or replies:
            acked, self._acked = self._acked, []
            if not self.consumer.is_ack_all:
                pending = self.consumer.pending
                applied = self.consumer.delivered_sseq
                given_up = self.consumer.redelivered
                # Also what is on its way out already: given up just now, it is acked all the same.
                acked = [
                    sseq for sseq in acked if sseq in pending or sseq > applied or sseq in given_up
                ]
                is_forced = bool(replies)
                # What was given up holds no place any more, and its ack makes no room.
                self._acking.update(sseq for sseq in acked if sseq in pending or sseq > applied)
            else:
                most = self._ack_pending_max
                is_forced = bool(replies) or 0 < most <= self.num_ack_pending()
                acked = [max(acked)] if acked else []
            if acked:
                self.last_acked_ns = self._host.now_ns()
            self._active_ms = self._host.now_ms()
            if acked or replies:
                self._propose(commands.ACKED, acked, is_forced=is_forced, tag=replies or None)

    def _flush_progress(self) -> None:
        progress, self._progress = self._progress, []
        ts = self._propose(commands.PROGRESS, progress)
        now_ms = self._host.now_ms()
        for sseq in progress:
            self._redelivery.delivered(
                sseq, sseq, stamp=ts, now_ms=now_ms, deliveries=self._deliveries(sseq)
            )

    def _flush_naks(self) -> None:
        naks, self._naks = self._naks, []
        self._propose(commands.NAKED, naks)
        now_ms = self._host.now_ms()
        for sseq, delay_ns in naks:
            self._redelivery.nak(sseq, now_ms + (delay_ns + _MS - 1) // _MS)
        self._ring(now_ms)

    def _ring(self, now_ms: int) -> None:
        redelivery = self._redelivery
        if redelivery.next_ms and redelivery.next_ms <= now_ms:
            self._make_due(redelivery.ring(now_ms, self._acking))

    def _make_due(self, sseqs: list[Seq]) -> None:
        """Queue for redelivery; those delivered max_deliver times are given up instead."""
        if self._max_deliver > 0:
            most = self._max_deliver
            dead = [sseq for sseq in sseqs if self._deliveries(sseq) >= most]
            if dead:
                sseqs = [sseq for sseq in sseqs if self._deliveries(sseq) < most]
                self._acking.update(dead)
                self._propose(commands.DEAD, dead)
        self._redelivery.queue(sseqs)


def _is_level_served(wanted: bytes) -> bool:
    return 0 <= parse_number(wanted) <= limits.API_LEVEL
