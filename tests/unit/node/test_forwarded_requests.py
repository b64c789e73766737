"""ForwardedRequests: pulls that another node passes on to the leader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamd import limits
from streamd.node.cluster.forwarded_requests import ForwardedRequests


class Replica:
    """A stream that is led here; records its pulls."""

    is_ready = True
    name = "S"
    account = "$G"

    def __init__(self) -> None:
        self.pulls: list[bytes] = []

    def pull(self, consumer: str, reply: bytes, headers: bytes, payload: bytes) -> bool:
        self.pulls.append(reply)
        return consumer == "d"


class Wires:
    """Subjects that somebody listens to, and the messages that were published."""

    def __init__(self) -> None:
        self.listened: set[bytes] = set()
        self.published: list[tuple[bytes, bytes]] = []

    def has_interest(self, subject: bytes) -> bool:
        return subject in self.listened

    def publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        self.published.append((subject, headers))


class Bed:
    def __init__(self) -> None:
        self.replica, self.wires = Replica(), Wires()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        groups: Any = {7: self.replica}
        wires: Any = self.wires
        self.requests = ForwardedRequests(
            groups,
            None,
            lambda _account: wires,
            lambda delay_s, callback: self.timers.append((delay_s, callback)),
        )

    def pull(self, consumer: str = "d") -> None:
        self.requests.on_pull("b", [7, consumer, b"inbox", b"", b""])


def test_a_pull_whose_client_is_known_to_listen_is_served_at_once() -> None:
    """Without a timer."""
    bed = Bed()
    bed.wires.listened.add(b"inbox")
    bed.pull()
    assert (bed.replica.pulls, bed.timers) == ([b"inbox"], [])


def test_a_pull_that_overtook_the_news_of_its_subscription_is_served_a_moment_later() -> None:
    """The news comes on the link of a third node: served before it, the pull would be dropped."""
    bed = Bed()
    bed.pull()
    assert bed.replica.pulls == []
    ((delay_s, callback),) = bed.timers
    assert delay_s == limits.API_EARLY_S
    bed.wires.listened.add(b"inbox")
    callback()
    assert bed.replica.pulls == [b"inbox"]


def test_a_late_pull_of_an_unknown_consumer_is_refused() -> None:
    """After the wait as well: 503, as for a subject without a listener."""
    bed = Bed()
    bed.pull("gone")
    bed.timers[0][1]()
    ((subject, headers),) = bed.wires.published
    assert subject == b"inbox" and headers.startswith(b"NATS/1.0 503")
