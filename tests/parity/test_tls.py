"""TLS for clients: in each situation a client sees what a real nats-server shows it."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import ssl
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography import x509

from benchmarks.servers import ServerProcess, free_port
from streamd.cli.server import main
from streamd.tokens.nkeys import KeyKind, encode_signature
from tests.certificates import Authority, Pair
from tests.minted_tokens import key
from tests.parity.runner import ours_binary, peer_binary
from tests.waiting import until
from tests.websocket_wire import BINARY, WebSocketWire, frame

pytestmark = pytest.mark.slow

CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"protocol":0%b}\r\nPING\r\n'
Seen = list[Any]


class Certificates:
    """Certificates of all cases, made once."""

    def __init__(self, directory: Path) -> None:
        (directory / "other").mkdir()
        self.directory = directory
        self.authority = Authority(directory)
        self.server = self.authority.issue("server")
        self.client = self.authority.issue("client", "O=Acme,CN=carol", ())
        self.second = self.authority.issue("second", "CN=second", ())
        self.expired = self.authority.issue("expired", days=-1)
        self.stranger = Authority(directory / "other").issue("stranger")

    @property
    def block(self) -> str:
        return f'{self.server.block}, ca_file: "{self.authority.cert}"'

    def context(self, pair: Pair | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.authority.cert)
        if pair is not None:
            context.load_cert_chain(pair.cert, pair.key)
        return context


class Side(NamedTuple):
    """Server under comparison, with the certificates to talk to it."""

    server: ServerProcess
    made: Certificates

    # --- clients ----------------------------------------------------------------------------------

    def plain(self) -> socket.socket:
        link = socket.create_connection(("127.0.0.1", self.server.port), 5)
        link.settimeout(5)
        return link

    def first(
        self, pair: Pair | None = None, context: ssl.SSLContext | None = None
    ) -> ssl.SSLSocket:
        context = context or self.made.context(pair)
        return context.wrap_socket(self.plain(), server_hostname="localhost")

    def upgraded(
        self, pair: Pair | None = None, context: ssl.SSLContext | None = None
    ) -> ssl.SSLSocket:
        link = self.plain()
        info(link)
        context = context or self.made.context(pair)
        return context.wrap_socket(link, server_hostname="localhost")

    def outcome(self, pair: Pair | None = None, **options: Any) -> str:
        """Whether a client with this certificate is served."""
        try:
            link = self.upgraded(pair, **options)
            return login(link)
        except OSError:
            return "refused"

    # --- monitoring -------------------------------------------------------------------------------

    def document(self, path: str) -> dict[str, Any]:
        url = f"http://127.0.0.1:{self.server.http_port}{path}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def varz(self) -> dict[str, Any]:
        """Facts about TLS in /varz."""
        found = self.document("/varz")
        return {key: found[key] for key in sorted(found) if "tls" in key or key == "auth_timeout"}

    def shown(self) -> Seen:
        """Facts about the TLS of open connections in /connz."""
        found = self.document("/connz?auth=1")["connections"]
        facts = [
            {key: each[key] for key in sorted(each) if "tls" in key and "cipher" not in key}
            for each in found
        ]
        return [*facts, [each.get("authorized_user") for each in found]]

    def last_reason(self) -> str:
        """Why the connection that ended last did; waits until there is one."""
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            found = self.document("/connz?state=closed&sort=stop&limit=1")["connections"]
            if found:
                return str(found[0]["reason"])
        return ""

    def reload(self, extra: str) -> None:
        """Put another configuration in place, and wait until it is in force or refused."""
        file = self.server.config_file
        lines = file.read_text().splitlines()[:2]
        file.write_text("\n".join([*lines, extra]) + "\n")
        log = self.server.log_file
        before = log.read_text().count("eload")
        self.server.send(signal.SIGHUP)

        def is_told() -> bool:
            new = log.read_text().split("eload")[before + 1 :]
            return any("server configuration" in line for line in new)

        until(is_told, "word of a reload in the log")


def info(link: socket.socket) -> dict[str, Any]:
    """Read INFO; what it says of TLS and login."""
    line = b""
    while not line.endswith(b"\n"):
        chunk = link.recv(1)
        if not chunk:
            return {"end": line}
        line += chunk
    found = json.loads(line[5:])
    return {key: found[key] for key in sorted(found) if "tls" in key or "auth" in key}


def login(link: socket.socket, more: str = "") -> str:
    """CONNECT with options `more`; the first word that is said to it, but for a PING in between."""
    said = b""
    try:
        link.sendall(CONNECT % more.encode())
        while not said.replace(b"PING\r\n", b""):
            chunk = link.recv(4096)
            if not chunk:
                return "end"
            said += chunk
    except OSError:
        return "refused"
    return said.replace(b"PING\r\n", b"").split(b"\r\n")[0].decode()


def rest(link: socket.socket) -> bytes | str:
    """Bytes that still come until the end, but for a PING; a reset is an end."""
    seen = b""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while chunk := link.recv(65536):
            seen += chunk
    return seen.replace(b"PING\r\n", b"")


# --- situations -----------------------------------------------------------------------------------


def required(side: Side) -> Seen:
    """TLS comes after INFO, and is required."""
    link = side.plain()
    seen: Seen = [info(link)]
    tls = side.made.context().wrap_socket(link, server_hostname="localhost")
    seen += [login(tls), side.shown(), side.varz()]
    plain = side.plain()
    info(plain)
    plain.sendall(CONNECT % b"")
    seen += [rest(plain), side.last_reason()]
    old = side.made.context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    seen.append(side.outcome(context=old))
    old.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    kept = side.upgraded(context=old)
    seen.append(login(kept))
    last = side.document("/connz?sort=cid")["connections"][-1]
    seen += [last["tls_version"], last["tls_cipher_suite"]]
    return seen


def silent(side: Side) -> Seen:
    """A client that sends nothing is closed without a word."""
    link = side.plain()
    info(link)
    began = time.monotonic()
    return [rest(link), time.monotonic() - began >= 0.25, side.last_reason(), side.varz()]


def verified(side: Side) -> Seen:
    """A certificate of the authority is required."""
    made = side.made
    link = side.plain()
    seen: Seen = [info(link), side.varz()]
    link.close()  # on a slow machine the time for its handshake is over before it comes to that
    for pair in (None, made.stranger, made.expired):
        seen += [side.outcome(pair) != "PONG", side.last_reason()]
    tls = side.upgraded(made.client)
    seen.append(login(tls))
    shown = side.shown()
    for each in shown[:-1]:  # only its own: which others it sends is up to the client's library
        each["tls_peer_certs"] = each["tls_peer_certs"][:1]
    seen.append(shown)
    tls.close()
    gone: list[dict[str, Any]] = []
    while not gone:
        closed = side.document("/connz?state=closed&auth=1")["connections"]
        gone = [each for each in closed if each["reason"] == "Client Closed"]
    return [*seen, gone[0]["tls_version"], "tls_peer_certs" in gone[0]]


def first(side: Side) -> Seen:
    """The handshake comes before INFO."""
    link = side.first()
    seen: Seen = [info(link), login(link), side.shown()]
    plain = side.plain()
    plain.sendall(CONNECT % b"")
    seen += [rest(plain), side.last_reason()]
    quiet = side.plain()
    return [*seen, rest(quiet), side.last_reason()]


def first_or_later(side: Side) -> Seen:
    """The client's first byte decides, or its silence."""
    early = side.first()
    seen: Seen = [info(early), login(early)]
    late = side.plain()
    seen.append(info(late))
    tls = side.made.context().wrap_socket(late, server_hostname="localhost")
    seen += [login(tls), side.shown()]
    plain = side.plain()
    plain.sendall(CONNECT % b"")
    return [*seen, rest(plain), side.last_reason()]


