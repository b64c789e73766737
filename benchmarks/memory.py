"""The rows of memory under load: resident memory while many messages are published, and after."""

from __future__ import annotations

import threading
import time
from typing import Any

from benchmarks.generator import Figures, generate
from benchmarks.servers import ServerProcess

SAMPLE_EVERY_S = 0.2
REST_S = 10.0  # after the last ack: what is written behind it is written, what is freed is freed
RESTARTED_WITHIN_S = 120.0


class MemorySampler(threading.Thread):
    """Samples the resident memory of a server until it is stopped. Ends with the server."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._is_stopped = threading.Event()
        self.highest_mb = 0.0

    def run(self) -> None:
        while not self._is_stopped.wait(SAMPLE_EVERY_S):
            try:
                now_mb, _ = self._server.memory_mb()
            except OSError:
                return  # the load fails too, and says why
            self.highest_mb = max(self.highest_mb, now_mb)

    def stop(self) -> None:
        self._is_stopped.set()
        self.join()


def measure(server: ServerProcess, args: dict[str, Any], sync: str) -> Figures:
    """Fill a new server; return its memory in MiB: highest, at the end, at rest, started anew."""
    server.configure(sync=sync)
    server.start()
    sampler = MemorySampler(server)
    sampler.start()
    try:
        filled = generate(server.port, "fill", args)
        end_mb, _ = server.memory_mb()
        time.sleep(REST_S)
    finally:
        sampler.stop()
    rest_mb, peak_mb = server.memory_mb()
    server.stop()
    server.start(within_s=RESTARTED_WITHIN_S)
    time.sleep(1.0)  # what is freed or loaded just after the start belongs to the figure
    restarted_mb, _ = server.memory_mb()
    return {
        "rss_mb": max(sampler.highest_mb, end_mb, rest_mb),
        "memory_mb": peak_mb,
        "end_mb": end_mb,
        "rest_mb": rest_mb,
        "restarted_mb": restarted_mb,
        "publish_rate": filled["rate"],
    }
