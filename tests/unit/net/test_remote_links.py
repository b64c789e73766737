"""Core NATS across nodes over real links: `MessageRouter` and `Cluster` on loopback sockets."""

from __future__ import annotations

from streamd.net.route.remote_messages import connect
from tests.unit.net.bed import Bed, Peer
from tests.unit.net.test_cluster_links import Server, bed
from tests.unit.net.test_message_router import msg, pub


class Client:
    """A client of `server` that can be waited for."""

    def __init__(self, server: Server, nats: Bed) -> None:
        self._handler = server.handler
        self._peer: Peer = nats.peer()
        self._got = b""
        self._peer.transport.on_write = self._handler.changed.set

    def send(self, data: bytes) -> None:
        self._got += self._peer.send(data)

    async def until(self, wanted: bytes) -> None:
        def has_come() -> bool:
            self._got += self._peer.take()
            return len(self._got) >= len(wanted)

        await self._handler.until(has_come)
        assert self._got == wanted
        self._got = b""


async def until_interest(server: Server, nats: Bed, subject: bytes, wanted: bool) -> None:
    def on_change(_: bool) -> None:
        server.handler.changed.set()

    tokens = [nats.router.watch(subject, queue, on_change) for queue in (b"", b"q")]
    await server.handler.until(lambda: nats.router.has_interest(subject) is wanted)
    for token in tokens:
        nats.router.unwatch(token)


async def test_requests_deliveries_and_interest_over_a_real_link() -> None:
    """A request and its answer, a consumer's run, and the end of interest with the link."""
    async with bed() as make:
        servers: list[Server] = [make("a")]
        await servers[0].start()
        servers.append(make("b", routes=(servers[0].url,)))
        beds = [Bed(), Bed()]
        for server, nats in zip(servers, beds, strict=True):
            connect(nats.router, server.cluster)
        (a, b), (near, far) = servers, beds
        service = Client(b, far)
        service.send(b"SUB svc q 1\r\nSUB in.* 2\r\n")  # before there is a link
        await b.start()
        await until_interest(a, near, b"svc", True)

        asker = Client(a, near)
        asker.send(b"SUB _INBOX.i.* 5\r\n" + pub(b"svc", b"q", b"_INBOX.i.1"))
        await service.until(msg(b"svc", b"1", b"q", b"_INBOX.i.1"))
        service.send(pub(b"_INBOX.i.1", b"a"))
        await asker.until(msg(b"_INBOX.i.1", b"5", b"a"))

        sink = near.router.sink(b"in.7")
        assert sink is not None and not sink.is_congested()
        count = 500
        columns = (range(count), range(count), range(count), range(count))
        sink.deliver_run(b"A.%d.%d.%d.%d", [b"js.a"] * count, [b"x" * 5000] * count, columns)
        sink.status(b"NATS/1.0 404 No Messages\r\n\r\n")
        wanted = b"".join(
            msg(b"js.a", b"2", b"x" * 5000, b"A.%d.%d.%d.%d" % (at, at, at, at))
            for at in range(count)
        )
        wanted += b"HMSG in.7 2 28 28\r\nNATS/1.0 404 No Messages\r\n\r\n\r\n"
        await service.until(wanted)

        await b.cluster.close()
        await until_interest(a, near, b"svc", False)