def available(side: Side) -> Seen:
    """Clients in clear are served as well."""
    plain = side.plain()
    seen: Seen = [info(plain), login(plain), side.varz()]
    tls = side.upgraded()
    seen += [login(tls), side.shown()]
    late = side.plain()
    info(late)
    quiet_until = time.monotonic() + 0.4  # past the timeout
    late.settimeout(0.4)
    with contextlib.suppress(TimeoutError):
        late.recv(1)
    late.settimeout(5)
    return [*seen, time.monotonic() >= quiet_until - 0.05, login(late)]


def available_first(side: Side) -> Seen:
    """With the handshake first, TLS is all there is."""
    tls = side.first()
    seen: Seen = [info(tls), login(tls)]
    plain = side.plain()
    plain.sendall(CONNECT % b"")
    return [*seen, rest(plain)]


def throttled(side: Side) -> Seen:
    """Too many in a second are told so in clear."""
    time.sleep(1.1)  # what waited for the server to start came in a second of its own
    links = [side.plain() for _ in range(5)]
    infos = [info(link) for link in links]
    said = [rest(link) for link in links[3:]]
    reasons: list[str] = []
    while len(reasons) < 2:
        closed = side.document("/connz?state=closed")["connections"]
        reasons = [each["reason"] for each in closed if "Maximum" in each["reason"]]
    # The peer sometimes closes before the text has gone.
    return [infos, next(filter(None, said), b""), reasons]


