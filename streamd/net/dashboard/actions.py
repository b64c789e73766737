"""`Actions`: changes that an administrator makes from a page.

Each is a request of the JetStream API, made as the administrator's client would make it: served by
the leader, refused by the same rules, and told in the same audit advisory. The exception is the
verification of files, which nodes are asked for among themselves.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Final

from streamd.api import times
from streamd.api.request import ApiWires
from streamd.limits import DASHBOARD_API_S
from streamd.machine.meta import StreamAsset
from streamd.net.dashboard.grants import Grant
from streamd.net.dashboard.peer_questions import VERIFY, Elsewhere, NotFound, PeerQuestions
from streamd.net.dashboard.surroundings import Surroundings
from streamd.net.monitoring.query import BadQuery
from streamd.types import Document, NodeId

_NOT_FOUND: Final = 404
_UNAVAILABLE: Final = 503
_API: Final = "$JS.API."


class Refused(Exception):
    """An action that the session may not take, or not in this way (403)."""


class DashboardClient:
    """Requester of the API behind a page (`api.advisories.ApiClient`)."""

    cid = 0
    rtt_ns = 0
    name = "dashboard"
    lang = ""
    version = ""

    def __init__(self, grant: Grant, ip: str) -> None:
        self.ip = ip
        self.user = grant.user
        self.start_ns = time.time_ns()
        self._is_administrator = grant.is_administrator and grant.sees_all

    def may_administer(self, subject: bytes) -> bool:
        """Return True if the session is that of an administrator of all accounts."""
        return self._is_administrator

    def forbid_publish(self, subject: bytes) -> None:
        """Succeed: the answer says it."""


class Actions:
    """Actions on one server and what it reaches."""

    def __init__(
        self,
        around: Surroundings,
        wires_of: Callable[[str], ApiWires],
        questions: Callable[[], PeerQuestions | None],
    ) -> None:
        self._around = around
        self._wires_of = wires_of
        self._questions = questions

    async def on_stream(
        self, verb: str, account: str, stream: str, grant: Grant, ip: str
    ) -> Document:
        """Purge a stream, or have its leader step down."""
        words = {"purge": "STREAM.PURGE", "step_down": "STREAM.LEADER.STEPDOWN"}
        return await self._request(account, f"{words[verb]}.{stream}", {}, grant, ip)

    async def on_consumer(
        self,
        verb: str,
        asset: StreamAsset,
        consumer: str,
        body: Mapping[str, object],
        grant: Grant,
        ip: str,
    ) -> Document:
        """Pause or resume a consumer, or have its leader step down."""
        account, stream = asset.account, asset.name
        if verb == "step_down":
            subject = f"CONSUMER.LEADER.STEPDOWN.{stream}.{consumer}"
            return await self._request(account, subject, {}, grant, ip)
        options: dict[str, object] = {}
        if verb == "pause":
            options["pause_until"] = _until(body.get("until"))
        subject = f"CONSUMER.PAUSE.{stream}.{consumer}"
        return await self._request(account, subject, options, grant, ip)

    async def step_down_meta(self, grant: Grant, ip: str) -> Document:
        """Ask another node to lead the meta group."""
        if not grant.sees_all:
            raise Refused("only an administrator of all accounts may do that")
        account = self._around.monitoring.system_name
        return await self._request(account, "META.LEADER.STEPDOWN", {}, grant, ip)

    async def verify(self, members: list[NodeId]) -> Document:
        """Ask these nodes to verify all their files."""
        here, questions = self._around.server_name, self._questions()
        begun = []
        if here in members and self._around.controls.scrub(True) is not None:
            begun.append(here)
        others: dict[NodeId, list[object]] = {name: [] for name in members if name != here}
        if questions is not None and others:
            answers = await questions.ask_all(others, VERIFY)
            begun += [name for name, is_begun in answers.items() if is_begun is True]
        silent = sorted(set(members) - set(begun))
        return {"done": not silent, "nodes": sorted(begun), "unreached": silent}

    async def _request(
        self, account: str, subject: str, options: Document, grant: Grant, ip: str
    ) -> Document:
        """Make a request of the API; returns its answer. Raises Refused, BadQuery, Elsewhere."""
        api = self._around.api
        if api is None:
            raise Elsewhere("JetStream is not running on this server")
        full = _API + subject
        if not grant.may_request(full):
            raise Refused(f"the user {grant.user!r} has no permission to publish to {full}")
        wires = self._wires_of(account)
        reply = b"_INBOX.dashboard.%b" % secrets.token_hex(12).encode()
        told: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def on_answer(
            _subject: bytes, _reply: bytes, _headers: bytes, payload: bytes, _client: object
        ) -> None:
            if not told.done():
                told.set_result(payload)

        token = wires.listen(reply, on_answer)
        try:
            body = json.dumps(options).encode() if options else b""
            api.handle(full.encode(), reply, b"", body, DashboardClient(grant, ip), account)
            async with asyncio.timeout(DASHBOARD_API_S):
                answer = await told
        except TimeoutError:
            raise Elsewhere(
                f"no answer to {full} within {DASHBOARD_API_S:g} s: it may or may not be done"
            ) from None
        finally:
            wires.unlisten(token)
        return _read(answer, full)


def _read(answer: bytes, subject: str) -> Document:
    try:
        found = json.loads(answer)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Elsewhere(f"nobody answers {subject}")
    error = found.get("error")
    if isinstance(error, dict):
        code, text = error.get("code"), str(error.get("description", ""))
        if code == _NOT_FOUND:
            raise NotFound(text)
        if code == _UNAVAILABLE:
            raise Elsewhere(text)
        raise BadQuery(text)
    return {"done": True, "answer": found}


def _until(value: object) -> str:
    """Return the time until which a consumer is to be paused. Raises BadQuery."""
    if not isinstance(value, str):
        raise BadQuery("until must be a time such as 2030-01-31T12:00:00Z")
    try:
        return times.parse_time(value)[0]
    except ValueError as err:
        raise BadQuery(f"until: {err}") from None
