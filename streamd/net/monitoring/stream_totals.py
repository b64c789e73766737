"""Sums over the streams of a node, for /varz and /jsz.

Monitoring asks for them every second or so, and of thousands of streams most are quiet: the share
of a stream is kept until one of its numbers may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from streamd.net.monitoring.sliced_pages import Steps, looked_at
from streamd.net.monitoring.stream_moments import Moment
from streamd.types import Uid

if TYPE_CHECKING:  # a server without streams does not load these rooms
    from streamd.machine.streams.stream import StreamMachine
    from streamd.node.ports import StreamHandle

Leads = Callable[["StreamHandle"], bool]
"""Tells whether this node leads a stream."""


class Totals(NamedTuple):
    """Sums over streams, or the share of one of them; bytes where nothing else is said."""

    streams: int = 0
    streams_led: int = 0
    consumers: int = 0
    consumers_led: int = 0
    messages: int = 0
    bytes: int = 0
    memory: int = 0
    storage: int = 0
    reserved_memory: int = 0
    reserved_storage: int = 0
    ha_assets: int = 0  # streams of more than one replica


class _Share(NamedTuple):
    """Share of a stream, and what it was made of."""

    moment: Moment
    leads: bool
    share: Totals


class TotalsKeeper:
    """Keeps the sums over all streams of a node, and brings them up to date when asked."""

    def __init__(self) -> None:
        self._shares: dict[Uid, _Share] = {}
        self._sums = Totals()

    def totals(self, replicas: Sequence[StreamHandle], leads: Leads) -> Steps[Totals]:
        """Look at all streams of this node; returns their sums."""
        shares = self._shares
        for handle in looked_at(replicas):
            if handle is None:
                yield
                continue
            machine, is_led = handle.machine, leads(handle)
            last = shares.get(handle.uid)
            if last is None or last.leads is not is_led or not last.moment.is_of(machine):
                share = share_of(machine, leads=is_led)
                self._forget(handle.uid)
                shares[handle.uid] = _Share(Moment(machine), is_led, share)
                self._sums = added(self._sums, share)
        if len(shares) > len(replicas):
            here = {handle.uid for handle in replicas}
            for uid in [uid for uid in shares if uid not in here]:
                self._forget(uid)
        return self._sums

    def _forget(self, uid: Uid) -> None:
        last = self._shares.pop(uid, None)
        if last is not None:
            self._sums = Totals(*(a - b for a, b in zip(self._sums, last.share, strict=True)))


def share_of(machine: StreamMachine, *, leads: bool) -> Totals:
    """Return what one stream adds to the sums."""
    config, index = machine.config, machine.index
    held = index.live.bytes
    consumer_count = machine.listed_count if machine.consumers else 0
    reserved = max(0, config.get("max_bytes", -1))
    is_file = config.get("storage", "file") == "file"
    return Totals(
        streams=1,
        streams_led=int(leads),
        consumers=consumer_count,
        consumers_led=consumer_count * leads,
        messages=index.count,
        bytes=held,
        memory=0 if is_file else held,
        storage=held if is_file else 0,
        reserved_memory=0 if is_file else reserved,
        reserved_storage=reserved if is_file else 0,
        ha_assets=int(config.get("num_replicas", 1) > 1),
    )


def added(*totals: Totals) -> Totals:
    """Return the sums of all."""
    return Totals(*map(sum, zip(*totals, strict=True)))
