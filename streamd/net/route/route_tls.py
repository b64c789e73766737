"""TLS of the links between servers: both ends show certificates, from the first byte."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from streamd.config.cluster_options import ClusterOptions
from streamd.config.tls_options import TlsOptions
from streamd.limits import PEER_HANDSHAKES_MAX
from streamd.net.tls.acceptor import NOT_WANTED, Make, TlsAcceptor
from streamd.net.tls.certificates import covers_host
from streamd.net.tls.facts import PeerCertificate, TlsFacts, TlsFault
from streamd.net.tls.handshakes import Handshakes
from streamd.net.tls.ssl_contexts import client_context
from streamd.net.tls.transport import TlsTransport


class PeerTls:
    """TLS of links that others dial, and of those that this server dials."""

    def __init__(
        self,
        options: ClusterOptions,
        handshakes: Handshakes,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[str, TlsFault], None],
    ) -> None:
        """Raises ConfigError."""
        assert options.tls is not None
        self._tls: TlsOptions = replace(options.tls, is_verifying=True)
        self._username = options.username
        self._hosts = [url.host for url in options.routes]
        self._handshakes = handshakes
        self._loop = loop
        self._client = client_context(self._tls)
        self._acceptor = TlsAcceptor(
            self._tls,
            handshakes,
            waiting_max=PEER_HANDSHAKES_MAX,
            is_wanted=self._is_wanted,
            report=report,
        )

    def read_anew(self) -> None:
        """Read the files again, for links to come; those that are up stay as they are. Raises
        ConfigError, and then nothing changes."""
        client = client_context(self._tls)
        self._acceptor.renew(self._tls)
        self._client = client

    def change_routes(self, hosts: list[str]) -> None:
        """Know servers by these names from here on."""
        self._hosts = hosts

    def accept(self, make: Make) -> asyncio.Protocol:
        """Return the protocol of a socket that another server dialed; see TlsAcceptor."""
        return self._acceptor.accept(make)

    def connect(self, make: Make, host: str, up: asyncio.Future[None]) -> asyncio.Protocol:
        """Return the protocol of a socket to `host`; `up` is done when the link's own protocol has
        begun, or has a ConnectionError that says why not."""
        return _Dialed(self, make, host, up)

    def shake(
        self, raw: asyncio.Transport, host: str, on_result: Callable[[TlsFacts | TlsFault], None]
    ) -> TlsTransport:
        """Begin a handshake with the server at `host`. Raises ValueError: nobody can be called
        so."""
        channel = TlsTransport(self._client, raw, self._handshakes, self._loop, on_result, host)
        channel.begin(self._tls.timeout_s)
        return channel

    def has_pinned(self, facts: TlsFacts) -> bool:
        """Return True if the other side's key is one of those that are pinned, or none is."""
        pins = self._tls.pinned_certs
        return not pins or bool(facts.certificates and facts.certificates[0].spki_sha256 in pins)

    def _is_wanted(self, facts: TlsFacts) -> bool:
        """Judge the certificate of a server that dialed this one."""
        if not self.has_pinned(facts) or not facts.certificates:
            return False
        own, tls = facts.certificates[0], self._tls
        if not (tls.checks_known_urls or tls.is_mapping):
            return True
        is_known = any(covers_host(own.hosts, host) for host in self._hosts)
        is_user = self._username in _names(own)
        return (tls.checks_known_urls and is_known) or (tls.is_mapping and is_user)


def _names(certificate: PeerCertificate) -> tuple[str, ...]:
    """Return all by which the certificate may name the cluster's user."""
    subject = certificate.subject
    with_domain = f"{subject.known_text},{subject.domain_components}"
    return (*certificate.names, with_domain, subject.known_text)


class _Dialed(asyncio.Protocol):
    """Protocol of a socket to another server until its handshake begins, which is at once."""

    def __init__(self, tls: PeerTls, make: Make, host: str, up: asyncio.Future[None]) -> None:
        self._tls = tls
        self._make = make
        self._host = host
        self._up = up
        self._channel: TlsTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        raw = cast(asyncio.Transport, transport)
        try:
            self._channel = self._tls.shake(raw, self._host, self._on_result)
        except (ValueError, ssl.SSLError) as err:
            self._fail(str(err))
            raw.abort()

    def _on_result(self, result: TlsFacts | TlsFault) -> None:
        channel = self._channel
        assert channel is not None
        if isinstance(result, TlsFault):
            self._fail(result.text)
        elif not self._tls.has_pinned(result) or self._up.done():
            self._fail(NOT_WANTED.text)
            channel.close()
        else:
            protocol = self._make()
            channel.set_protocol(protocol)
            protocol.connection_made(channel)
            self._up.set_result(None)

    def _fail(self, text: str) -> None:
        if not self._up.done():
            self._up.set_exception(ConnectionError(text))
