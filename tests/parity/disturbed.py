"""Recorders of ours that disturb the server while a story is told: nobody may notice.

The peer is told the same story undisturbed, by one server. `Restarted` stops or kills a single
node; `Clustered` asks three nodes in turn, moves the leader, and takes nodes away.
"""

from __future__ import annotations

import contextlib
import time
from itertools import cycle
from typing import Any

from benchmarks.cluster import ClusterProcess
from tests.parity.recorder import Recorder
from tests.wire import Frame, Wire

WORD_OF_DELIVERY_S = 1.1  # after so long it is logged, also without acks; a kill before repeats it
WHOLE_WITHIN_S = 30.0


class Restarted(Recorder):
    """One node, stopped or killed and started again at each disturbance."""

    def disturb(self, chance: float) -> None:
        self.wire.close()
        if chance < 0.5:
            self.server.stop()
        else:
            time.sleep(WORD_OF_DELIVERY_S)  # a length, not a wait: it may take that long
            self.server.kill()
        self.server.start()
        self.wire = Wire(self.server.port)
        for key in ("server_id", "server_name"):
            self._names[self.wire.info[key]] = "<server>"


class Clustered(Recorder):
    """Three nodes, the next one asked at each request; streams have three replicas."""

    def __init__(self, cluster: ClusterProcess) -> None:
        self._cluster = cluster
        self._wires = {name: Wire(node.port) for name, node in cluster.nodes.items()}
        self._turn = cycle(cluster.nodes)
        super().__init__(next(iter(cluster.nodes.values())))

    @property
    def wire(self) -> Wire:
        """A connection to the next node that runs."""
        return self._wires[next(name for name in self._turn if name in self._wires)]

    @wire.setter
    def wire(self, wire: Wire) -> None:
        wire.close()  # the constructor's; this has its own

    def api(self, subject: str, body: Any = None, **options: Any) -> dict[str, Any]:
        if subject.startswith(("STREAM.CREATE", "STREAM.UPDATE")) and isinstance(body, dict):
            body = {**body, "num_replicas": 3}
        return super().api(subject, body, **options)

    def direct(self, stream: str, body: Any = None, *, subject: str = "") -> list[Frame]:
        self._wait_until_equal(stream)  # any replica answers, as it is at that moment
        return super().direct(stream, body, subject=subject)

    def note(self, label: str, seen: Any) -> Any:
        super().note(label, _alone(seen))
        return seen

    def disturb(self, chance: float) -> None:
        cluster = self._cluster
        down = [name for name in cluster.nodes if name not in self._wires]
        if down:  # and only then may another one go
            for name in down:
                self._start(name)
            for node in cluster.nodes.values():
                cluster.wait_healthy(node, WHOLE_WITHIN_S)
        elif chance < 0.5:
            self.wire.api("STREAM.LEADER.STEPDOWN.S")
        else:
            name = list(cluster.nodes)[int(chance * 1000) % len(cluster.nodes)]
            self._wires.pop(name).close()
            node = cluster.nodes[name]
            if chance < 0.75:
                node.stop()
            else:
                time.sleep(WORD_OF_DELIVERY_S)  # a length, not a wait: it may take that long
                node.kill()
        self.wait_until(self._is_led, WHOLE_WITHIN_S)

    def close(self) -> None:
        """Delete all streams, with all nodes there, and close the connections."""
        for name in [name for name in self._cluster.nodes if name not in self._wires]:
            self._start(name)
        for node in self._cluster.nodes.values():
            self._cluster.wait_healthy(node, WHOLE_WITHIN_S)
        for name in self.wire.api("STREAM.NAMES").get("streams") or []:
            self.wire.api(f"STREAM.DELETE.{name}")
        for wire in [*self._wires.values(), *self._more]:
            wire.close()

    def _start(self, name: str) -> None:
        node = self._cluster.nodes[name]
        node.launch()
        node.wait(WHOLE_WITHIN_S)
        self._wires[name] = Wire(node.port)

    def _is_led(self) -> bool:
        """True if each node that runs can say what the stream holds, and knows who leads it."""
        for wire in self._wires.values():
            with contextlib.suppress(Exception):
                told = wire.api("STREAM.INFO.S", within_s=1.0)
                if told.get("error") and told["error"]["err_code"] == 10059:
                    continue  # there is none; nobody leads it
                if told["cluster"]["leader"] in self._wires:
                    continue
            return False
        return True

    def _wait_until_equal(self, stream: str) -> None:
        nodes = [self._cluster.nodes[name] for name in self._wires]

        def is_equal() -> bool:
            details = [self._cluster.detail(node, stream) for node in nodes]
            return len({(one.get("applied"), one.get("digest")) for one in details}) == 1

        self.wait_until(is_equal, WHOLE_WITHIN_S)


def _alone(seen: Any) -> Any:
    """An answer of a cluster as one server would give it."""
    if isinstance(seen, list):
        return [_alone(each) for each in seen]
    if not isinstance(seen, dict):
        return seen
    alone = {key: _alone(value) for key, value in seen.items() if key != "cluster"}
    if alone.get("num_replicas") == 3:
        alone["num_replicas"] = 1
    return alone