def pinned(side: Side) -> Seen:
    """Only keys that are pinned are served; a reload ends the others."""
    made = side.made
    served = side.upgraded(made.client)
    seen: Seen = [login(served), side.outcome(made.second), side.last_reason()]
    side.reload(f'tls {{ {made.block}, verify: true, pinned_certs: ["{made.second.pin}"] }}')
    seen += [rest(served), side.last_reason(), side.outcome(made.second)]
    return seen


def narrow(side: Side) -> Seen:
    """Only one version and one curve are accepted."""
    old, other = side.made.context(), side.made.context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    other.set_ecdh_curve("secp521r1")
    return [side.outcome(), side.outcome(context=old), side.outcome(context=other)]


def suites(side: Side) -> Seen:
    """Suites bind TLS 1.2 alone."""
    old = side.made.context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    seen = [side.outcome(), side.outcome(context=old)]
    old.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
    return [*seen, side.outcome(context=old)]


def default_suites(side: Side) -> Seen:
    """Each suite of TLS 1.2 by itself, where the configuration names none."""
    seen: Seen = []
    for suite in SUITES:
        old = side.made.context()
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        old.set_ciphers(suite)
        seen.append((suite, side.outcome(context=old)))
    return seen


def without_certificate(side: Side) -> Seen:
    """The block alone is legal: TLS is required, and comes to nothing."""
    return [info(side.plain()), side.outcome(), side.last_reason()]


def not_asked_for(side: Side) -> Seen:
    """To allow others beside a TLS that is not there changes nothing."""
    link = side.plain()
    return [info(link), login(link), side.varz()]


def reloaded(side: Side) -> Seen:
    """Certificates and whether TLS is asked for change; nobody is dropped."""
    made = side.made
    old = side.upgraded()
    seen: Seen = [login(old)]
    fresh = made.authority.issue("fresh")

    def shown() -> bool:
        link = side.upgraded()
        der = link.getpeercert(binary_form=True)
        assert der is not None
        return x509.load_der_x509_certificate(der) == fresh.certificate

    side.reload(f"tls {{ {fresh.block} }}")
    seen.append(shown())
    side.reload('tls { cert_file: "/no.pem", key_file: "/no.pem" }')
    seen.append(shown())
    side.reload(f"tls {{ {fresh.block}, connection_rate_limit: 1 }}")
    seen += [shown(), shown()]
    side.reload(f"tls {{ {fresh.block} }}\nallow_non_tls: true")
    link = side.plain()
    seen.append(info(link))
    side.reload(f"tls {{ {fresh.block}, timeout: 7, handshake_first: true }}")
    seen += [info(side.first()), side.varz()["tls_timeout"]]
    side.reload("")
    link = side.plain()
    seen += [info(link), login(link), login(old)]
    return seen


