"""Session of one leaf link: a state machine without I/O. Events of the parser in, actions out.

The end that listens greets with INFO and waits for CONNECT; the end that dialed waits for INFO,
sends CONNECT and waits for the INFO that says what it may do::

    listener   INFO ->             INFO(connect_info) -> LS+ ...        (OPEN)
    dialer           <- CONNECT                          LS+ ... PING   (OPEN)

    GREETING --CONNECT/INFO--> JUDGED --accept/INFO--> OPEN --> CLOSED

In JUDGED a login is checked: here by the owner of the session, which calls `accept`, or at the
other end. With TLS the handshake comes behind the first INFO. Which end is the hub is independent
of which one dialed: the one that dialed says so.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from streamd import API_LEVEL, NATS_LEVEL
from streamd.config.leaf_options import LeafRemote, LeafUrl, parse_version
from streamd.config.options import Permissions
from streamd.limits import (
    LEAF_FAULT_RETRY_S,
    LEAF_SUBS_MAX,
    LEAF_URLS_MAX,
    LEAF_VERSION_RETRY_S,
)
from streamd.net.leaf.compression import agreed_mode, is_compressed
from streamd.net.leaf.leaf_rights import LeafRights, Rule
from streamd.protocol import leaf_protocol as protocol
from streamd.protocol.leaf_protocol import Event
from streamd.subjects import is_valid

SEND: Final = 1  # (SEND, line)
JUDGE: Final = 2  # (JUDGE, connect): check the login of CONNECT, then `accept` or close
SECURE: Final = 3  # (SECURE,): shake hands for TLS, then `secured`
OPENED: Final = 4  # (OPENED,): the link is up
MSGS: Final = 5  # (MSGS, [LeafMsg, ...]): allowed messages
INTEREST: Final = 6  # (INTEREST, subject, queue, weight): weight 0 ends it
NOTE_PONG: Final = 7  # (NOTE_PONG,)
LEARN: Final = 8  # (LEARN, [address, ...]): other servers of the hub
RERIGHT: Final = 9  # (RERIGHT,): the rights are others now
FAIL: Final = 10  # (FAIL, reason, text, retry_s): end; text "": without a word
REFUSED: Final = 11  # (REFUSED, text): the other end said so, for the log
COMPRESS: Final = 13  # (COMPRESS, mode): all bytes behind those sent and received so far are S2
FAULT: Final = 12  # (FAULT, text): the other end is no leaf link's, for the log

Action = tuple[Any, ...]

_LEVEL: Final = 3
TRACING_LEVEL: Final = 3  # servers of lower ones take a traced message for any other
_WRONG_PORT: Final = "attempted to connect to wrong port"
_NOT_LEAF: Final = "attempted to connect to leaf node port"
_RETRIES: Final = (
    ("permissions violation", LEAF_FAULT_RETRY_S),
    ("loop detected", LEAF_FAULT_RETRY_S),
    ("has same cluster name", LEAF_FAULT_RETRY_S),
    ("minimum version required", LEAF_VERSION_RETRY_S),
)


class State(enum.Enum):
    GREETING = enum.auto()
    JUDGED = enum.auto()
    OPEN = enum.auto()
    CLOSED = enum.auto()


@dataclass(slots=True)
class LocalEnd:
    """This server, as it introduces itself on leaf links."""

    server_id: str
    server_name: str
    cluster: str = ""  # "": a server alone, which is a cluster by its own name
    domain: str = ""
    has_jetstream: bool = False
    max_payload: int = 1024 * 1024
    min_version: str = ""
    is_isolating: bool = False
    host: str = ""
    port: int = 0
    leaf_urls: list[str] = field(default_factory=list)

    @property
    def cluster_name(self) -> str:
        return self.cluster or self.server_name


@dataclass(slots=True)
class RemoteEnd:
    """The server at the other end, as far as it introduced itself."""

    server_id: str = ""
    name: str = ""
    cluster: str = ""
    account: str = ""  # there
    domain: str = ""
    version: str = ""
    level: int = 0  # of the protocol
    user: str = ""
    is_isolated: bool = False  # interest of other leaf nodes is not for it
    deny_send: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Credentials:
    """Signer of a remote: a token, or a key alone, and the function that signs a nonce."""

    sign: Callable[[str], str]
    jwt: str = ""
    nkey: str = ""


class LeafSession:
    """State of a leaf link, apart from its socket and its subject space."""

    def __init__(
        self,
        local: LocalEnd,
        *,
        lid: int,
        nonce: str,
        remote: LeafRemote | None = None,
        url: LeafUrl | None = None,
        credentials: Credentials | None = None,
        asks_for_tls: bool = False,
        compression: str = "off",
    ) -> None:
        """`remote` and `url`: of a link that this server dialed. `asks_for_tls`: as listener.
        `compression`: mode of this end."""
        self._local = local
        self.remote = remote
        self._url = url
        self._credentials = credentials
        self._asks_for_tls = asks_for_tls
        self._has_headers = True
        self._own_mode = compression
        self.compression = "off"  # as both ends agree
        self._is_agreeing = False  # the other end's first line in S2 is awaited
        self.nonce = nonce
        self.lid = lid
        self.state = State.GREETING
        self.end = RemoteEnd()
        self.rights = LeafRights(send=Rule(), receive=Rule())
        self.is_spoke = remote is not None and not remote.is_hub
        self.subs: dict[tuple[bytes, bytes], int] = {}

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    @property
    def host(self) -> str:
        """Name of the server that was dialed."""
        return self._url.host if self._url is not None else ""

    # --- listener ---------------------------------------------------------------------------------

    def greeting(self) -> bytes:
        """Return the INFO line of the end that listens."""
        facts = {"nonce": self.nonce, "compression": self._own_mode}
        if self._asks_for_tls:
            facts |= {"tls_required": True}  # type: ignore[dict-item]
        return self._info(facts)

    def accept(self, account: str, user: str, permissions: Permissions | None) -> list[Action]:
        """Open the link, whose login is that of `user`: bound to `account` here."""
        assert self.state is State.JUDGED, self.state
        self.end.user = user
        facts: dict[str, Any] = {"connect_info": True, "remote_account": account}
        send, receive = Rule(), Rule()
        if permissions is not None:
            receive = Rule(permissions.publish_allow, permissions.publish_deny)
            send = Rule(
                _subjects(permissions.subscribe_allow), _subjects(permissions.subscribe_deny) or ()
            )
            facts["import"] = _shown(send)
            facts["export"] = _shown(receive)
        send = Rule(send.allow, (*send.deny, *self.end.deny_send))
        self.rights = LeafRights(send=send, receive=receive, domain=self._local.domain)
        self.state = State.OPEN
        return [(SEND, self._info(facts)), (OPENED,)]

    def _info(self, facts: dict[str, Any]) -> bytes:
        local = self._local
        info: dict[str, Any] = {
            "server_id": local.server_id,
            "server_name": local.server_name,
            "version": NATS_LEVEL,
            "proto": _LEVEL,
            "host": local.host,
            "port": local.port,
            "headers": True,
            "auth_required": True,
            "max_payload": local.max_payload,
            "client_id": self.lid,
            "api_lvl": API_LEVEL,
            "info_on_connect": True,
            "leafnode_urls": local.leaf_urls,
        }
        if local.has_jetstream:
            info["jetstream"] = True
        if local.domain:
            info["domain"] = local.domain
        if local.cluster:
            info["cluster"] = local.cluster
        return b"INFO %b " % json.dumps({**info, **facts}, separators=(",", ":")).encode()

    def _on_connect(self, text: bytes) -> Iterable[Action]:
        connect = _document(text)
        if connect is None or self.remote is not None or self.state is not State.GREETING:
            return ((FAIL, "Protocol Violation", "", 0.0),)
        if connect.get("lang"):  # of clients alone
            return ((FAIL, "Incorrect Port", _NOT_LEAF, 0.0),)
        local, end = self._local, self.end
        end.name, end.server_id = _text(connect, "name"), _text(connect, "server_id")
        end.version, end.domain = _text(connect, "version"), _text(connect, "domain")
        end.level = _number(connect, "protocol")
        end.account = _text(connect, "remote_account")
        end.cluster = _text(connect, "cluster") or end.name
        if local.min_version and not _is_new_enough(end.version, local.min_version):
            text_ = f'connection rejected since minimum version required is "{local.min_version}"'
            return ((FAIL, "Minimum Version Required", text_, 0.0),)
        if local.cluster and end.cluster == local.cluster:
            return (
                (FAIL, "Cluster Names Identical", "remote leafnode has same cluster name", 0.0),
            )
        denied = connect.get("deny_pub")
        if isinstance(denied, list):
            end.deny_send = tuple(
                each.encode()
                for each in denied
                if isinstance(each, str) and is_valid(each.encode())
            )
        self.is_spoke = connect.get("is_hub") is True
        end.is_isolated = local.is_isolating or connect.get("isolate") is True
        self.state = State.JUDGED
        return ((JUDGE, connect),)

    # --- dialer -----------------------------------------------------------------------------------

    def _on_info(self, text: bytes) -> Iterable[Action]:
        info = _document(text)
        if info is None:
            return ((FAIL, "Protocol Violation", "", 0.0),)
        if self.remote is None:
            return self._on_agreement(info)
        if self._is_agreeing:
            self._is_agreeing = False
            self.nonce = _text(info, "nonce") or self.nonce
            return ((SEND, self._connect_line()),)
        if self.state is State.GREETING:
            return self._on_greeting(info)
        actions: list[Action] = []
        self._learn(info, actions)
        if self.state is State.JUDGED:
            if info.get("connect_info") is True:
                self.end.account = _text(info, "remote_account")
                self._set_rights(info)
                self.state = State.OPEN
                actions.append((OPENED,))
        elif info.get("connect_info") is True or "import" in info or "export" in info:
            self._set_rights(info)
            actions.append((RERIGHT,))
        return actions

    def _on_agreement(self, info: dict[str, Any]) -> Iterable[Action]:
        """Take the INFO of a dialer that decided on compression."""
        mode = agreed_mode(self._own_mode, _text(info, "compression"))
        if self.state is not State.GREETING or is_compressed(self.compression):
            return ()
        self.compression = mode
        if not is_compressed(mode):
            return ()
        facts = {"nonce": self.nonce, "compression": self._own_mode}
        return ((COMPRESS, mode), (SEND, self._info(facts)))

    def _on_greeting(self, info: dict[str, Any]) -> Iterable[Action]:
        remote, url = self.remote, self._url
        assert remote is not None and url is not None
        # A hub with `no_advertise` names no URLs; a listener for clients knows no compression.
        is_leaf = isinstance(info.get("leafnode_urls"), list) or bool(_text(info, "compression"))
        if not info.get("client_id") or not is_leaf:
            return ((FAULT, _WRONG_PORT), (FAIL, "Incorrect Port", "", 0.0))
        end = self.end
        end.name, end.server_id = _text(info, "server_name"), _text(info, "server_id")
        end.version, end.domain = _text(info, "version"), _text(info, "domain")
        end.cluster = _text(info, "cluster") or end.name
        end.level = _number(info, "proto")
        self.nonce = _text(info, "nonce")
        self._has_headers = info.get("headers") is True
        self.compression = agreed_mode(self._own_mode, _text(info, "compression"))
        actions: list[Action] = []
        self._learn(info, actions)
        self.state = State.JUDGED
        is_secure = info.get("tls_required") is True or remote.is_secure
        if is_secure and not url.is_websocket:
            actions.append((SECURE,))
        else:
            actions += self.secured()
        if info.get("info_on_connect") is not True:  # a server that says nothing more
            self._set_rights({})
            self.state = State.OPEN
            actions.append((OPENED,))
        return actions

    def secured(self) -> list[Action]:
        """Go on behind the TLS handshake."""
        if self.remote is None:
            return []
        if is_compressed(self.compression):
            self._is_agreeing = True
            facts = {"compression": self._own_mode}
            return [(SEND, self._info(facts)), (COMPRESS, self.compression)]
        return [(SEND, self._connect_line())]

    def _connect_line(self) -> bytes:
        local, remote, url = self._local, self.remote, self._url
        assert remote is not None and url is not None
        connect: dict[str, Any] = {"version": NATS_LEVEL}
        if self._credentials is not None:
            connect["sig"] = self._credentials.sign(self.nonce)
            if self._credentials.jwt:
                connect["jwt"] = self._credentials.jwt
            else:
                connect["nkey"] = self._credentials.nkey
        elif url.username:
            connect["user"] = url.username
            if url.password:
                connect["pass"] = url.password
            else:
                connect["auth_token"] = url.username
        connect |= {
            "server_id": local.server_id,
            "name": local.server_name,
            "cluster": local.cluster_name,
            "compress_mode": self.compression,
            "remote_account": remote.account,
            "protocol": _LEVEL,
        }
        for key, value in (
            ("headers", self._has_headers),
            ("domain", local.domain),
            ("jetstream", local.has_jetstream),
            ("is_hub", remote.is_hub),
            ("isolate", remote.is_isolated),
            ("deny_pub", [each.decode() for each in remote.deny_imports]),
        ):
            if value:
                connect[key] = value
        return b"CONNECT %b" % json.dumps(connect, separators=(",", ":")).encode()

    def _set_rights(self, info: dict[str, Any]) -> None:
        remote = self.remote
        assert remote is not None
        receive, send = _rule(info.get("import")), _rule(info.get("export"))
        self.rights = LeafRights(
            send=Rule(send.allow, (*send.deny, *remote.deny_exports)),
            receive=Rule(receive.allow, (*receive.deny, *remote.deny_imports)),
            domain=self._local.domain,
        )

    def _learn(self, info: dict[str, Any], actions: list[Action]) -> None:
        urls = info.get("leafnode_urls")
        if isinstance(urls, list):
            found = [each for each in urls if isinstance(each, str)][:LEAF_URLS_MAX]
            actions.append((LEARN, found))

    # --- events -----------------------------------------------------------------------------------

    def receive(self, event: Event) -> Iterable[Action]:
        """Take the next event and return the actions that follow."""
        kind = event[0]
        if self.state is State.CLOSED:
            return ()
        if kind == protocol.CONNECT:
            return self._on_connect(event[1])
        if kind == protocol.INFO:
            return self._on_info(event[1])
        if kind == protocol.ERROR and (self.is_open or self.remote is not None):
            return ((FAIL, event[2], event[1].decode(), 0.0),)
        if kind == protocol.PEER_ERROR:
            return self._on_error(event[1].decode(errors="replace"))
        if kind == protocol.PONG:
            return ((NOTE_PONG,),)
        if kind == protocol.PING and (self.is_open or self.remote is not None):
            return ((SEND, b"PONG"),)
        if not self.is_open:
            return ((FAIL, "Authentication Failure", "Authorization Violation", 0.0),)
        if kind == protocol.MSGS:
            permits = self.rights.receive.permits
            return ((MSGS, [msg for msg in event[1] if permits(msg[0])]),)
        if kind == protocol.SUB:
            return self._on_sub(event[1], event[2], event[3])
        return self._on_sub(event[1], event[2], 0)

    def _on_sub(self, subject: bytes, queue: bytes, weight: int) -> Iterable[Action]:
        key = (subject, queue)
        if not weight:
            return ((INTEREST, *key, 0),) if self.subs.pop(key, None) is not None else ()
        if not is_valid(subject):
            return ((SEND, protocol.error_line("Invalid Subject")),)
        if not self.rights.may_be_told(subject):
            if self.is_spoke or subject.startswith(b"$"):
                return ()
            shown = subject.decode(errors="replace")
            text = f'Permissions Violation for Subscription to "{shown}"'
            return ((FAIL, "Permissions Violation", text, 0.0),)
        if key not in self.subs and len(self.subs) >= LEAF_SUBS_MAX:
            return ((SEND, protocol.error_line("maximum subscriptions exceeded")),)
        self.subs[key] = weight
        return ((INTEREST, *key, weight),)

    def _on_error(self, text: str) -> Iterable[Action]:
        lowered = text.lower()
        retry_s = next((delay for words, delay in _RETRIES if words in lowered), 0.0)
        if self.remote is None or not retry_s:  # if it ends the link the other end does that
            return ((REFUSED, text),)
        return ((REFUSED, text), (FAIL, "Protocol Violation", "", retry_s))


def _document(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _text(document: dict[str, Any], key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else ""


def _number(document: dict[str, Any], key: str) -> int:
    value = document.get(key)
    return value if isinstance(value, int) else 0


def _is_new_enough(version: str, wanted: str) -> bool:
    found, least = parse_version(version), parse_version(wanted)
    return least is None or (found is not None and found >= least)


def _subjects(entries: list[bytes] | None) -> list[bytes] | None:
    """Return the entries that hold for all, not for one queue group."""
    return None if entries is None else [entry for entry in entries if b" " not in entry]


def _shown(rule: Rule) -> dict[str, list[str]]:
    shown: dict[str, list[str]] = {}
    if rule.allow is not None:
        shown["allow"] = [entry.decode() for entry in rule.allow]
    if rule.deny:
        shown["deny"] = [entry.decode() for entry in rule.deny]
    return shown


def _rule(given: object) -> Rule:
    """Return the rule that the other end told as JSON; what is none of it is not allowed."""
    if not isinstance(given, dict):
        return Rule()
    lists: list[list[bytes] | None] = []
    for key in ("allow", "deny"):
        value = given.get(key)
        found = None
        if isinstance(value, list):
            subjects = [each.encode() for each in value if isinstance(each, str)]
            found = [subject for subject in subjects if is_valid(subject)]
        lists.append(found)
    allow, deny = lists
    return Rule(allow, deny or ())
