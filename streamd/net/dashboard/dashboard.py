"""`Dashboard`: the page at /ui of the monitoring port, and the documents it is made of.

Each request passes the doorkeeper, then a document is built in slices and sent; nothing is cached
by browsers but the page's own files, which they ask about. The interface is `/ui/api` (README.md).
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from streamd.errors import StreamdError
from streamd.limits import (
    DASHBOARD_BODY_BYTES,
    DASHBOARD_LIVE_MAX,
    DASHBOARD_OVERVIEW_S,
    DASHBOARD_TAIL_MSGS,
    DASHBOARD_TAIL_S,
    HTTP_ANSWER_S,
)
from streamd.net.dashboard import pages
from streamd.net.dashboard.actions import Actions, Refused
from streamd.net.dashboard.doorkeeper import (
    CLOSED,
    Doorkeeper,
    LoginWanted,
    is_from_here,
    source_of,
)
from streamd.net.dashboard.event_log import Event, EventLog, is_shown
from streamd.net.dashboard.grants import OPEN, READER, Grant
from streamd.net.dashboard.logins import Busy, Logins
from streamd.net.dashboard.message_pages import read_filter
from streamd.net.dashboard.pages import Pages
from streamd.net.dashboard.peer_questions import Elsewhere, NotFound
from streamd.net.dashboard.sessions import Session, Sessions
from streamd.net.dashboard.static_files import INDEX, StaticFiles
from streamd.net.dashboard.streaming import Ended, EventStream
from streamd.net.dashboard.surroundings import Surroundings
from streamd.net.dashboard.throttle import LoginThrottle
from streamd.net.monitoring.query import BadQuery
from streamd.net.monitoring.sliced_pages import Slicer, encode, gather
from streamd.types import Document

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src {}; frame-ancestors 'none'; base-uri 'none'; form-action 'self'"
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY.format("'self'"),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
# The page asks whether another node is there by fetching its icon, of which it sees nothing.
_ANY_SITE: Final = {"Cross-Origin-Resource-Policy": "cross-origin"}
_NO_STORE: Final = {"Cache-Control": "no-store"}
_STREAM_VERBS: Final = ("step_down", "purge", "scrub")
_CONSUMER_VERBS: Final = ("pause", "resume", "step_down")
_WHOLE: Final = 1 << 62


class Dashboard:
    """Handlers of one server's dashboard."""

    def __init__(
        self,
        around: Surroundings,
        page_builder: Pages,
        actions: Actions,
        events: EventLog,
        logins: Logins,
        slicer: Slicer,
    ) -> None:
        loop = asyncio.get_running_loop()
        self._around = around
        self._pages = page_builder
        self._actions = actions
        self._events = events
        self._logins = logins
        self._slicer = slicer
        self._clock = loop.time
        self._sessions = Sessions(loop.time)
        self._throttle = LoginThrottle(loop.time)
        self._static = StaticFiles()
        port = around.listened()[2]
        self._doors = Doorkeeper(logins, self._sessions, f"streamd_ui_{port}")
        self._overview = _Shared(page_builder.overview_text, loop.time)
        self._base = ""
        self._streams: set[EventStream] = set()

    def mount(self, app: web.Application, base: str) -> None:
        """Add the routes, below `base`."""
        self._base = base
        add = app.router.add_route
        add("GET", base + "/ui", self._to_index)
        add("GET", base + "/ui/", self._page(lambda request: INDEX))
        add(
            "GET",
            base + "/ui/static/{name}",
            self._page(lambda request: request.match_info["name"]),
        )
        api = base + "/ui/api"
        add("GET", api + "/session", self._api(self._session))
        add("POST", api + "/session", self._api(self._log_in))
        add("DELETE", api + "/session", self._api(self._log_out))
        for path, build in self._documents().items():
            add("GET", api + path, self._api(self._document(build)))
        add("GET", api + "/live", self._api(self._live, is_stream=True))
        add("GET", api + "/streams/{account}/{stream}/tail", self._api(self._tail, is_stream=True))
        stream = "/streams/{account}/{stream}"
        consumer = "/consumers/{account}/{stream}/{consumer}"
        for verb in _STREAM_VERBS:
            add("POST", f"{api}{stream}/{verb}", self._action(verb, self._act_on_stream))
        for verb in _CONSUMER_VERBS:
            add("POST", f"{api}{consumer}/{verb}", self._action(verb, self._act_on_consumer))
        add("POST", api + "/meta/step_down", self._action("step_down", self._act_on_meta))
        add("*", api + "/{rest:.*}", self._api(_unknown))
        app.on_shutdown.append(self._on_shutdown)

    def reloaded(self) -> None:
        """End the sessions that the configuration does not let in any more."""
        self._sessions.end_where(lambda session: not self._logins.is_valid(session.grant))

    async def _on_shutdown(self, _app: web.Application) -> None:
        self._sessions.end_all()
        self._events.close()
        for stream in self._streams:
            stream.end()

    # --- the page -------------------------------------------------------------------------------

    async def _to_index(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=308, headers=HEADERS | {"Location": self._base + "/ui/"})

    def _page(self, name_of: Callable[[web.Request], str]) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            self._around.monitoring.count_request("/ui")
            if not self._logins.is_needed and not is_from_here(request):
                return web.Response(status=403, text=CLOSED + "\n", headers=HEADERS | _NO_STORE)
            name = name_of(request)
            file = self._static.find(name)
            if file is None:
                return web.Response(status=404, text="404 page not found\n", headers=HEADERS)
            headers = HEADERS | {"ETag": file.etag, "Cache-Control": "no-cache"}
            if name == INDEX:
                headers |= {"Content-Security-Policy": await self._policy()}
            else:
                headers |= _ANY_SITE
            if request.headers.get("If-None-Match", "") == file.etag:
                return web.Response(status=304, headers=headers)
            return web.Response(
                body=file.body,
                headers=headers | {"Content-Type": f"{file.content_type}; charset=utf-8"},
            )

        return handle

    async def _policy(self) -> str:
        """Return the policy of the page: it may ask other nodes whether they are there."""
        origins = [f"{page.removesuffix('/ui/')}/" for page in await self._pages.peer_pages()]
        return _POLICY.format(" ".join(["'self'", *origins]))

    # --- every request of the interface ---------------------------------------------------------

    def _api(self, handler: Handler, *, is_stream: bool = False) -> Handler:
        """Return a handler whose failures are answered as JSON."""

        async def handle(request: web.Request) -> web.StreamResponse:
            self._around.monitoring.count_request("/ui/api")
            try:
                if is_stream:
                    return await handler(request)
                async with asyncio.timeout(HTTP_ANSWER_S):
                    return await handler(request)
            except LoginWanted:
                return await self._fail(401, "log in first")
            except Refused as err:
                return await self._fail(403, str(err))
            except NotFound as err:
                return await self._fail(404, str(err))
            except BadQuery as err:
                return await self._fail(400, str(err))
            except (Elsewhere, StreamdError) as err:
                return await self._fail(503, str(err))
            except TimeoutError:
                return await self._fail(503, f"no answer within {HTTP_ANSWER_S:g} s")

        return handle

    async def _fail(
        self, status: int, text: str, headers: dict[str, str] | None = None
    ) -> web.StreamResponse:
        return await self._answer({"error": {"code": status, "message": text}}, status, headers)

    async def _answer(
        self, document: Document, status: int = 200, headers: dict[str, str] | None = None
    ) -> web.Response:
        text = await self._slicer.wait(gather(encode(document, ""), _WHOLE))
        return web.Response(
            body=text.encode(errors="replace"),
            status=status,
            headers=HEADERS
            | _NO_STORE
            | {"Content-Type": "application/json; charset=utf-8"}
            | (headers or {}),
        )

    # --- sessions -------------------------------------------------------------------------------

    async def _session(self, request: web.Request) -> web.StreamResponse:
        if self._logins.is_needed:
            self._doors.check_same_site(request)
            session = self._doors.session_of(request)
            return await self._answer(await self._session_document(session))
        session = self._doors.admit(request)
        if session is not None:
            return await self._answer(await self._session_document(session))
        secret, session = self._sessions.begin(self._logins.open_grant())
        return await self._with_cookie(await self._session_document(session), secret)

    async def _session_document(self, session: Session | None) -> Document:
        grant = session.grant if session is not None else None
        around = self._around
        word = "none"
        if self._logins.is_needed:
            word = "needed" if session is None else "user"
        return {
            "login": word,
            "user": grant.user if grant is not None else "",
            "role": grant.role if grant is not None else READER,
            "account": grant.account if grant is not None else "",
            "csrf": session.csrf if session is not None else "",
            "server": {
                "name": around.server_name,
                "id": around.server_id,
                "version": around.version,
                "cluster": around.cluster_name,
            },
            "peers": await self._pages.peer_pages() if session is not None else [],
        }

    async def _with_cookie(self, document: Document, secret: str) -> web.Response:
        answer = await self._answer(document)
        answer.set_cookie(
            self._doors.cookie,
            secret,
            path=self._base + "/ui",
            httponly=True,
            samesite="Strict",
            secure=self._around.listened()[0] == "https",
        )
        return answer

    async def _log_in(self, request: web.Request) -> web.StreamResponse:
        self._doors.check_own_page(request)
        body = await _body_of(request)
        if not self._logins.is_needed:
            raise Refused("this server has no logins")
        source = source_of(request)
        wait_s = self._throttle.wait_s(source)
        if wait_s > 0:
            seconds = math.ceil(wait_s)
            text = f"too many failed logins from {source}: try again in {seconds} s"
            return await self._fail(429, text, {"Retry-After": str(seconds)})
        words = [body.get(name, "") for name in ("user", "password", "token")]
        user, password, token = (word if isinstance(word, str) else "" for word in words)
        self._throttle.begin(source)
        try:
            grant = await self._logins.log_in(user, password, token, source)
        except Busy as err:
            self._throttle.succeed(source)
            raise Elsewhere(str(err)) from None
        if grant is None:
            return await self._fail(401, "the login is not right")
        self._throttle.succeed(source)
        before = request.cookies.get(self._doors.cookie, "")
        if before:
            self._sessions.end(before)
        secret, session = self._sessions.begin(grant)
        return await self._with_cookie(await self._session_document(session), secret)

    async def _log_out(self, request: web.Request) -> web.StreamResponse:
        self._doors.check_same_site(request)
        secret = request.cookies.get(self._doors.cookie, "")
        if secret:
            self._sessions.end(secret)
        answer = await self._answer({"login": "needed" if self._logins.is_needed else "none"})
        answer.del_cookie(self._doors.cookie, path=self._base + "/ui")
        return answer

    def _grant(self, request: web.Request) -> Grant:
        """Return the rights that a request has. Raises LoginWanted, Refused."""
        session = self._doors.admit(request)
        return session.grant if session is not None else OPEN

    # --- documents ------------------------------------------------------------------------------

    def _documents(self) -> dict[str, Callable[[web.Request, Grant], Awaitable[Document]]]:
        stream, bucket = "/streams/{account}/{stream}", "/buckets/{account}/{bucket}"
        return {
            "/streams": self._list(self._pages.streams, "STREAM.LIST"),
            stream: self._of_stream(pages.DETAIL, "STREAM.INFO"),
            stream + "/messages": self._of_stream(pages.MESSAGES, "STREAM.MSG.GET"),
            "/consumers": self._list(self._pages.consumers, ""),
            "/consumers/{account}/{stream}/{consumer}": self._of_stream(
                pages.CONSUMER, "CONSUMER.INFO"
            ),
            "/buckets": self._list(self._pages.buckets, "STREAM.LIST"),
            bucket + "/keys": self._of_stream(pages.KEYS, "STREAM.MSG.GET"),
            bucket + "/keys/{key:.+}": self._of_stream(pages.KEY, "STREAM.MSG.GET"),
            "/connections": self._list(self._pages.connections, ""),
            "/groups": self._list(self._pages.groups, "STREAM.LIST"),
            "/overview": self._overview_document,
            "/events": self._event_document,
        }

    def _document(self, build: Callable[[web.Request, Grant], Awaitable[Document]]) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            return await self._answer(await build(request, self._grant(request)))

        return handle

    def _list(
        self, build: Callable[..., Awaitable[Document]], verb: str
    ) -> Callable[[web.Request, Grant], Awaitable[Document]]:
        async def handle(request: web.Request, grant: Grant) -> Document:
            if verb:
                _check_permission(grant, verb)
            return await build(grant, request.query)

        return handle

    def _of_stream(
        self, name: str, verb: str
    ) -> Callable[[web.Request, Grant], Awaitable[Document]]:
        async def handle(request: web.Request, grant: Grant) -> Document:
            found = request.match_info
            if "bucket" in found:
                kind = request.query.get("kind", "")
                asset = self._pages.bucket(grant, found["account"], found["bucket"], kind)
            else:
                asset = self._pages.find(grant, found["account"], found["stream"])
            query = dict(request.query)
            for part in ("consumer", "key"):
                if part in found:
                    query[part] = found[part]
            rest = f".{found['consumer']}" if "consumer" in found else ""
            _check_permission(grant, f"{verb}.{asset.name}{rest}")
            if name == pages.DETAIL:
                return await self._pages.detail(asset)
            return await self._pages.page(name, asset, query)

        return handle

    async def _overview_document(self, request: web.Request, grant: Grant) -> Document:
        found: Document = json.loads(await self._overview.text())
        return found

    async def _event_document(self, request: web.Request, grant: Grant) -> Document:
        self._events.watch()
        return self._events.document(grant)

    # --- event streams --------------------------------------------------------------------------

    async def _live(self, request: web.Request) -> web.StreamResponse:
        async def run(stream: EventStream, session: Session) -> None:
            self._events.watch()
            grant = session.grant

            def on_event(event: Event) -> None:
                if is_shown(event, grant):
                    stream.put("event", event.document())

            token = self._events.listen(on_event)
            try:
                while self._goes_on(stream, session):
                    await stream.send_text("overview", await self._overview.text())
                    until_s = self._clock() + DASHBOARD_OVERVIEW_S
                    await stream.send_waiting(until_s, self._clock)
            finally:
                self._events.unlisten(token)

        return await self._stream(request, run)

    async def _tail(self, request: web.Request) -> web.StreamResponse:
        grant = self._grant(request)
        found = request.match_info
        asset = self._pages.find(grant, found["account"], found["stream"])
        _check_permission(grant, f"STREAM.MSG.GET.{asset.name}")
        read_filter(request.query, "filter")  # refused here if it means nothing
        subject = request.query.get("filter", "").strip()

        async def page(**query: object) -> Document:
            texts = {name: str(value) for name, value in query.items()}
            return await self._pages.page(pages.MESSAGES, asset, texts | {"subject": subject})

        # Before the answer begins: what is stored after that is shown.
        begin = (await page(limit=1, direction="previous"))["last_seq"] + 1

        async def run(stream: EventStream, session: Session) -> None:
            following = begin
            while self._goes_on(stream, session):
                new = await page(seq=following, limit=DASHBOARD_TAIL_MSGS)
                items = new["items"]
                if new["next"] is not None:
                    newest = await page(limit=DASHBOARD_TAIL_MSGS, direction="previous")
                    items = [item for item in reversed(newest["items"]) if item["seq"] >= following]
                    first = items[0]["seq"] if items else newest["last_seq"] + 1
                    # Of a filter it is not counted how many of these match.
                    count = None if subject else first - following
                    span = {"from": following, "to": first - 1, "count": count}
                    await stream.send("skipped", span)
                    new = newest
                for item in items:
                    await stream.send("message", item)
                following = new["last_seq"] + 1
                await stream.send_waiting(self._clock() + DASHBOARD_TAIL_S, self._clock)

        return await self._stream(request, run)

    def _goes_on(self, stream: EventStream, session: Session) -> bool:
        """Count an open stream as a use of its session, and end sessions that are over. False if
        the stream has come to its end, by that or before."""
        session.used_s = self._clock()
        self._sessions.sweep()
        if not self._logins.is_valid(session.grant):
            session.end()
        return not stream.is_ended

    async def _stream(
        self, request: web.Request, run: Callable[[EventStream, Session], Awaitable[None]]
    ) -> web.StreamResponse:
        """Send an event stream: `run` sends the events, until the session ends or the browser
        goes."""
        session = self._doors.admit(request)
        if session is None:  # nobody has to log in: one that ends when that changes
            session = Session(self._logins.open_grant(), self._clock())
        if len(self._streams) >= DASHBOARD_LIVE_MAX:
            raise Elsewhere(f"{DASHBOARD_LIVE_MAX} pages are open already, more are not served")
        headers = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
        response = web.StreamResponse(headers=HEADERS | _NO_STORE | headers)
        stream = EventStream(request, response, session)
        self._streams.add(stream)
        try:
            await response.prepare(request)
            await run(stream, session)
        except Ended:
            return response
        except (BadQuery, Elsewhere, StreamdError) as err:
            # The stream is gone, or nobody leads it: the page asks again, or tells.
            await stream.fail(str(err))
        finally:
            self._streams.discard(stream)
            await stream.close()
        return response

    # --- actions --------------------------------------------------------------------------------

    def _action(
        self, verb: str, act: Callable[[str, web.Request, Document, Session], Awaitable[Document]]
    ) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            session = self._doors.admit_action(request)
            return await self._answer(await act(verb, request, await _body_of(request), session))

        return self._api(handle)

    async def _act_on_stream(
        self, verb: str, request: web.Request, body: Document, session: Session
    ) -> Document:
        found, grant = request.match_info, session.grant
        asset = self._pages.find(grant, found["account"], found["stream"])
        _check_confirmed(body, asset.name)
        if verb == "scrub":
            if not grant.sees_all:
                raise Refused("only an administrator of all accounts may have files verified")
            return await self._actions.verify(self._pages.members(asset))
        source = source_of(request)
        return await self._actions.on_stream(verb, asset.account, asset.name, grant, source)

    async def _act_on_consumer(
        self, verb: str, request: web.Request, body: Document, session: Session
    ) -> Document:
        found, grant = request.match_info, session.grant
        asset = self._pages.find(grant, found["account"], found["stream"])
        consumer = found["consumer"]
        _check_confirmed(body, consumer)
        await self._pages.page(pages.CONSUMER, asset, {"consumer": consumer})  # or NotFound
        return await self._actions.on_consumer(
            verb, asset, consumer, body, grant, source_of(request)
        )

    async def _act_on_meta(
        self, verb: str, request: web.Request, body: Document, session: Session
    ) -> Document:
        _check_confirmed(body, self._pages.parts.node.meta_leader)
        return await self._actions.step_down_meta(session.grant, source_of(request))