SUITES = (
    *("ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"),
    *("ECDHE-ECDSA-CHACHA20-POLY1305", "ECDHE-ECDSA-AES128-SHA", "ECDHE-ECDSA-AES256-SHA"),
    *("ECDHE-ECDSA-AES128-SHA256", "ECDHE-ECDSA-AES256-SHA384"),
)
SITUATIONS: dict[Callable[[Side], Seen], str] = {
    required: "tls {{ {block} }}",
    silent: "tls {{ {block}, timeout: 0.3 }}",
    verified: "tls {{ {block}, verify: true, timeout: '1s' }}",
    first: "tls {{ {block}, handshake_first: true, timeout: 0.5 }}",
    first_or_later: "tls {{ {block}, handshake_first: '200ms' }}",
    available: "tls {{ {block}, timeout: 0.2 }}\nallow_non_tls: true",
    available_first: "tls {{ {block}, handshake_first: true }}\nallow_non_tls: true",
    throttled: "tls {{ {block}, connection_rate_limit: 3 }}",
    pinned: 'tls {{ {block}, verify: true, pinned_certs: ["{pin}"] }}',
    narrow: "tls {{ {block}, min_version: '1.3', curve_preferences: [CurveP256] }}",
    suites: "tls {{ {block}, cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384] }}",
    default_suites: "tls {{ {block} }}",
    without_certificate: "tls {{ }}",
    not_asked_for: "allow_non_tls: true",
    reloaded: "tls {{ {block} }}",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    if not peer_binary() or not ours_binary():
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    return Certificates(tmp_path_factory.mktemp("certificates"))


def look(
    binary: str, directory: Path, made: Certificates, extra: str, probe: Callable[[Side], Seen]
) -> Seen:
    server = ServerProcess(binary, directory=directory, extra=extra, is_jetstream=False)
    with server:
        server.launch()
        server.wait_for_log("Server is ready")
        return probe(Side(server, made))


@pytest.mark.parametrize("probe", SITUATIONS, ids=lambda probe: probe.__name__)
def test_the_same_is_seen(
    probe: Callable[[Side], Seen], made: Certificates, tmp_path: Path
) -> None:
    """By clients and by who looks at monitoring."""
    extra = SITUATIONS[probe].format(block=made.block, pin=made.client.pin)
    theirs = look(peer_binary(), tmp_path / "peer", made, extra, probe)
    assert look(ours_binary(), tmp_path / "ours", made, extra, probe) == theirs


@pytest.mark.parametrize("is_known", [False, True])
def test_without_an_authority_those_of_the_system_count(
    is_known: bool, made: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both libraries find them by this variable."""
    other = made.authority.cert if is_known else made.stranger.cert
    monkeypatch.setenv("SSL_CERT_FILE", other)
    extra = f"tls {{ {made.server.block}, verify: true }}"

    def probe(side: Side) -> Seen:
        return [side.outcome(made.client) == "PONG", side.outcome() == "PONG"]

    theirs = look(peer_binary(), tmp_path / "peer", made, extra, probe)
    assert look(ours_binary(), tmp_path / "ours", made, extra, probe) == theirs
    assert theirs == [is_known, False]


# --- certificates that name users -----------------------------------------------------------------

USERS = (
    *("carol@x.io", "host.x.io", "spiffe://x/carol", "CN=dn,OU=eng,O=Acme"),
    *("CN=spaced, OU=eng,  O=Acme", "O=Acme,CN=any,OU=eng", "CN=dc,DC=x,DC=io", "bare"),
    *("CN=multi+OU=eng,O=Acme", "CN=go,OU=a+OU=b,O=Acme", "CN=case,O=acme", "cn=type,o=Acme"),
)
EMAIL, HOST = x509.RFC822Name, x509.DNSName
NAMED: dict[str, tuple[str, tuple[x509.GeneralName, ...]]] = {
    "email": ("CN=x", (HOST("host.x.io"), EMAIL("carol@x.io"))),
    "second email": ("CN=x", (EMAIL("no@x.io"), EMAIL("carol@x.io"))),
    "host": ("CN=x", (HOST("host.x.io"),)),
    "uri": ("CN=x", (x509.UniformResourceIdentifier("spiffe://x/carol"),)),
    "falls through": ("O=Acme,OU=eng,CN=dn", (EMAIL("nobody@x.io"), HOST("no.x.io"))),
    "dn": ("O=Acme,OU=eng,CN=dn", ()),
    "dn in another order": ("CN=dn,OU=eng,O=Acme", ()),
    "dn with spaces": ("O=Acme,OU=eng,CN=spaced", ()),
    "dn of any order": ("O=Acme,OU=eng,CN=any", ()),
    "domain components": ("DC=io,DC=x,CN=dc", ()),
    "domain components in certificate order": ("CN=dc,DC=x,DC=io", ()),
    "bare": ("CN=bare", ()),
    "several attributes in a part": ("O=Acme,OU=eng+CN=multi", ()),
    "equal types": ("O=Acme,OU=a,OU=b,CN=go", ()),
    "case of values": ("O=Acme,CN=case", ()),
    "case of types": ("O=Acme,CN=type", ()),
    "part of it": ("CN=dn,O=Acme", ()),
    "nobody": ("CN=nobody", ()),
    "password": ("CN=x", (EMAIL("pass@x.io"),)),
}


def mapped(side: Side) -> Seen:
    """Users that certificates name, and the weight of a CONNECT beside them."""
    seen: Seen = []
    for name, (subject, names) in NAMED.items():
        pair = side.made.authority.issue("mapped", subject, names)
        for more in ("", ',"user":"bare"', ',"user":"x","pass":"secret"', ',"pass":"wrong"'):
            with side.upgraded(pair) as link:
                said = login(link, more)
                users = side.document("/connz?auth=1")["connections"] if said == "PONG" else []
                # The one before may not be gone yet.
                user = users[-1].get("authorized_user") if users else None
                seen.append((name, more, said, user))
    return seen


def test_certificates_name_the_same_users(made: Certificates, tmp_path: Path) -> None:
    """By their names in the same order, with or without a password."""
    users = ", ".join(f'{{user: "{user}"}}' for user in USERS)
    extra = (
        f"tls {{ {made.block}, verify_and_map: true }}\n"
        f"authorization {{ users: [{users}, {{user: 'pass@x.io', password: secret}}] }}"
    )
    theirs = look(peer_binary(), tmp_path / "peer", made, extra, mapped)
    ours = look(ours_binary(), tmp_path / "ours", made, extra, mapped)
    assert ours == theirs


KEY = key(KeyKind.USER, "beside certificates")
CONFINED = f"""authorization {{ users: [
  {{user: "carol@x.io", allowed_connection_types: [WEBSOCKET]}}
  {{user: "host.x.io"}}
  {{user: "CN=dn,OU=eng,O=Acme", allowed_connection_types: [WEBSOCKET]}}
  {{user: anon}}
  {{user: pw, password: secret}}
  {{nkey: {KEY.public}}}
] }}
no_auth_user: anon
"""


def confined(side: Side) -> Seen:
    """Users of other ways to connect, a key beside a certificate, and who has no certificate."""
    seen: Seen = []
    for name in ("email", "host", "dn", "nobody"):
        subject, names = NAMED[name]
        pair = side.made.authority.issue("confined", subject, names)
        with side.upgraded(pair) as link:
            said = login(link)
            users = side.document("/connz?auth=1")["connections"] if said == "PONG" else []
            seen.append((name, said, users[-1].get("authorized_user") if users else None))
        link = side.plain()
        told = b""
        while not told.endswith(b"\n"):
            told += link.recv(1)
        nonce = json.loads(told[5:])["nonce"]
        context = side.made.context(pair)
        with context.wrap_socket(link, server_hostname="localhost") as signed:
            signature = encode_signature(KEY.sign(nonce.encode()))
            seen.append(login(signed, f',"nkey":"{KEY.public}","sig":"{signature}"'))
    return seen


def test_certificates_name_users_of_one_way_to_connect(made: Certificates, tmp_path: Path) -> None:
    extra = f"tls {{ {made.block}, verify_and_map: true }}\n{CONFINED}"
    theirs = look(peer_binary(), tmp_path / "peer", made, extra, confined)
    assert look(ours_binary(), tmp_path / "ours", made, extra, confined) == theirs


UNMAPPED = ("carol@x.io", "host.x.io", "anon", "pw", "")


def _over_websocket(side: Side) -> Seen:
    text = side.server.log_file.read_text()
    (port,) = re.findall(r"websocket clients on ws://127.0.0.1:(\d+)", text)
    seen: Seen = []
    for user in UNMAPPED:
        for password in ("", "secret"):
            wire = WebSocketWire(int(port))
            wire.upgrade()
            wire.next()
            said = json.dumps({"verbose": False, "user": user, "pass": password})
            wire.send(frame(BINARY, f"CONNECT {said}\r\nPING\r\n".encode()))
            answer = wire.next()
            wire.close()
            seen.append((user, password, answer and answer.data.split(b"\r\n")[0]))
    return seen


def _over_tcp(side: Side) -> Seen:
    seen: Seen = []
    for user in UNMAPPED:
        for password in ("", "secret"):
            with side.plain() as link:
                info(link)
                seen.append((user, password, login(link, f',"user":"{user}","pass":"{password}"')))
    return seen


@pytest.mark.parametrize("mapped", ["clients", "websocket"])
def test_users_of_certificates_do_not_come_where_none_is_asked_for(
    mapped: str, made: Certificates, tmp_path: Path
) -> None:
    """One listener maps certificates to users, and the other one knows of none."""
    tls = f"tls {{ {made.block}, verify_and_map: true }}"
    here, there = (tls, "no_tls: true") if mapped == "clients" else ("", tls)
    extra = f'{here}\nwebsocket {{ listen: "127.0.0.1:-1", {there} }}\n{CONFINED}'
    probe = _over_websocket if mapped == "clients" else _over_tcp
    theirs = look(peer_binary(), tmp_path / "peer", made, extra, probe)
    assert look(ours_binary(), tmp_path / "ours", made, extra, probe) == theirs


# --- mistakes -------------------------------------------------------------------------------------

MISTAKES = [
    "cert_file: {cert}",
    "key_file: {key}",
    "cert_file: '/no.pem', key_file: '/no.pem'",
    "cert_file: {cert}, key_file: '/no.pem'",
    "cert_file: {cert}, key_file: {other_key}",
    "cert_file: {cert}, key_file: {cert}",
    "{pair}, certs: [ {{cert_file: {cert}, key_file: {key}}} ]",
    "certs: [ {{cert_file: {cert}}} ]",
    "{pair}, ca_file: {key}",
    "{pair}, ca_file: '/no.pem'",
    "{pair}, verify_cert_and_check_known_urls: true",
    "{pair}, cipher_suites: [X]",
    "{pair}, cipher_suites: []",
    "{pair}, cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]",
    "{pair}, curve_preferences: [x]",
    "{pair}, curve_preferences: []",
    "{pair}, min_version: '1.1'",
    "{pair}, min_version: '1.4'",
    "{pair}, min_version: 1.2",
    "{pair}, timeout: blah",
    "{pair}, timeout: true",
    "{pair}, connection_rate_limit: x",
    "{pair}, pinned_certs: [zz]",
    "{pair}, pinned_certs: zz",
    "{pair}, handshake_first: blah",
    "{pair}, verify: 1",
    "{pair}, verify_and_map: 1",
    "{pair}, insecure: 1",
    "cert_file: 1",
]
RIGHT = [
    "",
    "{pair}",
    "certs: []",
    "cert_file: '', key_file: ''",
    "certs: [ {{cert_file: {cert}, key_file: {key}}} ]",
    "{pair}, timeout: -1, connection_rate_limit: -5, insecure: true, pinned_certs: []",
    "{pair}, cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA], allow_insecure_cipher_suites: true",
    "{pair}, cipher_suites: [TLS_AES_128_GCM_SHA256], min_version: '1.3'",
    "{pair}, handshake_first: auto, curve_preferences: [CurveP521], verify: false",
    "{pair}, first: '1s', ocsp_peer: false",
    "{pair}, immediate: on",
]


def told(error: str) -> str:
    """The text behind the program's name and the place."""
    line = error.strip().splitlines()[-1] if error.strip() else ""
    return line.split(": ", 2)[-1] if ".conf:" in line else line.split(": ", 1)[-1]


@pytest.mark.parametrize("members", [*MISTAKES, *RIGHT])
def test_mistakes_are_told_in_the_same_words(
    members: str, made: Certificates, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what is right is right for both."""
    server = made.server
    pair = f'cert_file: "{server.cert}", key_file: "{server.key}"'
    filled = members.format(
        pair=pair,
        cert=f'"{server.cert}"',
        key=f'"{server.key}"',
        other_key=f'"{made.client.key}"',
    )
    file = tmp_path / "a.conf"
    file.write_text(f"tls {{ {filled} }}\n")
    peer = subprocess.run(
        [peer_binary(), "-t", "-c", str(file)],
        capture_output=True, text=True, timeout=20, check=False,
    )  # fmt: skip
    status = main(["-t", "-c", str(file)])
    assert (status, told(capsys.readouterr().err)) == (peer.returncode, told(peer.stderr))


def https(side: Side) -> Seen:
    """Monitoring with the certificates of clients' TLS, and without theirs."""
    port = int(side.server.config_file.read_text().rpartition("localhost:")[2].split("'")[0])
    url = f"https://localhost:{port}/varz"
    with urllib.request.urlopen(url, timeout=9, context=side.made.context()) as answer:
        varz = json.load(answer)
    with socket.create_connection(("localhost", port), 5) as plain:
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        said = rest(plain)
    return [varz["https_port"] == port, varz["http_port"], varz["tls_required"], said]


def test_monitoring_by_https_is_the_same(made: Certificates, tmp_path: Path) -> None:
    """And who asks in clear is told so."""
    seen = []
    for binary, name in ((peer_binary(), "peer"), (ours_binary(), "ours")):
        extra = f"https: 'localhost:{free_port()}'\ntls {{ {made.block}, verify: true }}"
        server = ServerProcess(binary, directory=tmp_path / name, extra=extra, is_jetstream=False)
        server.http_port = 0
        with server:
            server.launch()
            server.wait_for_log("Server is ready")
            seen.append(https(Side(server, made)))
    assert seen[0] == seen[1]
