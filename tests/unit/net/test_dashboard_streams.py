"""Event streams of the dashboard, at a real port: when they end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from streamd.config.options import Options, User
from streamd.net.client.password_checks import PasswordChecks
from streamd.net.dashboard.dashboard import Dashboard
from streamd.net.dashboard.logins import Logins

SECRET = {"seq": 2, "subject": "s", "payload": "c2VjcmV0"}


async def test_a_session_that_is_too_old_is_sent_no_more_messages() -> None:
    """The stream looks every half a second: what came by then is not for that session any more."""
    looks = 0

    async def page(name: str, asset: object, query: dict[str, str]) -> dict[str, Any]:
        nonlocal looks
        looks += 1
        if looks <= 2:  # before the answer begins, and once more
            return {"items": [], "next": None, "last_seq": 1}
        return {"items": [SECRET], "next": None, "last_seq": 2}

    async def peers() -> list[str]:
        return []

    around = MagicMock(
        listened=lambda: ("http", "127.0.0.1", 8222, ""),
        server_name="n1", server_id="N", version="1", cluster_name="",
    )  # fmt: skip
    asset = SimpleNamespace(name="S", account="A", uid=1)
    builder = MagicMock(page=page, peer_pages=peers, find=lambda *_: asset)
    logins = Logins(Options(users=[User("a", "p", account="A")]), lambda: None, PasswordChecks())
    slicer = MagicMock()

    async def wait(steps: Any) -> Any:
        try:
            while True:
                next(steps)
        except StopIteration as end:
            return end.value

    slicer.wait = wait
    dashboard = Dashboard(around, builder, MagicMock(), MagicMock(), logins, slicer)
    app = web.Application()
    dashboard.mount(app, "")
    async with TestClient(TestServer(app)) as client:
        answer = await client.post("/ui/api/session", json={"user": "a", "password": "p"})
        assert answer.status == 200
        async with client.get("/ui/api/streams/A/S/tail") as stream:
            assert stream.status == 200
            (session,) = dashboard._sessions._by_digest.values()
            session.began_s = float("-inf")
            text = await stream.text()
    assert "event: session_ended" in text and "c2VjcmV0" not in text
