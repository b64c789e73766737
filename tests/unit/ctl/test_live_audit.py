"""`streamctl audit --servers` without servers: which of the verdicts that it came to is told."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from nats.aio.msg import Msg

from streamd.ctl.command_groups import audit_verb
from streamd.ctl.failures import CtlError

DIGESTS = {
    "equal": ("a", "a", 7),
    "drift": ("a", "b", 7),
    "incomplete": ("a", "a", 8),
}


class Servers:
    """Servers n1 and n2 with a stream S, in another state each time that all are asked, and a
    stream T, which goes on until the last time."""

    def __init__(self, *states: str) -> None:
        self._states = states
        self._at = -1

    async def survey(self, subject: str, **_: object) -> list[dict[str, Any]]:
        self._at += 1
        return [{"server": {"name": n, "id": n}, "statsz": {}} for n in ("n1", "n2")]

    async def request(self, subject: str, payload: bytes, **_: object) -> Msg:
        server, name = subject.split(".")[3], subject.split(".")[-1]
        if name == "DIGESTS":
            raise CtlError("not asked here")
        asked = json.loads(payload)
        details = []
        if asked.get("account"):
            is_last = self._at == len(self._states) - 1
            for stream, state in (
                ("S", self._states[self._at]),
                ("T", "equal" if is_last else "incomplete"),
            ):
                first, second, applied = DIGESTS[state]
                is_first = server == "n1"
                details.append(
                    {
                        "name": stream,
                        "applied": 7 if is_first else applied,
                        "digest": first if is_first else second,
                        "state": {"messages": 1},
                        "cluster": {"replicas": [{"name": "n2" if is_first else "n1"}]},
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
