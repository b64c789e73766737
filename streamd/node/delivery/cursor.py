"""Delivery of one consumer's messages, on the leader: which client gets what, when, and when again.

One mechanism serves replay and live, pull and push: a cursor reads the stream's index from its
position on, as far as a target takes messages. A growing stream only has it plan again.

                      requests                        targets
    clients ---> ClientRequests                 PullTargets | PushTarget ---> clients
                      |    \\                        ^
                 acks |     \\ pulls                 | items
                      v      `--> targets           |
                 PendingState <----------------- Sender <--- index, blocks (DeliveryHost)
                      |                             |
                      `------> ConsumerCommands <---'
                                     | DELIVERED, ACKED, NAKED, TERMED, PROGRESS, DEAD, POSITION
                                     v
                                  the log ---- on_applied ----> PendingState

States. A cursor begins when its group leads and has applied its own first entry, and is stopped
when it leads no more, when the consumer is deleted, or when the server stops. Between those it is
*idle* (no target takes messages, or nothing is left), *held* (`Hold`: a rate limit, a congested
client, original replay speed, a pause) or *sending* (`plan` returned True).

Of a message: *new* (not sent) -> *pending* (sent, not acked) -> *acking* (its ack is
proposed) -> gone from the consumer once the ack is applied. A pending one whose ack is late, or
that was refused (-NAK), is *due*, and sent again before anything new; after max_deliver times it
is given up (DEAD) instead.

Callers. The stream's group alone, inside its turn (`DeliveryHub`). After any `on_*` call, and after
any call of `requests`, it calls `plan` once before that turn ends. Parts never call the cursor.

Invariants.
1. What was sent is proposed in the same turn (DELIVERED), without waiting for the commit: delivery
   is at-least-once and promises nothing. A consumer without acks has a POSITION proposed later.
2. So the cursor runs ahead of the replicated `Consumer` by what it proposed and has not seen
   applied: `PendingState.ahead_*` and `acking` are that difference, and are empty when all is.
3. `consumer.pending` + `ahead_new` - `acking` never exceeds max_ack_pending by a new message.
4. Each proposal has a time stamp of its own (`ConsumerCommands`), by which timers recognise a
   delivery.
5. Items that share an inbox leave in the order in which they were assigned.

Pure: no I/O, no clock but the host's.
"""

from __future__ import annotations

from typing import Protocol

from streamd.machine import commands
from streamd.machine.commands import Command
from streamd.machine.consumers.consumer import Consumer
from streamd.node.delivery.client_requests import ClientRequests
from streamd.node.delivery.consumer_commands import ConsumerCommands
from streamd.node.delivery.cursor_settings import Activity, CursorSettings, Hold
from streamd.node.delivery.delivery_host import DeliveryHost
from streamd.node.delivery.delivery_targets import PullTargets, PushTarget
from streamd.node.delivery.pending_state import PendingState
from streamd.node.delivery.sender import Sender

_MS = 1_000_000  # ns


class CursorHost(DeliveryHost, Protocol):
    """The stream's group, as a cursor sees it: beside what its parts need, it is woken."""

    def watch_interest(self, subject: bytes, queue: bytes, cursor: Cursor) -> None:
        """From now on call `cursor.on_interest(bool)` when interest changes, and once soon with the
        present state (not from inside this call)."""

    def unwatch_interest(self, cursor: Cursor) -> None:
        """Call `cursor.on_interest` no more."""

    def wake_at(self, monotonic_ms: int, cursor: Cursor) -> None:
        """Call `cursor.on_tick(now_ms)`, then `plan`, at or soon after that time. 0 clears it. An
        earlier wake may stand: the cursor asks again for the later one."""

    def wake_soon(self, cursor: Cursor) -> None:
        """Call `cursor.plan` in this turn or the next."""


