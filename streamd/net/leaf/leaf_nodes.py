"""Leaf links of a server: the listener for leaf nodes, the remotes it dials, and all their links.

`LeafNodes` is the owner that each link asks: whether it may be, whose login it has, which account
it joins. The parts:

    LeafLink       one link: socket, timers, events            `leaf_link.py`
    LeafSession    its protocol, without I/O                   `leaf_session.py`
    LeafSpace      an account, as its links join it            `leaf_space.py`
    Remotes        hubs that are dialed                        `remotes.py`
    LeafLogins     logins of leaf nodes                        `leaf_logins.py`
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from streamd.config.cluster_options import client_address, join_address
from streamd.config.leaf_options import DEFAULT_LEAF_PORT, LeafRemote, LeafUrl
from streamd.config.options import Options
from streamd.config.tls_options import TLS_TIMEOUT_S, TlsOptions
from streamd.errors import ConfigError
from streamd.limits import LEAF_HANDSHAKES_MAX
from streamd.net.client.auth import (
    Approach,
    Check,
    ClientPolicy,
    Consultation,
    Identity,
    OutsideLogins,
    Verdict,
)
from streamd.net.client.password_checks import PasswordChecks
from streamd.net.leaf.leaf_credentials import CredentialsError, credentials_of
from streamd.net.leaf.leaf_link import LeafLink
from streamd.net.leaf.leaf_logins import LEAFNODE, LEAFNODE_WS, LeafLogins
from streamd.net.leaf.leaf_session import LeafSession, LocalEnd, State
from streamd.net.leaf.leaf_space import LeafSpace, StreamsOf
from streamd.net.leaf.remotes import Remote, Remotes
from streamd.net.monitoring.stats import LeafRow
from streamd.net.pubsub.message_router import MessageRouter
from streamd.net.sockets import WILDCARDS, serve
from streamd.net.tls.facts import TlsFacts, TlsFault
from streamd.net.tls.handshakes import Handshakes
from streamd.obs.server_log import Log

if TYPE_CHECKING:
    from ssl import SSLContext

Secured = asyncio.Transport | TlsFault
_NO_ROOM = "maximum account active connections exceeded"
_DUPLICATE = "Duplicate Remote LeafNode Connection"


class LeafAccounts(NamedTuple):
    """Accounts of the server, as leaf links are bound to them."""

    router_of: Callable[[str], MessageRouter | None]
    streams_of: StreamsOf
    links_max_of: Callable[[str], int] = lambda account: -1
    on_links_changed: Callable[[str], None] = lambda account: None


@dataclass(slots=True)
class LinkTimes:
    """See `leaf_link.LeafTimes`."""

    login_s: float
    ping_s: float
    ping_max: int
    pending_bytes_max: int
    payload_bytes_max: int
    write_s: float
    rtts_ns: tuple[int, ...]

    @classmethod
    def of(cls, options: Options, login_s: float, rtts_ns: tuple[int, ...]) -> LinkTimes:
        write_ns = options.leaf.write_deadline_ns or options.write_deadline_ns
        return cls(
            login_s,
            options.ping_interval_ns / 1e9,
            options.ping_max,
            options.max_pending,
            options.max_payload,
            write_ns / 1e9,
            rtts_ns,
        )


class LeafNodes:
    """Leaf links of this server: their start and end, and what they share."""

    def __init__(
        self,
        options: Options,
        local: LocalEnd,
        accounts: LeafAccounts,
        log: Log,
        handshakes: Handshakes,
        loop: asyncio.AbstractEventLoop,
        outside: OutsideLogins | None = None,
    ) -> None:
        """`outside` decides on logins beyond the configuration."""
        self._options = options
        self._local = local
        self._accounts = accounts
        self._log = log
        self._tls = LeafTls(options.leaf.tls, handshakes, loop)
        self._loop = loop
        # In clear or TLS, and in WebSocket frames.
        self._policies = [ClientPolicy.of(options, way, outside) for way in (LEAFNODE, LEAFNODE_WS)]
        self._logins = [LeafLogins(options.leaf, policy) for policy in self._policies]
        self._passwords = PasswordChecks()
        self._spaces: dict[str, LeafSpace] = {}
        self._links: dict[LeafLink, None] = {}
        self._last_lid = 0
        self._server: asyncio.Server | None = None
        self._remotes: Remotes | None = None  # None: not started
        self._is_telling = False  # of streams that changed

    async def start(self, create_task: Callable[..., asyncio.Task[None]]) -> None:
        """Listen, and dial the remotes. Raises OSError, OverflowError, ConfigError."""
        leaf, local = self._options.leaf, self._local
        if leaf.is_enabled:
            if leaf.port > 65535:  # uvloop would take it modulo 65536
                raise OverflowError(leaf.port)
            self._tls.prepare()
            self._server = await serve(self._loop, self._accept, leaf.host, leaf.port)
            local.port = self._server.sockets[0].getsockname()[1]
            local.host, port = leaf.host, local.port
            if leaf.advertise:
                local.host, port = client_address(leaf.advertise, DEFAULT_LEAF_PORT)
            shown = "127.0.0.1" if local.host in WILDCARDS else local.host
            local.leaf_urls = [join_address(shown, port)]
            address = join_address(leaf.host, local.port)
            self._log.info(f"Listening for leafnode connections on {address}")
        self._remotes = Remotes(self._make_remote, create_task)
        self._remotes.change(leaf.remotes)

    def _make_remote(self, options: LeafRemote) -> Remote:
        self._check_credentials(options)
        reconnect_s = self._options.leaf.reconnect_ns / 1e9
        return Remote(options, self, self._log, reconnect_s=reconnect_s)

    def _check_credentials(self, remote: LeafRemote) -> None:
        try:
            credentials_of(remote)
        except CredentialsError as err:
            self._log.error(
                f'Error reading LeafNode Remote Credentials file "{remote.credentials}": {err}'
            )

    async def close(self) -> None:
        """Stop listening and dialing, and end all links."""
        if self._remotes is not None:
            self._remotes.close()
        if self._server is not None:
            self._server.close()
        for link in list(self._links):
            link.close("Server Shutdown")

    def reload(self, options: Options) -> None:
        """Judge logins to come by another configuration, and dial the hubs that it names."""
        self._options = options
        for policy in self._policies:
            policy.reload(options)
        if self._remotes is not None:
            self._remotes.change(options.leaf.remotes)

    def streams_changed(self) -> None:
        """Tell links of streams that came, went, or are led elsewhere, when the loop's iteration is
        over: many may change at once."""
        if self._spaces and not self._is_telling:
            self._is_telling = True
            self._loop.call_soon(self._tell_streams)

    def _tell_streams(self) -> None:
        self._is_telling = False
        for space in self._spaces.values():
            space.streams_changed()

    @property
    def port(self) -> int:
        return self._local.port

    def count_of(self, account: str) -> int:
        """Return the number of an account's links."""
        space = self._spaces.get(account)
        return len(space.links) if space is not None else 0

    def rows(self) -> list[LeafRow]:
        """Return all links that are up, for monitoring."""
        return list(self._rows())

    def rows_of(self, account: str) -> list[LeafRow]:
        """Return the links of an account that are up."""
        return list(self._rows(account))

    def _rows(self, account: str = "") -> Iterator[LeafRow]:
        for link in self._links:
            space = link.space
            if space is None or (account and space.name != account):
                continue
            facts, output = link.facts, link.output
            yield LeafRow(
                lid=facts.cid,
                name=link.session.end.name,
                is_spoke=output.is_spoke,
                is_isolated=output.is_isolated,
                account=space.name,
                ip=facts.ip,
                port=facts.port,
                rtt_ns=facts.rtt_ns,
                in_msgs=link.in_msgs,
                out_msgs=output.out_msgs,
                in_bytes=link.in_bytes,
                out_bytes=output.out_bytes,
                is_websocket=facts.is_websocket,
                compression=facts.compression,
                subjects=[pattern.decode(errors="replace") for pattern, _ in link.session.subs],
            )

    # --- links ------------------------------------------------------------------------------------

    def _accept(self) -> asyncio.BaseProtocol:
        return self._make_accepted()

    def make_websocket_link(self, loop: asyncio.AbstractEventLoop) -> LeafLink:
        """Return the end of a leaf node's connection that came to the WebSocket listener."""
        return self._make_accepted(is_websocket=True)

    def _make_accepted(self, *, is_websocket: bool = False) -> LeafLink:
        """Return the protocol of a socket that a leaf node dialed."""
        leaf = self._options.leaf
        session = LeafSession(
            self._local,
            lid=self._next_lid(),
            nonce=secrets.token_urlsafe(11),
            asks_for_tls=self._tls.is_served and not is_websocket,
            compression="off" if is_websocket else leaf.compression.mode,
        )
        login_s = leaf.auth_timeout_s or self._options.auth_timeout_s
        if leaf.tls is not None:
            login_s += leaf.tls.timeout_s
        times = LinkTimes.of(self._options, login_s, leaf.compression.rtts_ns)
        link = LeafLink(session, self, times, self._loop)
        link.facts.is_websocket = is_websocket
        return link

    def _next_lid(self) -> int:
        self._last_lid += 1
        return self._last_lid

    async def dial(self, remote: LeafRemote, url: LeafUrl) -> LeafLink:
        """See `remotes.Dialing`."""
        try:
            credentials = credentials_of(remote)
        except CredentialsError as err:
            raise ValueError(str(err)) from err
        session = LeafSession(
            self._local,
            lid=self._next_lid(),
            nonce="",
            remote=remote,
            url=url,
            credentials=credentials,
            compression="off" if url.is_websocket else remote.compression.mode,
        )
        wait_s = remote.first_info_timeout_ns / 1e9 + self._options.auth_timeout_s
        times = LinkTimes.of(self._options, wait_s, remote.compression.rtts_ns)
        link = LeafLink(session, self, times, self._loop, account=remote.account)
        if url.is_websocket:
            await self._dial_websocket(link, remote, url)
            return link
        async with asyncio.timeout(remote.dial_timeout_ns / 1e9):
            await self._loop.create_connection(lambda: link, url.host, url.port)
        return link

    async def _dial_websocket(self, link: LeafLink, remote: LeafRemote, url: LeafUrl) -> None:
        from streamd.net.leaf.websocket_dialing import DialedWebSocket  # a library that others save

        link.facts.is_websocket = True
        secure = None
        if remote.is_secure:
            secure = partial(self._tls.dial, remote=remote, host=url.host)
        socket = DialedWebSocket(
            link, url, self._loop, is_compressing=remote.is_compressing, secure=secure
        )
        async with asyncio.timeout(remote.dial_timeout_ns / 1e9):
            await self._loop.create_connection(lambda: socket, url.host, url.port)
        async with asyncio.timeout(self._options.auth_timeout_s + TLS_TIMEOUT_S):
            try:
                await socket.opened
            except BaseException:
                socket.cut_off()
                raise

    # --- `leaf_link.LeafOwner` --------------------------------------------------------------------

    def admit(self, link: LeafLink) -> bool:
        """Take in a new connection, unless too many have not logged in yet."""
        if not link.account:
            strangers = sum(not each.session.is_open for each in self._links if not each.account)
            if strangers >= LEAF_HANDSHAKES_MAX:
                return False
        self._links[link] = None
        account = f" for account: {link.account}" if link.account else ""
        self.report(link, "info", f"Leafnode connection created{account} ")
        return True

    def secure(self, link: LeafLink, transport: asyncio.Transport) -> None:
        """Shake hands for TLS, if there is any; then the link goes on."""
        remote = link.session.remote
        done = partial(self._on_secured, link)
        if remote is not None:
            try:
                self._tls.dial(link, transport, remote, link.session.host, done)
            except (ConfigError, ValueError) as err:
                done(TlsFault(str(err), is_certificate=False))
        elif self._tls.is_served and not link.facts.is_websocket:
            self._tls.serve(link, transport, done)

    def _on_secured(self, link: LeafLink, result: Secured) -> None:
        if isinstance(result, TlsFault):
            self.report(link, "error", f"TLS leafnode handshake error: {result.text}")
            link.close("TLS Handshake Failure")
        else:
            link.secured(result)

    def judge(self, link: LeafLink, connect: dict[str, Any]) -> None:
        """Check a login, on another thread if it takes long, or by asking others."""
        facts = link.facts
        approach = Approach(nonce=link.session.nonce, ip=facts.ip, cid=facts.cid)
        verdict = self._logins[facts.is_websocket].judge(connect, approach)
        if isinstance(verdict, Consultation):
            link.await_others()
            verdict.begin(partial(self._judged, link))
        elif not isinstance(verdict, Check):
            self._judged(link, verdict)
        elif not self._passwords.has_room():
            link.close("Authentication Timeout", "Authentication Timeout")
        else:
            self._passwords.submit(
                self._loop,
                link.facts.ip,
                verdict,
                is_gone=lambda: link.output.is_closed,
                done=partial(self._judged, link),
            )

    def _judged(self, link: LeafLink, verdict: Verdict) -> None:
        if link.output.is_closed:
            return
        if not isinstance(verdict, Identity):
            if verdict is not None:
                self.report(link, verdict.level, verdict.reason)
            link.close("Authentication Failure", "Authorization Violation")
            return
        identity = verdict
        link.facts.may_administer = identity.may_administer
        account = self._logins[link.facts.is_websocket].account_of(identity)
        link.accept(account, identity)

    # --- for `logins.live_logins` --------------------------------------------------------------

    def links_of(self, account: str) -> list[LeafLink]:
        """Return the links that leaf nodes have to an account, the oldest first."""
        return [
            link
            for link in self._links
            if link.session.remote is None and link.session.is_open and link.account == account
        ]

    def opened(self, link: LeafLink) -> LeafSpace | None:
        """Return the space of the link's account; of two links of one leaf node the older ends."""
        end = link.session.end
        router = self._accounts.router_of(link.account)
        if router is None:
            link.close("Missing Account", "Authorization Violation")
            return None
        space = self._spaces.get(link.account)
        if space is None:
            space = LeafSpace(link.account, router, self._accounts.streams_of)
            self._spaces[link.account] = space
        if link.session.remote is None:
            for other in list(self._links):
                if other is not link and other.space is space and _is_same(other, link):
                    other.close("Duplicate Remote LeafNode Connection", _DUPLICATE)
            most = self._accounts.links_max_of(link.account)
            if 0 <= most <= len(space.links):
                link.close("Maximum Account Connections Exceeded", _NO_ROOM)
                return None
        self._accounts.on_links_changed(link.account)
        local, remote = self._local.domain, end.domain
        self.report(link, "info", f'JetStream using domains: local "{local}", remote "{remote}"')
        return space

    def learn(self, link: LeafLink, addresses: list[str]) -> None:
        """Take in addresses of a hub's other servers."""
        found = self._remotes.of_link(link) if self._remotes is not None else None
        if found is not None:
            found.learn(addresses)

    def closed(self, link: LeafLink) -> None:
        """Drop a link that has ended."""
        if link in self._links:
            del self._links[link]
            if link.account:
                self._accounts.on_links_changed(link.account)
            remote = f" - Remote: {link.session.end.name}" if link.space is not None else ""
            self.report(link, "info", f"Leafnode connection closed: {link.reason}{remote}")

    def report(self, link: LeafLink, level: str, text: str) -> None:
        """Log something about a link."""
        getattr(self._log, level)(f"{link.address} - lid:{link.facts.cid} - {text}")


