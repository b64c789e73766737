"""A node with an empty directory comes to a cluster."""

from __future__ import annotations

import errno

import pytest

from tests.scenarios.driver import ROOT, Cluster


def test_its_identity_can_not_be_written_down(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fails just then. Until it ended the node logged the cluster's entries all the
    same, and refused every later start: a log and no identity is what a single server has."""
    cluster.create()
    cluster.publish(50)
    name = cluster.followers("S")[0]
    host = cluster.hosts[name]
    cluster.stop(name)
    host.disk.wipe(ROOT)
    links = {(name, other) for other in cluster.names} | {(other, name) for other in cluster.names}
    cluster.net.block(links)
    cluster.boot(name)
    cluster.run_ms(100)  # it has an identity of its own by now, and belongs nowhere
    ends: list[BaseException] = []
    monkeypatch.setattr(host, "on_fatal", ends.append)  # its supervisor is slow
    host.disk.fail("fdatasync", errno.EIO, under=f"{ROOT}/node.json", count=1000)
    cluster.net.heal()
    cluster.until("its end", lambda: ends)
    cluster.run_ms(100)
    host.kill()
    host.disk.heal()
    cluster.boot(name)
    cluster.until_whole()
