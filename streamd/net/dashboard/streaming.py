"""Event streams to browsers (`text/event-stream`): what a page is told as it happens."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from streamd.limits import DASHBOARD_EVENTS_WAITING_MAX, DASHBOARD_WRITE_S
from streamd.net.dashboard.sessions import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp import web


class Ended(Exception):
    """The stream has come to its end: its session has, or the browser is gone or does not read."""


class EventStream:
    """Stream of events to a browser. It ends with its session, with the server, or when the browser
    is gone."""

    def __init__(
        self, request: web.Request, response: web.StreamResponse, session: Session
    ) -> None:
        self._request = request
        self._response = response
        self._session = session
        self._token = session.watch(self.end)
        self._waiting: asyncio.Queue[tuple[str, object]] = asyncio.Queue()
        self._left_out = 0
        self._is_stopped = False

    @property
    def is_ended(self) -> bool:
        """True once nothing is to be sent any more."""
        transport = self._request.transport
        return self._is_stopped or transport is None or transport.is_closing()

    def put(self, event: str, document: object) -> None:
        """Send an event when there is time; beyond a bound it is left out, and counted."""
        if self._waiting.qsize() >= DASHBOARD_EVENTS_WAITING_MAX:
            self._left_out += 1
        else:
            self._waiting.put_nowait((event, document))

    async def send_waiting(self, until_s: float, clock: Callable[[], float]) -> None:
        """Send what is put in, until then by `clock`, or until the session ends."""
        while not self.is_ended:
            left_s = until_s - clock()
            if left_s <= 0:
                return
            try:
                async with asyncio.timeout(left_s):
                    event, document = await self._waiting.get()
            except TimeoutError:
                return
            if self.is_ended:
                return
            await self.send(event, document)
            if self._left_out:
                count, self._left_out = self._left_out, 0
                await self.send("skipped", {"count": count})

    async def send(self, event: str, document: object) -> None:
        """Send one event now. Raises Ended if the browser does not take it."""
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        await self.send_text(event, text)

    async def send_text(self, event: str, text: str) -> None:
        """Send an event whose document is a text already, in one line."""
        body = f"event: {event}\ndata: {text}\n\n".encode(errors="replace")
        try:
            async with asyncio.timeout(DASHBOARD_WRITE_S):
                await self._response.write(body)
        except (ConnectionError, TimeoutError) as err:
            raise Ended(str(err)) from err

    async def fail(self, text: str) -> None:
        """Tell the browser why nothing more comes."""
        try:
            await self.send("failed", {"message": text})
        except Ended:
            return

    async def close(self) -> None:
        """Tell the browser if the session ended, and end the stream."""
        self._session.unwatch(self._token)
        if self._session.is_ended:
            try:
                await self.send("session_ended", {})
            except Ended:
                return

    def end(self) -> None:
        """Send nothing any more: the session has ended, or the server stops."""
        self._is_stopped = True
        self._waiting.put_nowait(("", {}))  # wakes who waits
