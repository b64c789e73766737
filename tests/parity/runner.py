"""Finds the two servers, runs one scenario on either, gives the differences."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from benchmarks.servers import ServerProcess
from tests.parity.compare import Difference, Steps, differences
from tests.parity.differences import reason
from tests.parity.recorder import Recorder
from tests.parity.registry import Scenario

ROOT = Path(__file__).resolve().parents[2]
PEER_RUNS = 2
Ours = TypeVar("Ours")  # one server, or a cluster


def ours_binary() -> str:
    """STREAMD_BINARY, or the one beside this interpreter; "" if there is none."""
    named = os.environ.get("STREAMD_BINARY", "")
    path = Path(named) if named else Path(sys.executable).parent / "streamd"
    return str(path) if path.exists() else ""


def peer_binary() -> str:
    """STREAMD_PEER, or what `../shared/tools/peer-nats-server` prints; "" if there is none."""
    named = os.environ.get("STREAMD_PEER", "")
    if named:
        return named if Path(named).exists() else ""
    tool = ROOT.parent / "shared" / "tools" / "peer-nats-server"
    if not tool.exists():
        return ""
    done = subprocess.run([tool], capture_output=True, text=True, timeout=100, check=False)
    found = done.stdout.strip()
    return found if done.returncode == 0 and Path(found).exists() else ""


def record(recorder: Recorder, scenario: Scenario) -> Steps:
    """Run one scenario; an exception becomes its last step."""
    try:
        scenario(recorder)
    except Exception as err:  # noqa: BLE001 - whatever a server makes a scenario stumble over
        where = traceback.extract_tb(err.__traceback__)
        line = next((at.lineno for at in where if "scenarios" in at.filename), 0)
        recorder.note("raised", f"{type(err).__name__} at line {line}: {err}")
    finally:
        recorder.close()
    return recorder.steps


def compare(
    name: str,
    scenario: Scenario,
    ours: Ours,
    peer: ServerProcess,
    recorder: Callable[[Ours], Recorder],
) -> list[Difference]:
    """Run one scenario on both servers; `recorder` sees ours.

    Ours runs once, in the store that all scenarios before have used. The peer begins with an empty
    one, because a stream made again just after its deletion may come up with old messages there;
    and where it differs it is asked twice, as its timing varies: ours must be like one answer.
    """
    mine = record(recorder(ours), scenario)
    found: list[Difference] = []
    for _ in range(PEER_RUNS):
        peer.reset()
        theirs = record(Recorder(peer), scenario)
        stumbled = [seen for label, seen in theirs if label == "raised"]
        assert not stumbled, f"{name} does not even run on the peer: {stumbled}"
        found = differences(name, mine, theirs)
        if all(reason(each) for each in found):
            break
    return found