class Cursor:
    """Delivery of one consumer, from the moment its group leads until it is stopped."""

    __slots__ = (
        "_activity",
        "_armed_ms",
        "_commands",
        "_hold",
        "_host",
        "_is_stopped",
        "_pauses_under_way",
        "_sender",
        "_settings",
        "_targets",
        "consumer",
        "is_push_bound",
        "pending",
        "requests",
    )

    def __init__(self, consumer: Consumer, host: CursorHost) -> None:
        self.consumer = consumer
        self._host = host
        self._hold = Hold()
        self._activity = Activity(consumer, host.now_ms())
        self._commands = ConsumerCommands(consumer, host)
        pending = self.pending = PendingState(consumer, host.machine.index, self._commands)
        kind = PushTarget if consumer.is_push else PullTargets
        targets = self._targets = kind(host, pending, self._hold)
        self.requests = ClientRequests(host, pending, targets, self._commands, self._activity)
        self._sender = Sender(host, pending, targets, self._commands, self._activity, self._hold)
        self.is_push_bound = False
        self._is_stopped = False
        self._armed_ms = 0
        self._pauses_under_way = 0  # in the log and not applied: the client's, and ends of one
        self._settings = self._configure()
        newest = pending.redelivery.restore(now_ns=host.now_ns(), now_ms=host.now_ms())
        self._commands.begin_after(newest)
        if consumer.config.get("replay_policy") == "original":
            self._sender.replay_at_original_speed()

    def _configure(self) -> CursorSettings:
        settings = self._settings = CursorSettings.of(self.consumer)
        pending, targets = self.pending, self._targets
        self._sender.configure(settings)
        self.requests.configure(settings)
        pending.configure(settings)
        if isinstance(targets, PullTargets):
            targets.configure(settings)
            return settings
        before = targets.subject
        if targets.configure(settings):
            if before:
                self._host.unwatch_interest(self)
                if targets.subject != before:
                    # The client there is gone with what it held: if it comes back it has a new
                    # inbox, and is not to wait for the acks of the old one.
                    pending.make_all_due()
            self.is_push_bound = False
            self._host.watch_interest(targets.subject, targets.queue_group, self)
        return settings

    # --- facts, for reports -----------------------------------------------------------------------

    @property
    def num_waiting(self) -> int:
        """Pulls that wait and whose clients still listen."""
        targets = self._targets
        if not isinstance(targets, PullTargets):
            return 0
        targets.waiting.drop_closed()
        return len(targets.waiting)

    @property
    def sent_count(self) -> int:
        """Messages that went out so far, the same one again included."""
        return self.pending.sent_cseq

    @property
    def last_delivered_ns(self) -> int:
        return self._activity.last_delivered_ns

    @property
    def last_acked_ns(self) -> int:
        return self._activity.last_acked_ns

    @property
    def pinned_id(self) -> str:
        targets = self._targets
        return targets.pin.pin_id if isinstance(targets, PullTargets) else ""

    @property
    def pinned_ns(self) -> int:
        targets = self._targets
        return targets.pin.since_ns if isinstance(targets, PullTargets) else 0

    def unpin(self, reason: str) -> bool:
        """Take the place of the pinned client, for which others get a chance; False if there was
        none."""
        targets = self._targets
        if not isinstance(targets, PullTargets) or not targets.unpin(reason):
            return False
        self._host.wake_soon(self)
        return True

    @property
    def holds_position(self) -> bool:
        """True if it sent messages that no entry tells of before it is flushed, or time passes."""
        return self._sender.position_due_ms > 0

    # --- from the group ---------------------------------------------------------------------------

    def on_applied(self, command: Command, tag: list[bytes] | None = None) -> None:
        """An entry naming this consumer was applied, in log order: DELIVERED ... POSITION,
        and CREATE_CONSUMER (an update), PAUSE_CONSUMER, RESET_CONSUMER of this consumer."""
        kind = command[0]
        if kind == commands.CREATE_CONSUMER:
            self._on_reset()  # one that begins anew: before anything goes to another subject
            self._configure()
            self.pending.rescan()
        elif kind == commands.PAUSE_CONSUMER:
            self._pauses_under_way = max(0, self._pauses_under_way - 1)
        elif kind == commands.RESET_CONSUMER:
            self._on_reset()
        else:
            self.pending.on_applied(command)
        if tag:
            reply_empty = self._host.reply_empty
            for reply in tag:
                reply_empty(reply)

    def _on_reset(self) -> None:
        if self.pending.on_reset():
            self._sender.position_due_ms = 0
            self._activity.last_delivered_ns = self._activity.last_acked_ns = 0

    def on_removed(self) -> bool:
        """Messages left the stream; False if that changes nothing for this consumer."""
        return self.pending.on_removed()

    def on_interest(self, has_interest: bool) -> None:
        """Interest in the deliver subject appeared or ended."""
        self.is_push_bound = has_interest
        self._activity.active_ms = self._host.now_ms()
        targets = self._targets
        if isinstance(targets, PushTarget):
            targets.on_interest(has_interest)

    def on_tick(self, now_ms: int) -> None:
        """Time has passed: end pulls, send heartbeats, collect what is due again."""
        self._armed_ms = 0
        if self._is_stopped:
            return
        targets, sender = self._targets, self._sender
        if targets.expire(now_ms):
            self._activity.active_ms = now_ms
        self.pending.poll_timers(now_ms)
        is_place_free = targets.poll(now_ms)
        if sender.position_due_ms and now_ms >= sender.position_due_ms:
            sender.propose_position()
        if is_place_free:
            self._host.wake_soon(self)
        if self._settings.inactive_ms:
            self._poll_activity(now_ms)

    def _poll_activity(self, now_ms: int) -> None:
        """Propose to remove the consumer if it was not used for too long."""
        activity = self._activity
        inactive_ms = self._settings.inactive_ms
        if activity.is_removal_proposed or now_ms < activity.active_ms + inactive_ms:
            return
        if self._targets.has_listeners():
            activity.active_ms = now_ms
            return
        if not self._settings.is_push:
            # A client that was given a message may be at work on it until its ack is due.
            now_ns = self._host.now_ns()
            due_ms = self.pending.redelivery.ack_due_ms(now_ns=now_ns, now_ms=now_ms)
            if due_ms:
                activity.active_ms = due_ms
                return
        activity.is_removal_proposed = True
        name, uid = self.consumer.name, self.consumer.uid
        command = [commands.DELETE_CONSUMER, self._host.now_ns(), name, uid, "inactive"]
        self._host.propose(command, is_forced=True)

    def flush(self) -> None:
        """Propose what is collected (acks of all kinds, position), for a read barrier covers only
        what is in the log."""
        if self._is_stopped:
            return
        self.requests.flush()
        if self._sender.position_due_ms:
            self._sender.propose_position()

    # --- planning ---------------------------------------------------------------------------------

    def plan(self, budget_msgs: int) -> bool:
        """Flush collected acks, then deliver what can be. True: call again soon, more to do."""
        if self._is_stopped:
            return False
        self.requests.flush()
        is_more = False
        # Also without a waiting pull: a time that is over would wake the cursor for ever.
        self._hold.until_ms = 0
        targets, consumer = self._targets, self.consumer
        if targets.has_takers():
            if consumer.paused_until_ns and consumer.paused_until_ns > self._host.now_ns():
                targets.end_no_waits()
            else:
                is_more = self._sender.send(budget_msgs)
        if consumer.paused_until_ns and not self._pauses_under_way:
            self._poll_pause()
        self._arm()
        return is_more

    def record_pause_proposed(self) -> None:
        """A pause is to be set or ended. Until that is applied nobody says that one is over: it
        would be another one's end."""
        self._pauses_under_way += 1

    def _poll_pause(self) -> None:
        until_ns = self.consumer.paused_until_ns
        now_ns = self._host.now_ns()
        if until_ns > now_ns:
            self._hold.until_ms = self._host.now_ms() + (until_ns - now_ns + _MS - 1) // _MS
            return
        self.record_pause_proposed()
        command = [commands.PAUSE_CONSUMER, now_ns, self.consumer.name, until_ns]
        self._host.propose(command, is_forced=True)

    def _arm(self) -> None:
        """Ask for the earliest wake any of the timers needs."""
        soonest = self.pending.redelivery.next_ms
        for at_ms in (
            self._targets.next_event_ms(),
            self._sender.position_due_ms,
            self._hold.until_ms,
        ):
            if at_ms and (soonest == 0 or at_ms < soonest):
                soonest = at_ms
        inactive_ms = self._settings.inactive_ms
        if inactive_ms and not self._activity.is_removal_proposed:
            at_ms = self._activity.active_ms + inactive_ms
            if soonest == 0 or at_ms < soonest:
                soonest = at_ms
        if soonest and (self._armed_ms == 0 or soonest < self._armed_ms):
            self._armed_ms = soonest
            self._host.wake_at(soonest, self)

    # --- the end ----------------------------------------------------------------------------------

    def stop(self, status: bytes = b"") -> None:
        """End: waiting pulls get `status` (e.g. b"409 Leadership Change", b"409 Consumer Deleted",
        b"409 Server Shutdown"; b"" for none). Nothing is proposed any more."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self.requests.close()
        self._targets.end(status)
        self.is_push_bound = False
