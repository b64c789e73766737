"""Commands that one consumer's cursor proposes: each with a time stamp of its own."""

from __future__ import annotations

from streamd.machine.commands import Command
from streamd.machine.consumers.consumer import Consumer
from streamd.node.delivery.delivery_host import DeliveryHost


class ConsumerCommands:
    """Proposals of one cursor. Stamps only grow, so that timers recognise a delivery by its own."""

    __slots__ = ("_consumer", "_host", "_last_stamp", "_refilters")

    def __init__(self, consumer: Consumer, host: DeliveryHost) -> None:
        self._consumer = consumer
        self._host = host
        self._last_stamp = 0
        self._refilters = consumer.refilters  # of the consumer, when deliveries were proposed last

    def begin_after(self, stamp: int) -> None:
        """Use only later stamps: the leader before may have had a clock ahead of this one."""
        self._last_stamp = stamp

    def stamp(self) -> int:
        """Return a new time stamp."""
        self._last_stamp = ts = max(self._host.now_ns(), self._last_stamp + 1)
        return ts

    def propose(
        self,
        kind: int,
        argument: object,
        *,
        is_forced: bool = False,
        tag: list[bytes] | None = None,
    ) -> int:
        """Propose a command of this consumer; returns its stamp."""
        ts = self.stamp()
        command = [kind, ts, self._consumer.uid, argument]
        self._host.propose(command, is_forced=is_forced, tag=tag)
        return ts

    def propose_sent(self, command: Command) -> None:
        """Propose a DELIVERED or POSITION. What was sent since the one before may have been chosen
        by a filter that is another by now."""
        if self._refilters:
            command.append(self._refilters)
        self._refilters = self._consumer.refilters
        self._host.propose(command, is_forced=False)
