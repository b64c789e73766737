"""Messages by `streamctl`: published, followed, asked for and answered, at three nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.cluster import ClusterProcess
from tests.e2e.conftest import MakeCluster
from tests.e2e.ctl.conftest import Ctl, run_ctl

pytestmark = pytest.mark.slow


@contextmanager
def running(cluster: ClusterProcess, ready: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The program as a process, from when it has told that it is `ready`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "streamd.ctl.app", "-s", cluster.urls[0], *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        line = process.stderr.readline()
        assert ready in line, line + process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_what_is_published_is_shown_at_once(ctl: Ctl, shared_cluster: ClusterProcess) -> None:
    """Of several subjects, what matches; templates are filled in; headers are there."""
    words = ["sub", "live.>", "--count", "2", "--match", "yes", "--output", "json"]
    with running(shared_cluster, "listening on live.>", *words) as process:
        assert ctl("pub", "live.a", "no").status == 0
        body = "yes {{Count}} {{Random 3 3}}"
        sent = ctl("pub", "live.b", body, "--count", "2", "-H", "Kind:test", "-o", "json")
        assert sent.data == {"subject": "live.b", "messages": 2, "bytes": 18}
        out, _ = process.communicate(timeout=60)
    first, second = (json.loads(line) for line in out.splitlines())
    assert first["subject"] == "live.b" and first["headers"] == {"Kind": "test"}
    assert first["data"].startswith("yes 1 ") and second["data"].startswith("yes 2 ")
    assert process.returncode == 0


def test_stored_messages_are_read_and_removed(ctl: Ctl) -> None:
    """Publish with acks, view, get, last, subjects, purge: with the counts that are true."""
    ctl("stream", "add", "MSGS", "--subject", "msgs.*", "--replicas", "3")
    lines = "".join(f'{{"n": {n}}}\n' for n in range(1, 6))
    sent = ctl("pub", "msgs.a", "--lines", "--stream", "-o", "json", stdin=lines)
    assert [ack["seq"] for ack in sent.data["acks"]] == [1, 2, 3, 4, 5]
    assert ctl("pub", "msgs.b", "text", "--stream").out == "stored in MSGS as 6\n"
    again = ["pub", "msgs.b", "--stream", "-H", "Nats-Msg-Id:one", "x"]
    assert ctl(*again).out == "stored in MSGS as 7\n"
    assert ctl(*again).out == "stored in MSGS as 7, known\n"

    viewed = ctl("stream", "view", "MSGS", "--from", "2", "-n", "2", "-o", "json").data
    assert [(m["seq"], json.loads(m["data"])["n"]) for m in viewed] == [(2, 2), (3, 3)]
    told = ctl("stream", "view", "MSGS", "--from", "2", "-n", "2")
    assert "more: streamctl stream view MSGS --from 4" in told.err
    assert "[2]  msgs.a" in told.out and '  "n": 2' in told.out
    assert ctl("stream", "get", "MSGS", "6", "--raw").out == "text"
    assert ctl("stream", "get", "MSGS", "--last", "msgs.a", "-o", "json").data["seq"] == 5
    missing = ctl("stream", "get", "MSGS", "99")
    assert missing.status == 1 and "has no sequence 99" in missing.err
    found = ctl("stream", "subjects", "MSGS", "-o", "json").data
    assert found == [{"subject": "msgs.a", "messages": 5}, {"subject": "msgs.b", "messages": 2}]

    unasked = ctl("stream", "purge", "MSGS", "--subject", "msgs.a", "--keep", "1")
    assert unasked.status == 2
    assert "purge stream MSGS: 5 messages on 'msgs.a', but for the newest 1" in unasked.err
    purged = ctl("stream", "purge", "MSGS", "--subject", "msgs.a", "--keep", "1", "--yes")
    assert purged.out == "4 messages purged from MSGS\n"
    nobody = ctl("pub", "no.stream.here", "x", "--stream")
    assert nobody.status == 1 and "no stream stores 'no.stream.here'" in nobody.err
    wrong = ctl("pub", "msgs.a", "{{Nonsense}}")
    assert wrong.status == 2 and "no template {{Nonsense}}" in wrong.err


def test_an_edit_that_loses_messages_must_be_agreed_to(ctl: Ctl) -> None:
    """Every limit and the retention: the loss is counted, and nothing is changed unasked."""
    ctl("stream", "add", "LOSE", "--subject", "lose.*")
    ctl("pub", "lose.a", "x", "--count", "20", "--stream")
    before = ctl("stream", "info", "LOSE", "-o", "json").data
    for words, told in (
        (["--max-msgs", "5"], "15 messages are removed"),
        (["--max-msgs-per-subject", "3"], "17 messages are removed"),
        (["--max-bytes", "100"], "of messages are removed"),
        (["--retention", "interest"], "messages that the new policy does not keep are removed"),
        (["--set", "max_msgs=1"], "19 messages are removed"),
    ):
        found = ctl("stream", "edit", "LOSE", *words)
        assert found.status == 2, (words, found)
        assert told in found.err and "nothing was done" in found.err, found.err
        dry = ctl("stream", "edit", "LOSE", *words, "--dry-run", "-o", "json")
        assert dry.status == 0 and told in dry.data["losses"][0]
    after = ctl("stream", "info", "LOSE", "-o", "json").data
    assert after["config"] == before["config"] and after["state"]["messages"] == 20
    assert ctl("stream", "edit", "LOSE", "--max-msgs", "5", "--yes").status == 0
    assert ctl("stream", "info", "LOSE", "-o", "json").data["state"]["messages"] == 5


def test_a_tail_follows_from_where_it_is_told(ctl: Ctl, shared_cluster: ClusterProcess) -> None:
    """From a sequence, the last ones, of some subjects; then live, each once and in order."""
    ctl("stream", "add", "TAIL", "--subject", "tail.*", "--replicas", "3")
    for number in range(1, 11):
        ctl("pub", f"tail.{'ab'[number % 2]}", str(number), "--stream")

    def tail(*words: str) -> list[str]:
        found = ctl("tail", "TAIL", "--no-follow", "--raw", *words)
        assert found.status == 0, found.err
        return found.out.splitlines()

    assert tail("--all") == [str(n) for n in range(1, 11)]
    assert tail("--from", "9") == ["9", "10"]
    assert tail("--last", "3") == ["8", "9", "10"]
    assert tail("--all", "--filter", "tail.a") == ["2", "4", "6", "8", "10"]
    assert tail("--last-per-subject") == ["9", "10"]
    assert tail("--since", "1h", "--count", "1") == ["1"]
    assert tail("--all", "--match", "^1") == ["1", "10"]
    assert ctl("tail", "TAIL", "--all", "--last", "1").status == 2

    process = subprocess.Popen(
        [sys.executable, "-m", "streamd.ctl.app", "-s", ",".join(shared_cluster.urls),
         "tail", "TAIL", "--from", "10", "--count", "3", "--raw"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "10\n"
        ctl("pub", "tail.c", "11", "--stream")
        assert process.stdout.readline() == "11\n"
        ctl("pub", "tail.c", "12", "--stream")
        assert process.stdout.readline() == "12\n"
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_request_is_answered(ctl: Ctl, shared_cluster: ClusterProcess) -> None:
    words = ["reply", "greet.me", "hello {{Count}}", "--count", "2"]
    with running(shared_cluster, "answering on greet.me", *words):
        assert ctl("request", "greet.me", "who", "--raw").out == "hello 1\n"
        found = ctl("request", "greet.me", "", "-o", "json").data
        assert [answer["data"] for answer in found] == ["hello 2"]
    nobody = ctl("request", "nobody.there", "x")
    assert nobody.status == 1
    assert "nobody answers on 'nobody.there'" in nobody.err


def test_control_characters_of_clients_are_shown_not_sent(ctl: Ctl) -> None:
    """A payload that would recolour or clear the operator's terminal."""
    ctl("stream", "add", "EVIL", "--subject", "evil")
    ctl("pub", "evil", "--stream", stdin=b"\x1b[2Jgone\x07")
    found = ctl("stream", "view", "EVIL")
    assert "\x1b" not in found.out and r"\x1b[2Jgone\x07" in found.out
    ctl("pub", "evil", "--stream", stdin=b"\xff\x00\x01")
    found = ctl("stream", "get", "EVIL", "2", "-o", "json")
    assert found.data["data_base64"] == "/wAB"
    assert "ff 00 01" in ctl("stream", "get", "EVIL", "2").out


