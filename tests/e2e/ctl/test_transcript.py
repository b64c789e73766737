"""Every command of `streamctl`, at one cluster: its output for people as it was (a transcript), and
its JSON as its schema says.

`STREAMD_REWRITE_GOLDEN=1` writes the transcript anew; read the difference.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.msg import Msg

from benchmarks.cluster import ClusterProcess
from streamd.cli.cluster_local import LocalCluster
from streamd.ctl.reference_page import commands
from streamd.store.blocks.discarded_entries_file import LED, TailFacts, TailWriter, text_fields
from streamd.store.disk import OsDisk
from tests.e2e.conftest import Start
from tests.e2e.ctl.conftest import CONFIG, check_golden, golden, run_ctl
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

TEXT_ONLY = {"cluster logs", "completion"}
BEAT_S = 0.02
Say = Callable[..., str]


class Transcript:
    """Command lines and their outputs, in order, and which commands were run how."""

    def __init__(self, signs: dict[str, str]) -> None:
        """`signs`: what takes the place of texts that differ from run to run."""
        self.lines: list[str] = []
        self.signs = signs
        self.as_text: set[str] = set()
        self.as_json: set[str] = set()
        self._known = {name for name, _ in commands()}

    def run(
        self,
        line: str,
        *,
        status: int | None = 0,
        is_loose: bool = False,
        kept: Callable[[str], str] = str,
        columns: int = 120,
    ) -> str:
        """Run a command line, and return its output. `is_loose`: numbers in it are of this moment,
        and columns as wide as they. `kept`: what of the output is the same each time. `status`
        None: 0 or 1."""
        words = shlex.split(line)
        os.environ["COLUMNS"] = str(columns)  # `own_home` puts it back
        found = run_ctl(*words)
        assert found.status in ((0, 1) if status is None else (status,)), (line, found)
        plain = [word for word in words if not word.startswith("-")]
        name = " ".join(plain[:2]) if " ".join(plain[:2]) in self._known else plain[0]
        if "json" in words:
            assert found.out, line
            self.as_json.add(name)
            return found.out
        self.as_text.add(name)
        text = "\n".join(
            part for part in (kept(found.out), *("! " + e for e in found.err.splitlines())) if part
        )
        text = self._steady(golden(self._signed(text)))
        end = f"    # {status}" if status else ""
        shown = _loosened(text) if is_loose else text
        self.lines.append(f"$ streamctl {self._signed(line)}{end}\n{shown}".rstrip())
        return found.out

    def _signed(self, text: str) -> str:
        for old, sign in self.signs.items():
            text = text.replace(old, sign)
        return text

    @staticmethod
    def _steady(text: str) -> str:
        """Return a text without what no run has twice: names of servers that lead, ids, digests."""
        text = re.sub(r"\bn[123]\b", "nX", text)
        text = re.sub(r"nX, [\w ,]+? entries", "nX, STATE, entries", text)
        return re.sub(r"\b[0-9a-f]{16,64}\b", "HEX", text)


def first_words(text: str) -> str:
    """Return the first column of a table, or the titles of a description."""
    words = (re.split(r":|  ", line.strip())[0] for line in text.splitlines())
    return "\n".join(word for word in words if word and word[0] != "─")


def leader_first(text: str) -> str:
    """Return a table of servers with the row of the leader first: each of them may lead."""
    head, rows = text.splitlines()[:2], text.splitlines()[2:]
    return "\n".join([*head, *sorted(rows, key=lambda row: "leader" not in row)])


def checks(text: str) -> str:
    """Return the names of the doctor's checks."""
    return first_words(text.partition("\n\n")[0])


def before_histogram(text: str) -> str:
    """Return an output up to the first step of a histogram."""
    return text.partition("\n  <")[0]


def nothing(_: str) -> str:
    """Return nothing: all of an output is of this moment."""
    return ""


def _loosened(text: str) -> str:
    """Return a text without its numbers, and without the widths of its columns."""
    text = re.sub(r"\d[\d.,]*", "N", text)
    text = re.sub(r" {2,}", "  ", re.sub("─+", "─", text))
    return re.sub(r"(?:N|AGE)(?: [KMGT]?i?B)?(?:/s)?\b", "N", text)


@contextmanager
def chatter(url: str) -> Iterator[None]:
    """Keep a client busy in the block: it publishes to `live.x`, answers on `ask.me`, asks on
    `tell.me`."""
    ready, is_over = threading.Event(), threading.Event()

    async def talk() -> None:
        nc = await nats.connect(url, user="story", password="p")

        async def answer(msg: Msg) -> None:
            await msg.respond(b'{"answer": 42}')

        await nc.subscribe("ask.me", cb=answer)
        await nc.flush()
        ready.set()
        while not is_over.is_set():
            await nc.publish("live.x", b"tick", headers={"Kind": "beat"})
            await nc.publish("tell.me", b"what?", reply="nobody.reads.this")
            await asyncio.sleep(BEAT_S)
        await nc.close()

    thread = threading.Thread(target=asyncio.run, args=(talk(),))
    thread.start()
    try:
        assert ready.wait(60)
        yield
    finally:
        is_over.set()
        thread.join()


