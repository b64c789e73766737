"""`streamctl audit --servers` without servers: which of the verdicts that it came to is told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from nats.aio.msg import Msg

from streamd.ctl.command_groups import audit_verb
from streamd.ctl.failures import CtlError

# Digest and log index at n1, n2, n3.
STATES = {
    "equal": (("a", 7), ("a", 7), ("a", 7)),
    "drift": (("a", 7), ("b", 7), ("a", 7)),
    "two drift": (("a", 7), ("b", 7), ("a", 6)),
    "incomplete": (("a", 7), ("a", 8), ("a", 7)),
}
NAMES = ("n1", "n2", "n3")


class Servers:
    """Servers with a stream S, in another state each time that all are asked, and a stream T,
    which goes on until the last time."""

    def __init__(self, *states: str, is_t_still: bool = False) -> None:
        self._states = states
        self._is_t_still = is_t_still
        self._at = -1

    async def survey(self, subject: str, **_: object) -> list[dict[str, Any]]:
        self._at += 1
        return [{"server": {"name": n, "id": n}, "statsz": {}} for n in NAMES]

    async def request(self, subject: str, payload: bytes, **_: object) -> Msg:
        server, name = subject.split(".")[3], subject.split(".")[-1]
        if name == "DIGESTS":
            raise CtlError("not asked here")
        asked = json.loads(payload)
        details = []
        if asked.get("account"):
            is_last = self._is_t_still or self._at == len(self._states) - 1
            for stream, state in (
                ("S", self._states[self._at]),
                ("T", "equal" if is_last else "incomplete"),
            ):
                digest, applied = STATES[state][NAMES.index(server)]
                others = [{"name": name} for name in NAMES if name != server]
                details.append(
                    {
                        "name": stream,
                        "applied": applied,
                        "digest": digest,
                        "state": {"messages": 1},
                        "cluster": {"replicas": others},
                    }
                )
        page = {"account_details": [{"name": "$G", "stream_detail": details}], "total": 1}
        return Msg(_client=None, data=json.dumps({"data": page}).encode())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("states", "told"),
    [
        (("equal", "incomplete"), "equal"),
        (("incomplete", "equal"), "equal"),
        (("equal", "drift"), "drift"),
        (("drift", "incomplete"), "drift"),
        (("equal", "drift", "incomplete"), "drift"),
        (("drift", "equal"), "equal"),  # repaired
    ],
)
def test_the_last_verdict_that_was_certain_is_told(
    monkeypatch: pytest.MonkeyPatch, states: tuple[str, ...], told: str
) -> None:
    """A look that could compare nothing takes back nothing that was seen."""
    monkeypatch.setattr(audit_verb, "AGAIN_S", 0.0)
    rows = asyncio.run(audit_verb._compare(Servers(*states), 60.0))
    assert {row["stream"]: row["verdict"] for row in rows} == {"S": told, "T": "equal"}


@pytest.mark.parametrize(
    "states", [("two drift", "drift"), ("drift", "two drift"), ("two drift", "incomplete", "drift")]
)
def test_drift_is_told_of_as_many_replicas_as_were_ever_at_one_index(
    monkeypatch: pytest.MonkeyPatch, states: tuple[str, ...]
) -> None:
    """The third tells which of two is odd: it is waited for, also where no other stream goes on."""
    monkeypatch.setattr(audit_verb, "AGAIN_S", 0.0)
    servers = Servers(*states, is_t_still=True) if states[0] == "two drift" else Servers(*states)
    row, _ = asyncio.run(audit_verb._compare(servers, 60.0))
    assert (row["stream"], row["verdict"], row["read"]) == ("S", "drift", [*NAMES])