class _Shared:
    """A text that many ask for and that is built once a second, by whoever asks first."""

    def __init__(self, build: Callable[[], Awaitable[str]], clock: Callable[[], float]) -> None:
        self._build = build
        self._clock = clock
        self._text = ""
        self._built_s = -math.inf
        self._building: asyncio.Event | None = None

    async def text(self) -> str:
        """Return the text, not older than a second."""
        while self._clock() - self._built_s >= DASHBOARD_OVERVIEW_S * 0.9:
            if self._building is not None:
                await self._building.wait()
                continue
            self._building = built = asyncio.Event()
            try:
                self._text = await self._build()
                self._built_s = self._clock()
            finally:
                self._building = None
                built.set()
        return self._text


def _check_permission(grant: Grant, verb: str) -> None:
    """Raise Refused unless a client with this login could ask for it."""
    subject = f"$JS.API.{verb}"
    if not grant.may_request(subject):
        raise Refused(f"the user {grant.user!r} has no permission to publish to {subject}")


def _check_confirmed(body: Document, name: str) -> None:
    """Raise BadQuery unless the body repeats the name of what is to change."""
    if body.get("confirm") != name:
        raise BadQuery(f'the body must repeat the name: {{"confirm": {json.dumps(name)}}}')


async def _body_of(request: web.Request) -> Document:
    """Return the JSON object of a request. Raises BadQuery."""
    body = await request.content.read(DASHBOARD_BODY_BYTES + 1)
    while len(body) <= DASHBOARD_BODY_BYTES and not request.content.at_eof():
        more = await request.content.read(DASHBOARD_BODY_BYTES + 1 - len(body))
        body += more
    if len(body) > DASHBOARD_BODY_BYTES:
        raise BadQuery(f"the body has more than {DASHBOARD_BODY_BYTES} bytes")
    try:
        found = json.loads(body or b"{}")
    except (ValueError, RecursionError) as err:
        raise BadQuery(f"the body is no JSON: {err}") from None
    if not isinstance(found, dict):
        raise BadQuery("the body must be a JSON object")
    return found


async def _unknown(request: web.Request) -> web.StreamResponse:
    raise NotFound(f"there is nothing at {request.method} {request.path[:200]}")
