"""What observers of client connections are told, and when."""

from __future__ import annotations

from streamd.config.options import Options
from streamd.net.client.client_registry import ClientConnection
from tests.unit.net.bed import CONNECT, Bed


class Observer:
    def __init__(self) -> None:
        self.told: list[tuple[str, int, int]] = []

    def _note(self, word: str, conn: ClientConnection) -> None:
        self.told.append((word, conn.cid, len(conn.subs)))

    def admitted(self, conn: ClientConnection) -> None:
        self._note("admitted", conn)

    def identified(self, conn: ClientConnection) -> None:
        assert conn.profile.identity is not None
        self._note("identified", conn)

    def refused(self, conn: ClientConnection) -> None:
        assert not conn.is_closed
        self._note("refused", conn)

    def closed(self, conn: ClientConnection) -> None:
        assert conn.stop_ns and conn.reason
        self._note("closed", conn)


def observed(options: Options) -> tuple[Bed, Observer]:
    bed, observer = Bed(options), Observer()
    bed.listener.connections.observe(observer)
    return bed, observer


def test_a_client_comes_logs_in_and_goes() -> None:
    """Its end is told while its subscriptions can be seen, and once."""
    bed, observer = observed(Options())
    peer = bed.peer(CONNECT)
    peer.send(b"SUB a 1\r\n")
    peer.leave()
    peer.leave()
    assert observer.told == [("admitted", 1, 0), ("identified", 1, 0), ("closed", 1, 1)]


def test_a_client_that_is_not_let_in_is_refused_and_then_closed() -> None:
    bed, observer = observed(Options(token="t"))
    bed.peer(CONNECT)
    assert observer.told == [("admitted", 1, 0), ("refused", 1, 0), ("closed", 1, 0)]


def test_a_client_beyond_the_limit_is_not_told_of() -> None:
    bed, observer = observed(Options(max_connections=1))
    bed.peer(CONNECT)
    bed.peer(None)
    assert [cid for _, cid, _ in observer.told] == [1, 1]
