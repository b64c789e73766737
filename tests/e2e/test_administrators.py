"""Real processes with users: who may do what concerns the servers of a cluster (docs/adr/0034)."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from benchmarks.servers import ServerProcess
from tests.e2e.conftest import MakeCluster
from tests.wire import CONNECT, Frame, Wire

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

STEPDOWN = "$JS.API.META.LEADER.STEPDOWN"


def users(*named: str) -> str:
    """A configuration with an operator, who is `named` for these subjects, and an application."""
    allow = ", ".join(f'"{subject}"' for subject in (">", *named))
    return (
        "authorization { users = [\n"
        f"  {{ user: op, password: o, permissions: {{ publish: {{ allow: [{allow}] }} }} }}\n"
        "  { user: app, password: a }\n] }\n"
    )


def asked(node: ServerProcess, user: str, subject: str, body: bytes = b"{}") -> list[Frame]:
    """All that a user of a node is told when it asks: an answer, and perhaps an error."""
    with Wire(node.port, CONNECT | {"user": user, "pass": user[0]}) as wire:
        wire.subscribe("answer")
        wire.publish(subject, body, reply="answer")
        return wire.collect(count=2, within_s=5, quiet_s=0.5)


def check_refused(frames: list[Frame], subject: str) -> None:
    told = [frame.text for frame in frames if frame.op == "-ERR"]
    assert told == [f"'Permissions Violation for Publish to \"{subject}\"'"], frames
    assert [frame.status[:3] for frame in frames if frame.op != "-ERR"] == ["503"], frames


def test_server_requests_are_for_named_administrators(make_cluster: MakeCluster) -> None:
    """At every node, whoever leads; a reload that names somebody holds for that node at once."""
    cluster = make_cluster(extra=users())
    nodes = list(cluster.nodes.values())
    for node in nodes:
        for user in ("op", "app"):
            check_refused(asked(node, user, STEPDOWN), STEPDOWN)
            subject = "$JS.API.SERVER.REMOVE"
            check_refused(asked(node, user, subject, b'{"peer":"n3"}'), subject)
    for name, node in cluster.nodes.items():
        file = cluster.directory / name / "server.conf"
        file.write_text(file.read_text().replace(users(), users("$JS.API.META.>")))
        node.send(signal.SIGHUP)
    for node in nodes:
        check_refused(asked(node, "app", STEPDOWN), STEPDOWN)
        assert _until_answered(node)["success"] is True
        subject = "$JS.API.SERVER.REMOVE"
        check_refused(asked(node, "op", subject, b'{"peer":"n3"}'), subject)


def _until_answered(node: ServerProcess) -> dict[str, Any]:
    """The answer to an operator, once the node has read its configuration anew."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for frame in asked(node, "op", STEPDOWN):
            if frame.op == "MSG" and not frame.status:
                found: dict[str, Any] = frame.json()
                if "error" not in found:
                    return found
    raise AssertionError("the operator was never served")
