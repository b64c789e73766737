"""The monitoring port: aiohttp in front of `Monitoring`.

The socket listens from the first moment of a start, so its port is known and nobody is refused;
aiohttp itself is imported when the first client connects. It costs a quarter of a second and
megabytes that a server nobody watches need not spend.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from itertools import chain
from typing import TYPE_CHECKING

from streamd.limits import (
    HTTP_ANSWER_S,
    HTTP_BACKLOG,
    HTTP_CONNECTIONS_MAX,
    HTTP_FIRST_REQUEST_S,
    HTTP_IDLE_S,
    HTTP_PIECE_BYTES,
    HTTP_SHUTDOWN_S,
)
from streamd.net.monitoring.documents import Monitoring
from streamd.net.monitoring.query import BadQuery, Query
from streamd.net.monitoring.sliced_pages import Document, Slicer, Steps, encode, gather
from streamd.obs import metrics
from streamd.obs.server_log import Log

if TYPE_CHECKING:
    from aiohttp import web
    from aiohttp.typedefs import Middleware

Handler = Callable[["web.Request"], Awaitable["web.StreamResponse"]]

Mount = Callable[["web.Application", str], None]
"""Adds routes to the application, below a base path."""

Secure = Callable[[Callable[[], asyncio.BaseProtocol]], asyncio.BaseProtocol]

_CALLBACK = re.compile(r"[\w.$]+\Z", re.ASCII)


class HttpServer:
    """Serves the monitoring documents on a listening socket."""

    def __init__(
        self,
        listening: socket.socket,
        monitoring: Monitoring,
        slicer: Slicer,
        log: Log,
        base_path: str = "",
        secure: Secure | None = None,
        load_mount: Callable[[], Mount] | None = None,
    ) -> None:
        """`secure` puts TLS in front of the protocol of a connection; None: it is in clear.
        `load_mount` is called on another thread, when the first client comes, and returns what
        adds further routes."""
        self._socket = listening
        self._monitoring = monitoring
        self._slicer = slicer
        self._log = log
        self._secure = secure
        self._load_mount = load_mount
        self._base = "/" + base_path.strip("/") if base_path.strip("/") else ""
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server | None = None
        self._starting: asyncio.Task[None] | None = None
        self._silent: set[web.RequestHandler] = set()  # that never asked anything
        self._is_closed = False
        self._last_failure = ""
        self._kept_text = metrics.KeptText()
        self.port: int = listening.getsockname()[1]

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Wait for the first client; `tasks` owns the task that then brings up the library."""
        loop = asyncio.get_running_loop()

        def first_client() -> None:
            loop.remove_reader(self._socket.fileno())
            self._starting = tasks.create_task(self._serve(), name="http-start")

        loop.add_reader(self._socket.fileno(), first_client)

    async def _serve(self) -> None:
        await asyncio.to_thread(_import_library)
        mount = await asyncio.to_thread(self._load_mount) if self._load_mount is not None else None
        from aiohttp import web

        if self._is_closed:
            return
        app = web.Application(middlewares=[self._heard(), _not_found()])
        for path, handler in self._routes().items():
            # With any method, as in nats-server: HAProxy looks after a server with OPTIONS.
            app.router.add_route("*", self._base + path, self._counted(path, handler))
        if mount is not None:
            mount(app, self._base)
        said = logging.Logger("monitoring")
        said.addHandler(_Said(self._log))
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=said,
            shutdown_timeout=HTTP_SHUTDOWN_S,
            keepalive_timeout=HTTP_IDLE_S,
        )
        await runner.setup()
        self._runner = runner
        serving = runner.server
        assert serving is not None

        loop = asyncio.get_running_loop()

        def accept() -> asyncio.BaseProtocol:
            if len(serving.connections) >= HTTP_CONNECTIONS_MAX:
                return _Refusal()
            connection = serving()
            self._silent.add(connection)
            loop.call_later(HTTP_FIRST_REQUEST_S, self._end_if_silent, connection)
            return connection

        secure = self._secure

        def accept_secure() -> asyncio.BaseProtocol:
            assert secure is not None
            return secure(accept)

        self._server = await loop.create_server(
            accept if secure is None else accept_secure, sock=self._socket, backlog=HTTP_BACKLOG
        )

    async def close(self) -> None:
        """Stop listening and end open requests."""
        self._is_closed = True
        if self._starting is None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
        else:
            await self._starting
        if self._server is not None:
            self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()
        self._socket.close()

    def _heard(self) -> Middleware:
        """A middleware that notes which connections have asked for something."""
        from aiohttp import web

        @web.middleware
        async def note(
            request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
        ) -> web.StreamResponse:
            self._silent.discard(request.protocol)
            return await handler(request)

        return note

    def _end_if_silent(self, connection: web.RequestHandler) -> None:
        if connection in self._silent:
            self._silent.discard(connection)
            connection.force_close()

    # --- routes ---------------------------------------------------------------------------------

    def _routes(self) -> dict[str, Handler]:
        m = self._monitoring
        documents = {
            "/varz": m.varz,
            "/connz": m.connz,
            "/subsz": m.subsz,
            "/subscriptionsz": m.subsz,
            "/jsz": m.jsz,
            "/accountz": m.accountz,
            "/accstatz": m.accstatz,
            "/routez": m.routez,
            "/gatewayz": m.gatewayz,
            "/leafz": m.leafz,
            "/ipqueuesz": m.ipqueuesz,
            "/debug/vars": m.debug_vars,
        }
        routes: dict[str, Handler] = {
            path: self._document(build) for path, build in documents.items()
        }
        routes["/healthz"] = self._healthz
        routes["/raftz"] = self._raftz
        routes["/metrics"] = self._metrics
        routes["/stacksz"] = self._stacksz
        routes["/"] = self._index
        return routes

    def _counted(
        self, path: str, handler: Handler
    ) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        from aiohttp import web

        async def handle(request: web.Request) -> web.StreamResponse:
            self._monitoring.count_request(path)
            try:
                async with asyncio.timeout(HTTP_ANSWER_S):
                    return await handler(request)
            except BadQuery as err:
                return web.Response(status=400, text=str(err))
            except TimeoutError:  # the client does not read, or there is no end of others' pages
                request.protocol.force_close()
                return web.Response(status=503, text="the answer took too long")

        return handle

    def _document(self, build: Callable[[Query], Steps[Document]]) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            document = await self._slicer.wait(build(request.query))
            return await self._answer(request, encode(document))

        return handle

    async def _healthz(self, request: web.Request) -> web.StreamResponse:
        status, document = await self._slicer.wait(self._monitoring.healthz(request.query))
        is_ok = document == {"status": "ok"}
        failure = "" if is_ok else json.dumps(document, ensure_ascii=False)
        if failure and failure != self._last_failure:  # once per change, however often it is asked
            text = "Healthcheck failed" if status != 200 else "Healthcheck degraded"
            self._log.warning(text, answer=failure)
        self._last_failure = failure
        return await self._answer(request, encode(document, ""), status)

    async def _raftz(self, request: web.Request) -> web.StreamResponse:
        document = await self._slicer.wait(self._monitoring.raftz(request.query))
        if document is None:
            from aiohttp import web

            return web.Response(status=404, text="No Raft nodes returned, check supplied filters")
        return await self._answer(request, encode(document))

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        monitoring, wait = self._monitoring, self._slicer.wait
        varz, jetstream = await wait(monitoring.varz({})), monitoring.jetstream()
        samples, care = await wait(monitoring.samples()), await wait(monitoring.care())
        latencies = monitoring.latencies()
        pieces = metrics.pieces(varz, jetstream, samples, care, latencies, self._kept_text)
        return await self._send(request, pieces, {"Content-Type": metrics.CONTENT_TYPE})

    async def _stacksz(self, request: web.Request) -> web.StreamResponse:
        text = await self._slicer.wait(self._monitoring.stacksz())
        return await self._send(request, iter((text,)), {"Content-Type": "text/plain"})

    async def _index(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web

        paths = [path for path in self._routes() if path != "/"]
        paths += ["/ui/"] if self._load_mount is not None else []
        links = "".join(f"<li><a href='.{path}'>{path}</a></li>" for path in paths)
        page = f"<html lang='en'><body><h1>streamd</h1><ul>{links}</ul></body></html>"
        return web.Response(text=page, content_type="text/html")

    async def _answer(
        self, request: web.Request, pieces: Iterator[str], status: int = 200
    ) -> web.StreamResponse:
        """Send JSON, or a call of the function that the request names."""
        callback = request.query.get("callback", "")
        if callback:
            if not _CALLBACK.match(callback):
                raise BadQuery("callback is not a JavaScript name")
            pieces = chain((f"{callback}(",), pieces, (")",))
            return await self._send(request, pieces, {"Content-Type": "application/javascript"})
        headers = {"Content-Type": "application/json", "Access-Control-Allow-Origin": "*"}
        return await self._send(request, pieces, headers, status)

    async def _send(
        self,
        request: web.Request,
        pieces: Iterator[str],
        headers: dict[str, str],
        status: int = 200,
    ) -> web.StreamResponse:
        """Send what `pieces` make; if it is long, as it is made and as the client takes it."""
        from aiohttp import web

        text = await self._slicer.wait(gather(pieces, HTTP_PIECE_BYTES))
        if len(text) < HTTP_PIECE_BYTES:
            return web.Response(body=_bytes(text), status=status, headers=headers)
        answer = web.StreamResponse(status=status, headers=headers)
        await answer.prepare(request)
        while text:
            await answer.write(_bytes(text))
            text = await self._slicer.wait(gather(pieces, HTTP_PIECE_BYTES))
        await answer.write_eof()
        return answer


class _Said(logging.Handler):
    """Log handler that takes aiohttp's lines into our log. A bad request is the client's fault."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        from aiohttp.http_exceptions import HttpProcessingError

        fault = record.exc_info[1] if record.exc_info else None
        if isinstance(fault, HttpProcessingError):
            self._log.debug(record.getMessage(), reason=fault.message[:200])
        else:  # a fault of ours
            self._log.error(self.format(record))


class _Refusal(asyncio.Protocol):
    """A connection beyond those that are served: it ends at once."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def _not_found() -> Middleware:
    """A middleware that answers unknown paths in nats-server's words."""
    from aiohttp import web

    @web.middleware
    async def middleware(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPNotFound:
            return web.Response(status=404, text="404 page not found\n")

    return middleware


def _bytes(text: str) -> bytes:
    """Encode `text`; a client's own words may hold half a character."""
    return text.encode(errors="replace")


def _import_library() -> None:
    import aiohttp.web  # noqa: F401