@pytest.fixture
def story(
    shared_cluster: ClusterProcess,
    own_home: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Transcript:
    monkeypatch.setenv("NATS_URL", ",".join(shared_cluster.urls))
    monkeypatch.setenv("NATS_USER", "story")
    monkeypatch.setenv("NATS_PASSWORD", "p")
    monkeypatch.setenv("NATS_TIMEOUT", "20s")
    monkeypatch.chdir(tmp_path)
    ports = {url.rpartition(":")[2]: "PORT" for url in shared_cluster.urls}
    return Transcript({str(tmp_path): "HERE", **ports})


def test_every_command_prints_what_it_printed(
    story: Transcript,
    shared_cluster: ClusterProcess,
    make_server: Start,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """In the order of an operator's day; none is left out."""
    _streams_and_consumers(story.run)
    with chatter(shared_cluster.urls[0]):
        _messages(story.run)
    _buckets(story.run, tmp_path)
    _backups(story.run, story.signs)
    _contexts(story.run)
    _discarded(story.run, tmp_path)
    with monkeypatch.context() as changed:
        changed.setenv("NATS_USER", "admin")
        _servers(story.run)
    _directory(story, make_server, monkeypatch)
    _local_cluster(story)
    known = {name for name, _ in commands()}
    assert sorted(known - story.as_text) == []
    assert sorted(known - TEXT_ONLY - story.as_json) == []
    check_golden("transcript", "\n\n".join(story.lines))


def _streams_and_consumers(run: Say) -> None:
    run("stream list")
    run("stream add ORDERS --subject 'orders.*' --replicas 3 --max-age 7d --description Sales")
    run("stream add MORE --subject 'more.>' -o json")
    run("stream edit ORDERS --max-msgs 500 --dry-run")
    run("stream edit ORDERS --max-msgs 500 -o json")
    run("stream edit ORDERS --max-msgs 500")
    run("stream info ORDERS -o json")
    run("pub orders.eu '{\"n\": {{Count}}}' --count 9 --stream")
    run("pub orders.us hello --stream -H Kind:greeting")
    run("pub orders.us hello --stream -o json")
    run("stream info ORDERS")
    run("stream list")
    run("stream list -o json")
    run("stream list --names")
    run("stream report --sort messages")
    run("stream report -o json")
    run("stream subjects ORDERS")
    run("stream subjects ORDERS -o json")
    run("stream get ORDERS 10")
    run("stream get ORDERS 10 -o json")
    run("stream get ORDERS 99", status=1)
    run("stream view ORDERS --from 9 -n 3")
    run("stream view ORDERS -o json")
    run("tail ORDERS --from 10 --no-follow")
    run("tail ORDERS --all --no-follow -o json")
    run("consumer add ORDERS billing --filter orders.eu --ack-wait 1m")
    run("consumer add ORDERS audit -o json")
    run("consumer edit ORDERS billing --max-pending 50")
    run("consumer edit ORDERS billing --max-pending 60 -o json")
    run("consumer next ORDERS billing -n 2 --no-ack")
    run("consumer next ORDERS audit -n 2 -o json")
    run("consumer next ORDERS billing --wait 50ms --term -n 1")
    run("consumer info ORDERS billing")
    run("consumer info ORDERS billing -o json")
    run("consumer list ORDERS")
    run("consumer list ORDERS -o json")
    run("consumer report ORDERS --sort pending")
    run("consumer report ORDERS -o json")
    run("lag")
    run("lag ORDERS --max-messages 5 -o json", status=1)
    run("consumer pause ORDERS billing --for 30m")
    run("consumer pause ORDERS audit --for 30m -o json")
    run("consumer resume ORDERS billing")
    run("consumer resume ORDERS audit -o json")
    run("consumer reset ORDERS billing --yes", is_loose=True)
    run("consumer reset ORDERS audit --seq 3 --yes -o json")
    run("consumer delete ORDERS billing", status=2)
    run("consumer delete ORDERS billing --yes")
    run("consumer delete ORDERS audit --yes -o json")
    run("top streams --once --every 50ms", is_loose=True)
    run("top --once --every 50ms --sort messages -o json")
    run("stream purge ORDERS --subject orders.eu --keep 4 --yes")
    run("stream purge ORDERS --keep 2 --yes -o json")
    run("stream seal MORE --yes")
    run("stream seal MORE --yes -o json")
    run("stream delete MORE", status=2)
    run("stream delete MORE --yes")
    run("stream add MORE --subject 'more.>'")
    run("stream delete MORE --yes -o json")


def _messages(run: Say) -> None:
    run("sub live.x --count 2")
    run("sub live.x --count 1 -o json")
    run("request ask.me '{\"question\": 1}'")
    run("request ask.me x -o json")
    run("request nobody.there x", status=1)
    run("reply tell.me nothing --count 1")
    run("reply tell.me nothing --count 1 -o json")
    run("bench request --count 20 --size 64", is_loose=True, kept=before_histogram)
    run("bench js-pub --count 20 -o json")


def _buckets(run: Say, directory: Path) -> None:
    run("kv list")
    run("kv add profiles --history 5 --replicas 3")
    run("kv add others -o json")
    run("kv put profiles ann.email ann@example.org")
    run("kv put profiles ann.email ann@example.com -o json")
    run("kv create profiles bob.email bob@example.org")
    run("kv create profiles bob.email again", status=1)
    run("kv create profiles eve.email eve@example.org -o json")
    run("kv update profiles bob.email bob@example.com --revision 3")
    run("kv update profiles bob.email bob@example.net --revision 5 -o json")
    run("kv get profiles ann.email")
    run("kv get profiles ann.email -o json")
    run("kv keys profiles")
    run("kv keys profiles --values")
    run("kv keys profiles -o json")
    run("kv history profiles bob.email")
    run("kv history profiles bob.email -o json")
    run("kv watch profiles 'ann.>' --count 1")
    run("kv watch profiles --count 2 -o json")
    run("kv list")
    run("kv list -o json")
    run("kv info profiles")
    run("kv info profiles -o json")
    run("kv delete profiles eve.email")
    run("kv delete profiles bob.email -o json")
    run("kv purge profiles ann.email --yes")
    run("kv purge profiles eve.email --yes -o json")
    run("kv remove others --yes")
    run("kv remove profiles --yes -o json")

    file = directory / "model.bin"
    file.write_bytes(b"0123456789" * 1000)
    run("object buckets")
    run("object add models --replicas 3")
    run("object add spare -o json")
    run("object put models model.bin --description first")
    run("object put models model.bin --name again.bin -o json")
    run("object list models")
    run("object list models -o json")
    run("object info models model.bin")
    run("object info models model.bin -o json")
    run("object get models model.bin --to copy.bin")
    run("object get models model.bin --to other.bin -o json")
    assert (directory / "copy.bin").read_bytes() == file.read_bytes()
    run("object buckets")
    run("object buckets -o json")
    run("object delete models model.bin --yes")
    run("object delete models again.bin --yes -o json")
    run("object remove models --yes")
    run("object remove spare --yes -o json")


def _backups(run: Say, signs: dict[str, str]) -> None:
    made = json.loads(run("backup create saved ORDERS -o json"))
    signs[made["id"]] = "BACKUP-1"
    signs[made["server"]] = "SERVER"
    run("backup create saved.tar ORDERS", is_loose=True)
    run("backup list saved", is_loose=True)
    run("backup list saved -o json")
    run("backup show saved", is_loose=True)
    run("backup show saved -o json")
    run("backup verify saved")
    run("backup verify saved -o json")
    run("backup restore saved ORDERS --as COPY --subject 'copy.*'")
    run("backup restore saved ORDERS --as COPY2 --subject 'copies.*' -o json")


def _contexts(run: Say) -> None:
    run("context list")
    run("context save staging --server nats://10.0.0.7:4222 --select --description 'far away'")
    run("context save other --server nats://10.0.0.8:4222 -o json")
    run("context list", columns=500, is_loose=True)
    run("context list -o json")
    run("context show staging")
    run("context show -o json")
    run("context select other")
    run("context select other -o json")
    run("context delete staging")
    run("context delete other -o json")
    run("completion bash", kept=nothing)


def _discarded(run: Say, directory: Path) -> None:
    facts = TailFacts(
        stream="ORDERS", group=2, node="n1", leader="n2", first_index=4, last_index=5, last_term=2,
        committed_to=4, applied_to=3, proof=LED, is_exact=True, set_aside="2026-01-01T00:00:00Z",
    )  # fmt: skip
    trash = directory / "streamd" / "trash"
    trash.mkdir(parents=True)
    for name in ("a-tail-4.jsonl", "b-tail-4.jsonl"):
        writer = TailWriter(OsDisk(), str(trash), name, facts)
        assert writer.begin()
        place = {"index": 4, "term": 2, "seq": 21, "time": "2026-01-01T00:00:00Z"}
        writer.add([place | text_fields(subject=b"orders.late", headers=b"", payload=b"late")])
        writer.finish()
    run("discarded list .")
    run("discarded list . -o json")
    run("discarded show streamd/trash/a-tail-4.jsonl")
    run("discarded show streamd/trash/a-tail-4.jsonl -o json")
    run("discarded replay streamd/trash/a-tail-4.jsonl --dry-run")
    run("discarded replay streamd/trash/a-tail-4.jsonl")
    run("discarded replay streamd/trash/b-tail-4.jsonl -o json")


def _servers(run: Say) -> None:
    run("server list", is_loose=True, kept=leader_first)
    run("server list -o json")
    run("server info n1", kept=first_words)
    run("server info n1 -o json")
    # A replica of a stream that was restored a moment ago may still be behind its leader.
    until(lambda: run_ctl("server", "report", "health").status == 0, "all nodes are healthy")
    run("server report health")
    run("server report jetstream", is_loose=True)
    run("server report jetstream -o json")
    run("server step-down", status=2, is_loose=True)
    run("server step-down --yes", is_loose=True)
    run("server step-down --yes -o json")
    run("scrub n1", is_loose=True)
    run("scrub -o json")
    run("trash list --servers")
    run("trash list --servers -o json")
    run("trash purge --on n1 --older 1d --yes")
    run("trash purge --on n1 nothing --yes", status=1)


def _directory(story: Transcript, make_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server alone, looked at from outside, drained, and then by its files."""
    run = story.run
    server = make_server(extra=CONFIG)
    server.start()
    url = f"-s {server.url}"
    story.signs[server.url.rpartition(":")[2]] = "PORT"
    store = str(server.store_dir)
    story.signs |= {store: "STORE", server.binary: "streamd"}
    run(f"stream add R --subject r {url} -o json")
    run(f"pub r 'text {{{{Count}}}}' --count 20 --stream {url} -o json")
    run(f"consumer add R c {url} -o json")
    monkeypatch.setenv("NATS_USER", "admin")
    (row,) = json.loads(run(f"server list {url} -o json"))
    name = row["name"]
    story.signs[name] = "ALONE"
    run(f"audit --servers {url}", is_loose=True)
    run(f"audit --servers {url} -o json")
    doctor = f"doctor --syncs 10 --dir {store} {url} --no-servers"
    story.run(doctor, status=None, columns=500, kept=checks)
    run(f"doctor --syncs 10 --dir {store} {url} -o json", status=None)
    run(f"server drain {name} {url}", status=2, is_loose=True)
    run(f"server drain {name} {url} --yes -o json")
    server.stop()
    run(f"inspect {store} --whole-log", is_loose=True)
    run(f"inspect {store} --whole-log --stream R", is_loose=True)
    run(f"inspect {store} --whole-log --stream R --seq 7 -o json")
    run(f"audit {store}", is_loose=True)
    run(f"audit {store} -o json")
    run(f"recover --config {server.config_file} --binary {server.binary}", is_loose=True)
    run(f"recover --config {server.config_file} --binary {server.binary} -o json")
    trash = Path(store) / "streamd" / "trash"
    for number in (1, 2):
        (trash / f"{number}-damaged-1").mkdir()
        (trash / f"{number}-damaged-1" / "1.blk").write_bytes(b"x" * 2000)
    run(f"trash list {store}", columns=500, is_loose=True)
    run(f"trash list {store} -o json")
    run(f"trash purge {store} 1-damaged-1", status=2)
    run(f"trash purge {store} 1-damaged-1 --yes")
    run(f"trash purge {store} 2-damaged-1 --yes -o json")
    (uid,) = (path.name for path in (Path(store) / "streamd" / "streams").iterdir())
    for form in ("", "-o json"):
        aside = f"orphan-{uid}-1"
        (Path(store) / "streamd" / "streams" / uid).rename(trash / aside)
        run(f"trash restore {store} {aside} --yes {form}")


def _local_cluster(story: Transcript) -> None:
    """Cluster of one node, by `cluster up`."""
    run = story.run
    ports = [_free_port() for _ in range(3)]
    story.signs |= {str(port): "PORT" for port in ports}
    flags = "--port {} --http-port {} --cluster-port {}".format(*ports)
    directory = "--dir local"
    try:
        run(f"cluster up --nodes 1 {flags} {directory}", is_loose=True)
        run(f"cluster up {directory} -o json")
        run(f"cluster status {directory}", is_loose=True)
        run(f"cluster status {directory} -o json")
        health = f"health http://127.0.0.1:{ports[1]}"
        run(f"{health}/healthz")
        run(f"{health}/healthz -o json")
        run(health, status=2)
        run(f"cluster logs -n 1 {directory}", kept=nothing)
        run(f"cluster restart {directory}", is_loose=True)
        run(f"cluster restart node1 {directory} -o json")
        run(f"cluster down {directory}")
        run(f"cluster down {directory} -o json")
        run(f"cluster status {directory}", status=1, is_loose=True)
    finally:
        if Path("local/cluster.json").exists():
            LocalCluster.load(Path("local")).stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
