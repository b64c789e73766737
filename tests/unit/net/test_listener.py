"""The listener on a real loopback socket: start, serve, reload, lame duck, close."""

import asyncio
import json
from types import SimpleNamespace

import pytest
import uvloop

from streamd.config.cluster_options import ClusterOptions
from streamd.config.options import Options
from tests.unit.net.bed import Bed, make_listener


def listener_on(options):
    options.host, options.port = "127.0.0.1", -1
    return make_listener(options, server_name="one")


async def connected(listener):
    reader, writer = await asyncio.open_connection(listener.host, listener.port)
    info = json.loads((await reader.readline())[5:])
    writer.write(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\n')
    assert await reader.readline() == b"PONG\r\n"
    assert b'"connect_info":true' in await reader.readline()
    return reader, writer, info


def test_clients_are_served_by_either_event_loop():
    """uvloop's transport, which a server runs on, is no subclass of asyncio's."""

    async def main():
        listener = listener_on(Options(server_name="one"))
        await listener.start()
        async with asyncio.timeout(30):
            _, writer, info = await connected(listener)
        assert info["server_name"] == "one"
        writer.close()
        await listener.close()

    for loop_factory in (asyncio.new_event_loop, uvloop.new_event_loop):
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(main())


async def test_a_free_port_is_taken_and_told():
    listener = listener_on(Options(server_name="one"))
    await listener.start()
    assert listener.port > 0
    reader, writer, info = await connected(listener)
    assert info["port"] == listener.port and info["server_name"] == "one"
    writer.write(b"SUB a 1\r\nPUB a 2\r\nhi\r\n")
    assert await reader.readexactly(15) == b"MSG a 1 2\r\nhi\r\n"
    await listener.close()
    assert await reader.read() == b""
    assert listener.registry.closed[-1].reason == "Server Shutdown"
    writer.close()


async def test_many_messages_in_many_chunks_all_arrive():
    listener = listener_on(Options())
    await listener.start()
    reader, writer, _ = await connected(listener)
    _, sender, _ = await connected(listener)
    writer.write(b"SUB a.* 1\r\nPING\r\n")
    assert await reader.readline() == b"PONG\r\n"
    data = b"".join(b"PUB a.%d 300\r\n%0300d\r\n" % (i % 3, i) for i in range(3000))
    wanted = b"".join(b"MSG a.%d 1 300\r\n%0300d\r\n" % (i % 3, i) for i in range(3000))
    sender.write(data)
    assert await reader.readexactly(len(wanted)) == wanted
    await listener.close()
    writer.close(), sender.close()


async def test_a_reload_changes_admission_and_informs_open_connections():
    listener = listener_on(Options())
    await listener.start()
    reader, writer, _ = await connected(listener)
    listener.reload(Options(host="127.0.0.1", port=-1, token="x", max_payload=999))
    info = json.loads((await reader.readline())[5:])
    assert info["max_payload"] == 999 and info["auth_required"] is True
    other, other_writer = await asyncio.open_connection(listener.host, listener.port)
    await other.readline()
    other_writer.write(b"PING\r\n")
    assert await other.readline() == b"-ERR 'Authorization Violation'\r\n"
    await listener.close()
    writer.close(), other_writer.close()


async def test_lame_duck_tells_clients_and_then_lets_them_go():
    options = Options(lame_duck_grace_ns=1_000_000, lame_duck_duration_ns=2_000_000)
    listener = listener_on(options)
    await listener.start()
    reader, writer, _ = await connected(listener)
    await listener.lame_duck()
    assert b'"ldm":true' in await reader.readline()
    assert await reader.read() == b""
    await listener.close()
    writer.close()


async def test_clients_see_the_advertised_address():
    """`client_advertise`: in INFO instead of where we listen; another one after a reload."""
    listener = listener_on(Options(client_advertise="a.example.com:4333"))
    await listener.start()
    reader, writer, info = await connected(listener)
    assert (info["host"], info["port"]) == ("a.example.com", 4333)
    listener.reload(Options(host="127.0.0.1", port=-1, client_advertise="b.example.com"))
    info = json.loads((await reader.readline())[5:])
    assert (info["host"], info["port"]) == ("b.example.com", listener.port)
    listener.reload(Options(host="127.0.0.1", port=-1))
    info = json.loads((await reader.readline())[5:])
    assert (info["host"], info["port"]) == ("127.0.0.1", listener.port)
    await listener.close()
    writer.close()


@pytest.mark.parametrize(
    ("allowed", "afforded", "reason"), [(65536, 2, "ulimit -n"), (2, 100, "max_connections")]
)
async def test_too_many_clients_are_refused(allowed, afforded, reason):
    """More than the options allow, or than the process affords: refused by name, told once; those
    who are here stay, and who goes makes room."""
    options = Options(host="127.0.0.1", port=-1, max_connections=allowed)
    told = []
    log = SimpleNamespace(warning=lambda text, **facts: told.append((text, facts)))
    listener = make_listener(options, log=log, connections_max=afforded)
    await listener.start()
    reader, writer, _ = await connected(listener)
    _, second, _ = await connected(listener)
    for _ in range(3):
        refused, refused_writer = await asyncio.open_connection(listener.host, listener.port)
        assert await refused.read() == b"-ERR 'maximum connections exceeded'\r\n"
        refused_writer.close()
    [(text, facts)] = told
    assert reason in text
    assert facts == {"connections": 2}
    writer.write(b"PING\r\n")
    assert await reader.readline() == b"PONG\r\n"
    writer.write(b"nonsense\r\n")
    await reader.read()
    _, third, _ = await connected(listener)
    await listener.close()
    for each in (writer, second, third):
        each.close()


async def test_clients_are_told_of_other_servers():
    options = Options(cluster=ClusterOptions(name="c", port=-1))
    listener = listener_on(options)
    await listener.start()
    reader, writer, info = await connected(listener)
    assert info["cluster"] == "c" and "connect_urls" not in info
    urls = ["127.0.0.1:1", "127.0.0.1:2"]
    listener.set_connect_urls(urls)
    listener.set_connect_urls(list(urls))  # no news
    listener.set_connect_urls([])
    told = [json.loads((await reader.readline())[5:])["connect_urls"] for _ in "12"]
    assert told == [urls, []]
    await listener.close()
    assert await reader.read() == b""
    writer.close()


async def test_the_end_of_the_process_closes_connections_with_nothing_to_send() -> None:
    """Others are written to, and ended as ever: what they were sent would be lost."""
    bed = Bed()
    idle, busy = bed.peer(), bed.peer()
    busy.transport.waiting = 9
    closing = asyncio.create_task(bed.listener.close(leaves_open=True))
    await asyncio.sleep(0)
    assert (idle.transport.is_closing, busy.transport.is_closing) == (False, True)
    assert not closing.done()
    busy.leave()
    await closing
