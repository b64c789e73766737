"""The server as a process: flags, start, stop, kill, bad surroundings, crash safety."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import ServerDied, ServerProcess
from tests.e2e.conftest import Start
from tests.wire import CONNECT, Wire

pytestmark = pytest.mark.slow
LISTENING = re.compile(rb"Listening for client connections on ([\d.]+):(\d+)")


def _stderr_until(process: subprocess.Popen[bytes], wanted: bytes) -> bytes:
    assert process.stderr is not None
    seen = b""
    for line in process.stderr:
        seen += line
        if wanted in line:
            return seen
    raise AssertionError(f"ended without {wanted!r}: {seen.decode(errors='replace')}")


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_starts_on_a_free_port_and_stops_on_a_signal(
    binary: str, tmp_path: Path, how: signal.Signals
) -> None:
    """`-p -1 -js -sd DIR -a HOST`: says where it listens, is ready, stops in seconds."""
    process = subprocess.Popen(
        [binary, "-p", "-1", "-js", "-sd", str(tmp_path), "-a", "127.0.0.1"], stderr=subprocess.PIPE
    )
    try:
        log = _stderr_until(process, b"Server is ready")
        found = LISTENING.search(log)
        assert found, log
        with Wire(int(found[2])) as wire:
            assert wire.info["jetstream"] is True
        process.send_signal(how)
        assert process.wait(5) in (0, 1)
    finally:
        process.kill()
        process.wait()


def test_wrong_flag_and_wrong_config_say_what_is_wrong(binary: str, tmp_path: Path) -> None:
    config = tmp_path / "bad.conf"
    config.write_text("port: 4222\nmax_payload: {\n")
    for arguments in (["--no-such-flag"], ["-c", str(config)], ["-c", str(tmp_path / "none.conf")]):
        done = subprocess.run(
            [binary, *arguments], capture_output=True, text=True, timeout=20, check=False
        )
        assert done.returncode == 1 or "nats-server" in binary, (arguments, done)
        assert done.stderr.strip(), arguments
        assert "Traceback" not in done.stderr, arguments


def test_port_in_use_is_fatal(binary: str, server: ServerProcess, tmp_path: Path) -> None:
    done = subprocess.run(
        [binary, "-p", str(server.port), "-a", "127.0.0.1"],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 1
    assert "[FTL]" in done.stderr
    assert "Traceback" not in done.stderr


def test_second_server_on_one_directory_is_refused(binary: str, server: ServerProcess) -> None:
    if "nats-server" in binary:
        pytest.skip("nats-server does not lock its directory")
    done = subprocess.run(
        [binary, "-p", "-1", "-a", "127.0.0.1", "-js", "-sd", str(server.store_dir)],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 1
    assert "[FTL]" in done.stderr
    with Wire(server.port) as wire:
        assert "error" not in wire.api("INFO")


def test_monitoring_answers(server: ServerProcess) -> None:
    for path in ("/healthz", "/varz", "/connz", "/subsz", "/jsz?streams=true&consumers=true"):
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}{path}") as answer:
            assert answer.status == 200
            assert isinstance(json.load(answer), dict)


def _numbers(seen: Any) -> Any:
    """Without when it was last active: that is not kept over a restart."""
    if isinstance(seen, dict):
        return {name: value for name, value in seen.items() if name != "last_active"}
    return seen


def test_everything_is_there_after_restart(server: ServerProcess) -> None:
    """Messages, dedupe ids, consumers with their acks and unacked messages, settings, holes."""
    config = {"name": "S", "subjects": ["s.>"], "max_msgs_per_subject": 3, "description": "kept"}
    with Wire(server.port) as wire:
        assert "error" not in wire.api("STREAM.CREATE.S", config)
        for number in range(20):
            ids = {"Nats-Msg-Id": str(number)}
            assert wire.ask(f"s.{number % 8}", b"%d" % number, headers=ids)
        wire.api("STREAM.MSG.DELETE.S", {"seq": 5})
        consumer = {"durable_name": "C", "ack_policy": "explicit"}
        wire.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": consumer})
        frames = wire.ask("$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":6}', count=6)
        for number in (0, 1, 3):
            assert wire.ask(frames[number].reply, b"+ACK")
        before = wire.api("STREAM.INFO.S", {"deleted_details": True, "subjects_filter": ">"})
        consumer_before = wire.api("CONSUMER.INFO.S.C")
    for how in ("stop", "kill", "stop"):
        getattr(server, how)()
        server.start()
        with Wire(server.port) as wire:
            after = wire.api("STREAM.INFO.S", {"deleted_details": True, "subjects_filter": ">"})
            consumer_after = wire.api("CONSUMER.INFO.S.C")
            again = wire.ask("s.1", b"x", headers={"Nats-Msg-Id": "9"})[0].json()
        assert after["state"] == before["state"], how
        assert after["config"] == before["config"], how
        for key in ("delivered", "ack_floor", "num_ack_pending", "num_pending"):
            assert _numbers(consumer_after[key]) == _numbers(consumer_before[key]), (how, key)
        assert again.get("duplicate") is True, how


def test_memory_stream_is_empty_after_restart(server: ServerProcess) -> None:
    with Wire(server.port) as wire:
        wire.api("STREAM.CREATE.M", {"name": "M", "subjects": ["m"], "storage": "memory"})
        wire.api("STREAM.CREATE.F", {"name": "F", "subjects": ["f"]})
        wire.ask("m", b"x")
        wire.ask("f", b"x")
    server.kill()
    server.start()
    with Wire(server.port) as wire:
        assert wire.api("STREAM.INFO.F")["state"]["messages"] == 1
        found = wire.api("STREAM.INFO.M")
        assert found.get("state", {}).get("messages", 0) == 0


def test_deleted_stream_stays_deleted(server: ServerProcess) -> None:
    config = {"name": "S", "subjects": ["s"]}
    with Wire(server.port) as wire:
        wire.api("STREAM.CREATE.S", config)
        for _ in range(10):
            wire.ask("s", b"old")
        wire.api("STREAM.DELETE.S")
        if "nats-server" not in server.binary:
            wire.api("STREAM.CREATE.S", config)
            assert wire.api("STREAM.INFO.S")["state"]["messages"] == 0
            assert wire.ask("s", b"new")[0].json()["seq"] == 1
            wire.api("STREAM.DELETE.S")
    server.kill()
    server.start()
    with Wire(server.port) as wire:
        assert wire.api("STREAM.NAMES")["streams"] in (None, [])


def crash_rounds(server: ServerProcess, rounds: int, seed: int) -> tuple[int, int]:
    """Publish under SIGKILL; return (acked, lost). Also nothing acked may be renumbered."""
    rng = random.Random(seed)
    server.start()
    with Wire(server.port) as wire:
        wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"], "allow_direct": True})
        consumer = {"durable_name": "C", "ack_policy": "explicit", "max_ack_pending": -1}
        wire.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": consumer})
    acked: dict[int, bytes] = {}
    sent = 0
    floor = 0
    for _ in range(rounds):
        wire = Wire(server.port)
        wire.subscribe("acks.*")
        wanted = rng.randrange(1, 400)
        first = sent
        for _ in range(wanted + 200):
            wire.publish(f"s.{sent % 5}", b"body %d" % sent, reply=f"acks.{sent}")
            sent += 1
        for _ in range(wanted):
            frame = wire.next(5)
            assert frame.op == "MSG", (frame, server.log_tail())
            number = int(frame.subject.partition(".")[2])
            assert number >= first
            acked[frame.json()["seq"]] = b"body %d" % number
        with Wire(server.port) as reader:
            frames = reader.ask(
                "$JS.API.CONSUMER.MSG.NEXT.S.C", b'{"batch":20,"no_wait":true}', count=20,
                within_s=1, is_last=lambda frame: bool(frame.status),
            )  # fmt: skip
            for frame in frames:
                if not frame.status and reader.ask(frame.reply, b"+ACK", within_s=2):
                    floor = max(floor, int(frame.reply.split(".")[5]))
        server.kill()
        # Acks that were on their way count as well: the client has them.
        while (late := wire.next(2)).op != "CLOSED":
            acked[late.json()["seq"]] = b"body %d" % int(late.subject.partition(".")[2])
        wire.close()
        server.start()
    stored: dict[int, bytes] = {}
    with Wire(server.port) as wire:
        while True:  # a direct get of many ends with 204, or 404 when there are no more
            ask = b'{"seq":%d,"batch":1000}' % (max(stored, default=0) + 1)
            frames = wire.ask(
                "$JS.API.DIRECT.GET.S", ask, is_last=lambda frame: bool(frame.status),
            )  # fmt: skip
            found = {int(each.pairs["Nats-Sequence"]): each.payload for each in frames[:-1]}
            if not found:
                break
            stored |= found
        info = wire.api("CONSUMER.INFO.S.C")
        assert info["ack_floor"]["stream_seq"] >= floor, (info, floor)
    return len(acked), sum(stored.get(seq) != body for seq, body in acked.items())


def test_no_acked_message_is_lost_when_unsynced_bytes_are(
    make_server: Start, lossy_binary: str
) -> None:
    """SIGKILL with every un-fsynced byte dropped, a few rounds."""
    server = make_server(binary=lossy_binary)
    acked, lost = crash_rounds(server, rounds=6, seed=1)
    assert acked > 300
    assert lost == 0


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_no_acked_message_is_lost_in_fifty_rounds(make_server: Start, lossy_binary: str) -> None:
    server = make_server(binary=lossy_binary)
    acked, lost = crash_rounds(server, rounds=50, seed=int(time.time()))
    print(f"{acked} acked, {lost} lost")
    assert lost == 0


def test_big_and_broken_input_does_not_hurt_others(server: ServerProcess) -> None:
    """Oversized payload, endless control line, half a frame: that client's end, nobody else's."""
    good = Wire(server.port)
    good.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    half = Wire(server.port)
    half.send(b"PUB s 100\r\nonly a part")
    for data in (b"PUB s 99999999999\r\n", b"SUB " + b"a" * 10_000_000, os.urandom(100_000)):
        bad = Wire(server.port)
        bad.send(data)
        frames = bad.collect(within_s=3)
        assert frames, data[:20]
        assert frames[-1].op in ("CLOSED", "-ERR"), (data[:20], frames[-1])
        bad.close()
        assert good.ask("s", b"fine")[0].json()["stream"] == "S"
    half.close()
    good.close()


def test_full_memory_directory_is_a_clean_error(binary: str, tmp_path: Path) -> None:
    """A store directory that can not be written: [FTL], status 1, no traceback."""
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    server = ServerProcess(binary, directory=tmp_path / "x", extra="")
    server.configure(extra=f'jetstream {{ store_dir: "{blocked}/below" }}')
    with pytest.raises(ServerDied) as died:
        server.start()
    assert "[FTL]" in str(died.value)
    assert "Traceback" not in str(died.value)


def test_more_clients_than_open_files_stop_no_stream(binary: str, tmp_path: Path) -> None:
    """They took every file that the process may open, and a stream that opens none stops."""
    command = f"ulimit -n 256; exec {binary} -p -1 -m -1 -js -sd {tmp_path} -a 127.0.0.1"
    process = subprocess.Popen(["sh", "-c", command], stderr=subprocess.PIPE)
    crowd: list[socket.socket] = []
    try:
        log = _stderr_until(process, b"Server is ready")
        found, http = LISTENING.search(log), re.search(rb"http monitor on [\d.]+:(\d+)", log)
        assert found
        assert http
        with Wire(int(found[2])) as wire:
            wire.api("STREAM.CREATE.A", {"name": "A", "subjects": ["a"]})
            for _ in range(400):
                for port in (found[2], http[1]):
                    crowd.append(socket.create_connection(("127.0.0.1", int(port))))
            wire.api("STREAM.CREATE.B", {"name": "B", "subjects": ["b"]})
            for subject in ("a", "b") * 20:
                assert "error" not in wire.ask(subject, b"x" * 500_000)[0].json()
            assert wire.api("STREAM.PURGE.A")["purged"] == 20
        assert process.poll() is None
    finally:
        for each in crowd:
            each.close()
        process.kill()
        process.wait()


def test_a_waiting_pull_hears_that_the_server_stops(server: ServerProcess) -> None:
    """Clients tell by it that they should go elsewhere, and that nothing is wrong with them."""
    with Wire(server.port) as wire:
        wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        consumer = {"durable_name": "C", "ack_policy": "explicit"}
        wire.api("CONSUMER.CREATE.S.C", {"stream_name": "S", "config": consumer})
        wire.subscribe("answers")
        request = json.dumps({"batch": 1, "expires": 30 * 10**9}).encode()
        wire.publish("$JS.API.CONSUMER.MSG.NEXT.S.C", request, reply="answers")
        wire.fence()
        assert server.stop() == 0
        frames = wire.collect(within_s=5)
        assert frames[0].status == "409 Server Shutdown"
        assert frames[-1].op == "CLOSED"


def test_clients_are_let_go_when_the_process_ends(server: ServerProcess) -> None:
    """Who reconnects at once would meet a server that is about to go: it is gone by then."""
    with Wire(server.port) as wire:
        wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        assert wire.ask("s", b"x")[0].json()["seq"] == 1
        server.send(signal.SIGTERM)
        assert wire.collect(within_s=10)[-1].op == "CLOSED"
        assert "Server Exiting.." in server.log_tail()
        with pytest.raises(OSError):
            Wire(server.port)


def test_answers_and_acks_name_the_domain(binary: str, tmp_path: Path) -> None:
    config = f'jetstream {{ store_dir: "{tmp_path / "js"}", domain: hub }}'
    named = ServerProcess(binary, directory=tmp_path, is_jetstream=False, extra=config)
    with named as server:
        server.start()
        with Wire(server.port) as wire, Wire(server.port) as listener:
            listener.subscribe("$JS.EVENT.ADVISORY.STREAM.UPDATED.S")
            listener.fence()
            wire.ask("$JS.hub.API.STREAM.CREATE.S", b'{"name":"S","subjects":["s"]}')
            assert wire.api("INFO")["domain"] == "hub"
            assert wire.api("STREAM.INFO.S")["domain"] == "hub"
            ids = {"Nats-Msg-Id": "1"}
            first, again = (wire.ask("s", b"x", headers=ids)[0].payload for _ in range(2))
            assert first == b'{"stream":"S","domain":"hub","seq":1}'
            assert again == b'{"stream":"S","domain":"hub","seq":1,"duplicate":true}'
            wire.subscribe("in.*")
            for at in range(12):  # acks of one chunk are formatted together
                wire.publish("s", b"x", reply=f"in.{at}")
            acks = [frame.json() for frame in wire.collect(count=12, within_s=5)]
            assert acks == [{"stream": "S", "domain": "hub", "seq": 2 + at} for at in range(12)]
            wire.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s", "t"]})
            (advisory,) = listener.collect(count=1, within_s=5)
            assert advisory.json()["domain"] == "hub"


def test_permissions_count_for_requests_that_name_the_domain(binary: str, tmp_path: Path) -> None:
    """A request by the domain's name stands for the plain one: so do permissions to publish."""
    config = f"""
      jetstream {{ store_dir: "{tmp_path / "js"}", domain: hub }}
      authorization {{ users: [
        {{ user: all, password: p }}
        {{ user: most, password: p, permissions: {{
            publish: {{ deny: ["$JS.API.STREAM.DELETE.>", "$KV.K.>"] }} }} }}
        {{ user: some, password: p, permissions: {{
            publish: ["$JS.API.INFO"], subscribe: ">" }} }}
      ] }}
    """
    named = ServerProcess(binary, directory=tmp_path, is_jetstream=False, extra=config)

    def login(user: str) -> Wire:
        return Wire(named.port, CONNECT | {"user": user, "pass": "p"})

    with named as server:
        server.start()
        with login("all") as everyone, login("most") as most, login("some") as some:
            everyone.api("STREAM.CREATE.KV_K", {"name": "KV_K", "subjects": ["$KV.K.>"]})
            assert everyone.ask("$JS.hub.API.$KV.K.a", b"1")[0].json()["seq"] == 1
            for subject, meant in (
                ("$JS.hub.API.STREAM.DELETE.KV_K", "$JS.API.STREAM.DELETE.KV_K"),
                ("$JS.hub.API.$KV.K.a", "$KV.K.a"),
            ):
                most.publish(subject, b"2", reply="answers")
                (refusal,) = most.collect(count=1, within_s=5)
                assert f'"{meant}"' in refusal.text, refusal
            assert some.ask("$JS.hub.API.INFO")[0].json()["domain"] == "hub"
            assert everyone.api("STREAM.INFO.KV_K")["state"]["last_seq"] == 1


def test_creator_of_a_push_consumer_is_answered_before_deliveries(server: ServerProcess) -> None:
    """Clients prepare for messages when they have the answer."""
    config = {"durable_name": "C", "deliver_subject": "d.c", "ack_policy": "none"}
    body = json.dumps({"stream_name": "S", "config": config}).encode()
    with Wire(server.port) as wire:
        wire.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
        for _ in range(3):
            wire.ask("s", b"x")
        wire.subscribe("d.c")
        wire.subscribe("answer")
        wire.publish("$JS.API.CONSUMER.CREATE.S.C", body, reply="answer")
        frames = wire.collect(count=4, within_s=5)
        assert [frame.subject for frame in frames] == ["answer", "s", "s", "s"]
