"""Requests of a consumer's clients: pulls, acks of all kinds, and answers to flow-control requests.

A pull is admitted or refused at once. Acks are collected, and proposed together when the group
flushes them: before the cursor plans, and before a linearizable read.
"""

from __future__ import annotations

from streamd import limits
from streamd.machine import commands, message_headers
from streamd.machine.message_headers import parse_number
from streamd.node.delivery.consumer_commands import ConsumerCommands
from streamd.node.delivery.cursor_settings import Activity, CursorSettings
from streamd.node.delivery.delivery_host import DeliveryHost
from streamd.node.delivery.delivery_targets import PullTargets, PushTarget
from streamd.node.delivery.pending_state import PendingState
from streamd.node.delivery.priority import priority_refusal
from streamd.node.delivery.pulls import (
    API_LEVEL,
    EXCEEDED_MAX_WAITING,
    NO_MESSAGES,
    PUSH_BASED,
    REQUESTS_PENDING,
    BadRequestError,
    PullOptions,
    PullRequest,
    bad_request,
    parse_options,
    refusal,
    waiting_max,
)
from streamd.node.ports import DeliverSink
from streamd.protocol import acks
from streamd.types import Seq

_MS = 1_000_000  # ns


class ClientRequests:
    """Intake of one consumer's clients. Owns the acks that are not proposed yet."""

    __slots__ = (
        "_ack_replies",
        "_acked",
        "_activity",
        "_commands",
        "_has_acks",
        "_host",
        "_is_acked_by_flow",
        "_is_closed",
        "_naks",
        "_pending",
        "_progress",
        "_targets",
        "_terms",
    )

    def __init__(
        self,
        host: DeliveryHost,
        pending: PendingState,
        targets: PullTargets | PushTarget,
        commands_: ConsumerCommands,
        activity: Activity,
    ) -> None:
        self._host = host
        self._pending = pending
        self._targets = targets
        self._commands = commands_
        self._activity = activity
        self._has_acks = False
        self._is_acked_by_flow = False
        self._is_closed = False
        self._acked: list[Seq] = []
        self._ack_replies: list[bytes] = []  # of clients that wait for their acks to be applied
        self._naks: list[tuple[Seq, int]] = []
        self._terms: list[tuple[Seq, str]] = []
        self._progress: list[Seq] = []

    def configure(self, settings: CursorSettings) -> None:
        """Take over which acks count."""
        self._has_acks = settings.has_acks
        self._is_acked_by_flow = settings.is_acked_by_flow

    def close(self) -> None:
        """Take no pulls any more: the cursor has ended."""
        self._is_closed = True

    # --- pulls ------------------------------------------------------------------------------------

    def on_pull(self, reply: bytes, headers: bytes, payload: bytes) -> None:
        """Queue a pull request, or answer it with a status."""
        host, targets = self._host, self._targets
        sink = host.sink(reply)
        if sink is None or self._is_closed:
            return
        if not isinstance(targets, PullTargets):
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
        now_ms = self._activity.active_ms = host.now_ms()
        config = self._pending.consumer.config
        refused = (
            refusal(options, config)
            or priority_refusal(options, config)
            or targets.refusal(options, now_ms)
        )
        if refused is not None:
            sink.status(refused)
            return
        request = PullRequest(reply, options, sink, now_ms)
        if options.expires_ns < 0:
            request.end(b"408 Request Timeout")
            return
        if options.is_no_wait and self._is_over_at_once(options, sink, targets):
            return
        waiting = targets.waiting
        if len(waiting) >= waiting_max(config):
            waiting.drop_closed()
            if len(waiting) >= waiting_max(config):
                if not options.heartbeat_ns:
                    sink.status(EXCEEDED_MAX_WAITING)
                return
        waiting.add(request)

    def _is_over_at_once(
        self, options: PullOptions, sink: DeliverSink, targets: PullTargets
    ) -> bool:
        """Answer a pull that does not wait, if it can get nothing now; True if it is answered."""
        pending, waiting = self._pending, targets.waiting
        available = pending.num_pending() + pending.redelivery.due_count
        if not available and not options.expires_ns:
            sink.status(NO_MESSAGES)
            return True
        if available and waiting.queue and waiting.total_left(available + 1) > available:
            waiting.drop_closed()
            if waiting.total_left(available + 1) > available:
                sink.status(REQUESTS_PENDING)
                return True
        return False

    # --- acks -------------------------------------------------------------------------------------

    def on_acks(self, sseqs: list[Seq]) -> None:
        """Collect plain positive acks that want no answer, of one chunk of one client."""
        if not self._has_acks:
            return
        sent = self._pending.sent_sseq
        if max(sseqs) > sent:
            sseqs = [sseq for sseq in sseqs if sseq <= sent]
        self._acked += sseqs

    def on_ack(self, sseq: Seq, payload: bytes, reply: bytes) -> None:
        """Collect an ack of any kind. Of what was never delivered: ignored, and so is its reply."""
        pending = self._pending
        if payload in acks.PLAIN:
            if sseq <= pending.sent_sseq and self._has_acks:
                self._acked.append(sseq)
                if reply:
                    self._ack_replies.append(reply)
            return
        self._activity.active_ms = self._host.now_ms()  # long work on a message counts, too
        if sseq > pending.sent_sseq or not self._has_acks:
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
            return  # means nothing, but a client that asks is answered
        if verb.kind == acks.ACK:
            self._acked.append(sseq)
        elif not pending.is_pending(sseq):
            # A TERM of a terminated message is an ack of it, and of those that it covers.
            if verb.kind == acks.TERM:
                self._acked.append(sseq)
        elif verb.kind == acks.NAK:
            self._naks.append((sseq, verb.delay_ns))
        elif verb.kind == acks.PROGRESS:
            self._progress.append(sseq)
        elif verb.kind == acks.TERM:
            self._terms.append((sseq, verb.argument.decode(errors="replace")))

    def on_flow_reply(self, subject: bytes, headers: bytes = b"") -> None:
        """The client has processed everything before a flow-control request."""
        targets = self._targets
        if not isinstance(targets, PushTarget) or targets.window is None:
            return
        if not targets.window.answered(subject):
            return
        if self._is_acked_by_flow and headers:
            last = message_headers.get(headers, b"Nats-Last-Stream")
            seq = -1 if last is None else parse_number(last)
            if 0 <= seq <= self._pending.sent_sseq:
                self._acked.append(seq)

    # --- to the log -------------------------------------------------------------------------------

    def flush(self) -> None:
        """Propose the acks that are collected, if there are any."""
        if self._progress:
            self._flush_progress()
        if self._naks:
            self._flush_naks()
        if self._terms:
            self._flush_terms()
        if self._acked or self._ack_replies:
            self._flush_acked()

    def _flush_acked(self) -> None:
        acked, self._acked = self._acked, []
        replies, self._ack_replies = self._ack_replies, []
        pending = self._pending
        consumer = pending.consumer
        if not consumer.is_ack_all:
            held = consumer.pending
            applied = consumer.delivered_sseq
            given_up = consumer.redelivered
            ahead = pending.redelivery.ahead
            # Messages on their way out too: terminated just now, they are acked all the same.
            acked = [
                sseq
                for sseq in acked
                if sseq in held or sseq > applied or sseq in given_up or sseq in ahead
            ]
            is_forced = bool(replies)
            # A terminated message holds no place any more, and its ack makes no room.
            pending.acking.update(
                sseq for sseq in acked if sseq in held or sseq > applied or sseq in ahead
            )
        else:
            most = pending.ack_pending_max
            is_forced = bool(replies) or 0 < most <= pending.num_ack_pending()
            acked = [max(acked)] if acked else []
        if acked:
            self._activity.last_acked_ns = self._host.now_ns()
        self._activity.active_ms = self._host.now_ms()
        if acked or replies:
            propose = self._commands.propose
            propose(commands.ACKED, acked, is_forced=is_forced, tag=replies or None)

    def _flush_terms(self) -> None:
        terms, self._terms = self._terms, []
        propose = self._commands.propose
        self._pending.acking.update(sseq for sseq, _ in terms)
        self._activity.last_acked_ns = self._host.now_ns()
        if self._pending.consumer.is_ack_all:  # as any ack: of all before it too
            for term in sorted(terms):
                propose(commands.ACKED, [term[0] - 1])
                propose(commands.TERMED, [term])
        else:
            propose(commands.TERMED, terms)

    def _flush_progress(self) -> None:
        progress, self._progress = self._progress, []
        ts = self._commands.propose(commands.PROGRESS, progress)
        now_ms = self._host.now_ms()
        pending = self._pending
        for sseq in progress:
            pending.redelivery.delivered(
                sseq, sseq, stamp=ts, now_ms=now_ms, deliveries=pending.deliveries(sseq)
            )

    def _flush_naks(self) -> None:
        naks, self._naks = self._naks, []
        self._commands.propose(commands.NAKED, naks)
        now_ms = self._host.now_ms()
        pending = self._pending
        for sseq, delay_ns in naks:
            pending.redelivery.nak(sseq, now_ms + (delay_ns + _MS - 1) // _MS)
        pending.poll_timers(now_ms)


def _is_level_served(wanted: bytes) -> bool:
    return 0 <= parse_number(wanted) <= limits.API_LEVEL
