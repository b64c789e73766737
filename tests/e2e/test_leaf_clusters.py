"""A cluster of leaf nodes at a cluster of hubs: each of two leaf nodes dials another hub, and each
message comes to each subscriber once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.servers import ServerProcess, free_port
from tests.leaf_bed import Ends, page
from tests.parity.runner import ours_binary, peer_binary
from tests.waiting import until
from tests.wire import Wire

pytestmark = pytest.mark.slow
KINDS = ("ours-ours", "peer-ours", "ours-peer")


class Clusters:
    """Hubs `h0` and `h1`, and the leaf nodes `l0` and `l1`, each of its own hub."""

    def __init__(self, kinds: str, directory: Path) -> None:
        binaries = dict(zip("hl", kinds.split("-"), strict=True))
        routes = {name: free_port() for name in ("h0", "h1", "l0", "l1")}
        leafs = [free_port(), free_port()]
        self.servers: dict[str, ServerProcess] = {}
        for name, port in routes.items():
            side, at = name[0], int(name[1])
            other = routes[f"{side}{1 - at}"]
            block = (
                f"server_name: {name}\ncluster {{ name: {side.upper()}, pool_size: -1\n"
                f'compression: off, listen: "127.0.0.1:{port}"\n'
                f'routes: ["nats-route://127.0.0.1:{other}"] }}\n'
            )
            if side == "h":
                block += f'leafnodes {{ listen: "127.0.0.1:{leafs[at]}", no_advertise: true }}'
            else:
                url = f"nats-leaf://127.0.0.1:{leafs[at]}"
                block += f'leafnodes {{ reconnect: "1s", remotes: [ {{ url: "{url}" }} ] }}'
            binary = ours_binary() if binaries[side] == "ours" else peer_binary()
            self.servers[name] = ServerProcess(
                binary, directory=directory / name, extra=block, is_jetstream=False
            )

    def start(self) -> Clusters:
        for server in self.servers.values():
            server.launch()
        for server in self.servers.values():
            server.wait()
        for server in self.servers.values():
            until(lambda s=server: page(s, "varz")["routes"] >= 1, "a route")  # type: ignore[misc]
            until(lambda s=server: page(s, "leafz")["leafnodes"] == 1, "a link")  # type: ignore[misc]
        return self

    def close(self) -> None:
        for server in self.servers.values():
            server.close()


@pytest.fixture(params=KINDS)
def clusters(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Clusters]:
    kinds: str = request.param
    if not ours_binary() or ("peer" in kinds and not peer_binary()):
        pytest.skip("no nats-server to join (STREAMD_PEER)")
    found = Clusters(kinds, tmp_path)
    try:
        yield found.start()
    finally:
        found.close()


def test_each_subscriber_gets_each_message_once(clusters: Clusters) -> None:
    wires = {name: Wire(server.port) for name, server in clusters.servers.items()}
    groups = {name: Wire(server.port) for name, server in clusters.servers.items()}
    for name, wire in wires.items():
        wire.subscribe("all.*")
        groups[name].subscribe("one.*", "g")
        groups[name].fence()
    for sender in wires.values():
        for receiver in (*wires.values(), *groups.values()):
            if sender is not receiver:
                Ends(sender, receiver).sync()
    for wire in (*wires.values(), *groups.values()):
        wire.fence()
    for name, sender in wires.items():
        others = [Ends(sender, wire) for wire in wires.values() if wire is not sender]
        members = [Ends(sender, wire) for wire in groups.values()]
        for number in range(20):
            sender.publish(f"all.{number}", b"x", headers={"From": name})
            sender.publish(f"one.{number}", b"x", headers={"From": name})
        wanted = [f"all.{number}" for number in range(20)]
        for ends in others:
            assert sorted(frame.subject for frame in ends.arrived()) == sorted(wanted), name
        served = [frame.subject for ends in members for frame in ends.arrived()]
        assert sorted(served) == sorted(f"one.{number}" for number in range(20)), name
        sender.fence()
    for wire in (*wires.values(), *groups.values()):
        wire.close()