def _is_same(one: LeafLink, other: LeafLink) -> bool:
    """Return True if two links are of the same leaf node and account there."""
    if one.session.remote is not None or one.session.state is not State.OPEN:
        return False
    a, b = one.session.end, other.session.end
    return bool(a.account) and (a.name, a.cluster, a.account) == (b.name, b.cluster, b.account)


class LeafTls:
    """TLS of leaf links: behind the first INFO, at either end."""

    def __init__(
        self, tls: TlsOptions | None, handshakes: Handshakes, loop: asyncio.AbstractEventLoop
    ) -> None:
        """`tls` is the listener's; None: it speaks in clear."""
        self._options = tls
        self._handshakes = handshakes
        self._loop = loop
        self._server: SSLContext | None = None

    @property
    def is_served(self) -> bool:
        """True if leaf nodes have to speak TLS."""
        return self._options is not None

    def prepare(self) -> None:
        """Read the certificates. Raises ConfigError."""
        if self._options is not None:
            from streamd.net.tls.ssl_contexts import server_context  # OpenSSL costs a tenth of a s

            self._server = server_context(self._options)

    def serve(
        self, link: LeafLink, transport: asyncio.Transport, done: Callable[[Secured], None]
    ) -> None:
        """Shake hands with a leaf node; `done` is called with the transport in TLS, or the
        fault."""
        assert self._options is not None and self._server is not None
        self._shake(link, transport, self._options, self._server, "", done)

    def dial(
        self,
        protocol: asyncio.Protocol,
        transport: asyncio.Transport,
        remote: LeafRemote,
        host: str,
        done: Callable[[Secured], None],
    ) -> None:
        """Shake hands with the hub at `host`. Raises ConfigError, ValueError."""
        from streamd.net.tls.ssl_contexts import client_context

        options = remote.tls or TlsOptions()
        self._shake(protocol, transport, options, client_context(options), host, done)

    def _shake(
        self,
        protocol: asyncio.Protocol,
        transport: asyncio.Transport,
        options: TlsOptions,
        context: SSLContext,
        host: str,
        done: Callable[[Secured], None],
    ) -> None:
        from streamd.net.tls.transport import TlsTransport

        channel: TlsTransport

        def on_result(result: TlsFacts | TlsFault) -> None:
            if isinstance(result, TlsFault):
                done(result)
            elif options.pinned_certs and not _has_pinned(options, result):
                done(TlsFault("certificate not pinned", is_certificate=True))
            else:
                channel.set_protocol(protocol)
                done(channel)

        channel = TlsTransport(context, transport, self._handshakes, self._loop, on_result, host)
        channel.begin(options.timeout_s)


def _has_pinned(options: TlsOptions, facts: TlsFacts) -> bool:
    return bool(facts.certificates) and facts.certificates[0].spki_sha256 in options.pinned_certs