def test_a_tail_goes_on_when_leaders_and_servers_go(
    make_cluster: MakeCluster, own_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message once and in order, though the stream's leader hands over, and then the node that
    the program is connected to is killed."""
    cluster = make_cluster()
    monkeypatch.setenv("NATS_URL", ",".join(cluster.urls[::-1]))
    monkeypatch.setenv("NATS_TIMEOUT", "20s")
    assert run_ctl("stream", "add", "T", "--subject", "t", "--replicas", "3").status == 0
    process = subprocess.Popen(
        [sys.executable, "-m", "streamd.ctl.app", "-s", ",".join(cluster.urls),
         "tail", "T", "--all", "--count", "60", "--raw"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    seen: list[str] = []

    def publish(first: int, last: int) -> None:
        for number in range(first, last + 1):
            sent = run_ctl("pub", "t", str(number), "--stream", "-H", f"Nats-Msg-Id:{number}")
            assert sent.status == 0, sent
        while len(seen) < last:
            seen.append(process.stdout.readline().strip() if process.stdout else "")

    try:
        publish(1, 20)
        moved = run_ctl("server", "step-down", "--stream", "T", "--yes", "-o", "json")
        assert moved.status == 0, moved
        publish(21, 40)
        cluster.kill("n1")  # the first of its URLs: it is connected there
        cluster.leader("T", but="n1")
        publish(41, 60)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()
    assert seen == [str(number) for number in range(1, 61)]
