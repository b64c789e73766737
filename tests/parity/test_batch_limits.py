"""`jetstream { limits { batch {} } }` bounds atomic batches as a real nats-server does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from tests.parity.recorder import Recorder
from tests.parity.runner import ours_binary, peer_binary
from tests.parity.scenarios.batches import part

CONFIG = """jetstream {{ store_dir: "{store}", limits {{ batch {{
    max_inflight_per_stream: 2, max_inflight_total: 3, max_msgs: 3, timeout: "300ms" }} }} }}"""


def told(binary: str, directory: Path) -> list[tuple[str, Any]]:
    """Everything that a server says to batches that are too many, too large and too slow."""
    config = CONFIG.format(store=directory / "store")
    with ServerProcess(binary, directory=directory, extra=config, is_jetstream=False) as server:
        server.start()
        at = Recorder(server)
        for name in ("S", "T"):
            stream = {"name": name, "subjects": [f"{name}.>"], "allow_atomic": True}
            at.wait_until(
                lambda stream=stream: (
                    "error" not in at.api(f"STREAM.CREATE.{stream['name']}", stream, is_quiet=True)
                )
            )
        listener = at.connect()
        listener.subscribe("$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.>")
        listener.fence()
        for batch, count, commit in (("a", 4, ""), ("b", 3, "1"), ("c", 4, "eob"), ("d", 5, "eob")):
            for seq in range(1, count + 1):
                at.pub("S.x", headers=part(batch, seq, commit if seq == count else ""))
        for stream, batches in (("S", "efg"), ("T", "hij")):
            for batch in batches:
                at.pub(f"{stream}.x", headers=part(batch, 1))
        at.pub("S.x", headers=part("e", 2, "1"))
        at.pub("T.x", headers=part("j", 1))
        frames = [frame.json() for frame in listener.collect(count=5, within_s=5)]
        at.note("given up", sorted([one["batch"], one["reason"]] for one in frames))
        at.pub("S.x", headers=part("f", 2, "1"))
        at.http(
            "/varz",
            lambda seen: {k: v for k, v in seen["jetstream"]["limits"].items() if "batch" in k},
        )
        at.close()
        return at.steps


def test_the_same_is_refused(tmp_path: Path) -> None:
    if not peer_binary() or not ours_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    assert told(ours_binary(), tmp_path / "ours") == told(peer_binary(), tmp_path / "peer")
