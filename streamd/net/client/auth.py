"""Authentication of clients, and the permissions that follow: publish, subscribe, administer.

`Authenticator` judges a CONNECT; `UserRights` is what a user with permissions may do, with its
verdicts cached, since the same subjects come over and over. A connection without permissions has
no rights object and pays nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

import bcrypt

from streamd.config.options import Options, Permissions, User
from streamd.errors import TokenError
from streamd.limits import REPLY_GRANTS_MAX, RIGHTS_CACHE_MAX
from streamd.net.client.entrance import Entrance
from streamd.net.tls.certificate_users import CertificateUsers
from streamd.net.tls.facts import TlsFacts
from streamd.protocol.connect_options import ConnectOptions
from streamd.subjects import is_subset, matches
from streamd.tokens.nkeys import decode_signature, verify
from streamd.types import ACCOUNT

STANDARD: Final = "STANDARD"
WEBSOCKET: Final = "WEBSOCKET"
"""Connection types, as users' `allowed_connection_types` names them."""
_BCRYPT: Final = re.compile(r"^\$2[abxy]\$\d{2}\$")


@dataclass(slots=True)
class ClientPolicy:
    """The configuration that holds for the clients of one listener now.

    One object for the life of a server, shared by the listener's connections: a reload replaces the
    fields, so everybody who looks later sees the new ones.
    """

    options: Options
    auth: Authenticator
    connection_type: str
    tls: Entrance | None = None  # None: clients speak in clear

    @classmethod
    def of(
        cls,
        options: Options,
        connection_type: str = STANDARD,
        outside: OutsideLogins | None = None,
    ) -> ClientPolicy:
        """Return the policy of a listener; `connection_type` is what users' configuration calls
        its clients."""
        auth = Authenticator(options, connection_type, outside=outside)
        return cls(options, auth, connection_type)

    def reload(self, options: Options) -> None:
        """Use another configuration from here on."""
        self.options = options
        before = self.auth
        self.auth = Authenticator(options, self.connection_type, before, before.outside)


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """Facts of the token by which a user was let in. Limits of -1 are none."""

    token: str = ""  # as the client sent it; "": a service let it in
    user_key: str = ""
    issuer_key: str = ""
    name: str = ""
    tags: tuple[str, ...] = ()
    expires_ns: int = 0  # unix time; 0: never
    max_payload: int = -1
    max_subscriptions: int = -1
    issued_s: int = 0  # what revocations are compared with
    is_bearer: bool = False
    has_permissions: bool = False  # of its own; else those of its account hold


@dataclass(slots=True)
class Identity:
    """User behind a connection, with the account and the permissions that follow."""

    user: str = ""
    account: str = ACCOUNT
    permissions: Permissions | None = None
    administers: tuple[bytes, ...] = ()  # patterns of administrative subjects; see Administrators
    token: TokenFacts | None = None  # None: the user is configured

    def may_administer(self, subject: bytes) -> bool:
        """Return True if a request on `subject`, which is an administrator's, may be made."""
        return any(matches(pattern, subject) for pattern in self.administers)

    def without_publish(self, subject: bytes) -> Identity:
        """Return the same user, who may not publish to `subject`."""
        own = self.permissions or Permissions()
        denied = replace(own, publish_deny=[*own.publish_deny, subject])
        return replace(self, permissions=denied)


@dataclass(frozen=True, slots=True)
class Approach:
    """Facts about a connection that logins are judged by, beside what the client says."""

    tls: TlsFacts | None = None  # None: it speaks in clear
    nonce: str = ""  # of INFO, which the client signs
    ip: str = ""
    cid: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A login that is refused, with the reason for the log; the client does not hear it."""

    reason: str
    level: str = "debug"  # of the log
    account: str = ""  # that refused, and is told so; "": none did


class Consultation:
    """An undecided login: others are asked, tokens' resolvers or a service, and answer later."""

    __slots__ = ("begin",)

    def __init__(self, begin: Callable[[Callable[[Verdict], None]], None]) -> None:
        """`begin(done)` asks; `done` is called on the loop, later, once, with an identity or a
        refusal."""
        self.begin = begin


class OutsideLogins(Protocol):
    """Judge of logins of which the configuration alone does not decide: by signed tokens, or by a
    service. One for all listeners of a server."""

    @property
    def needs_nonce(self) -> bool:
        """True if clients are given a nonce to sign."""

    def judge(
        self, connect: ConnectOptions, approach: Approach, configured: Authenticator
    ) -> Verdict | Consultation | Check:
        """Judge a CONNECT; `configured` knows the users of the configuration."""


_CLEAR: Final = Approach()


class Administrators:
    """Users who may make requests that concern the whole cluster: docs/adr/0034.

    Without users everybody may, as ever. A server with one identity, a user with its password or a
    token, has that one as its administrator; so is each user of the system account. Among several
    users those may whose permission to publish names such subjects: `$JS.API.META.>` is named on
    purpose, `>` is not, and no permissions at all are least of all.
    """

    _ROOTS: Final = tuple(
        root.split(b".")
        for root in (
            b"$JS.API.META",
            b"$JS.API.SERVER",
            b"$JS.API.STREAM.PEER",
            b"$JS.API.STREAM.CANCEL_MOVE",
        )
    )
    _ALL: Final = (b">",)

    def __init__(self, options: Options) -> None:
        self._has_users = options.is_auth_required
        # With tokens or a service there are others, whom the configuration does not name.
        has_others = options.operators.has_trusted_keys or options.callout is not None
        self._is_sole = not options.users and not has_others
        self._system_account = options.system_account

    def admit(self, identity: Identity) -> Identity:
        """Note in `identity` what it administers, and return it."""
        if not self._has_users or self._is_sole or identity.account == self._system_account:
            identity.administers = self._ALL
        elif identity.permissions is not None:
            allowed = identity.permissions.publish_allow or ()
            identity.administers = tuple(filter(self._is_named, allowed))
        return identity

    def _is_named(self, pattern: bytes) -> bool:
        tokens = pattern.split(b".")
        return any(tokens[: len(root)] == root for root in self._ROOTS)


Verdict: TypeAlias = Identity | Refusal | None
"""Outcome of a login; None: it is refused without a reason to log."""


class Check:
    """An undecided CONNECT: the password has to be tried against bcrypt hashes, which takes long
    enough that it must not happen on the event loop. `run` may be called on any thread."""

    __slots__ = ("_auth", "_hash", "_identity", "_secret")

    def __init__(
        self, auth: Authenticator, identity: Identity | None, secret: str, hashed: str
    ) -> None:
        """`identity`: whose hash it is; None: nobody's, and the check comes to nothing in the time
        that it would take for somebody."""
        self._auth = auth
        self._identity = identity
        self._secret = secret
        self._hash = hashed

    @property
    def identity(self) -> Identity | None:
        """User whose hash it is; None: nobody's."""
        return self._identity

    def of(self, identity: Identity) -> Check:
        """Return the same check, which lets in as `identity`."""
        return Check(self._auth, identity, self._secret, self._hash)

    @property
    def key(self) -> tuple[str, str]:
        """(hash, secret): equal ones have equal results."""
        return self._hash, self._secret

    def run(self) -> Identity | None:
        """Return the identity that the secret proves; None if it is wrong."""
        if self._auth.knows(self._hash, self._secret):  # many come at once with one password
            return self._identity
        try:
            # bcrypt looks at 72 bytes; nats-server refuses longer ones, so none is stored.
            is_good = bcrypt.checkpw(self._secret.encode()[:72], self._hash.encode())
        except ValueError:  # a hash that only looks like one
            return None
        if not is_good or self._identity is None:
            return None
        self._auth.remember(self._hash, self._secret)
        return self._identity


def has_plain_passwords(options: Options) -> bool:
    """True if a password of the configuration, or its lack, is there for anybody to read. Users
    whom a certificate names need none."""
    if options.password and not _BCRYPT.match(options.password):
        return True
    is_mapping = options.tls is not None and options.tls.is_mapping
    return any(
        not _BCRYPT.match(user.password) and bool(user.password or not is_mapping)
        for user in options.users
        if not user.nkey
    )


class Authenticator:
    """Judges CONNECT options against the configured token, user or users.

    Users who may not connect in this way are unknown here.
    """

    def __init__(
        self,
        options: Options,
        connection_type: str = STANDARD,
        before: Authenticator | None = None,
        outside: OutsideLogins | None = None,
    ) -> None:
        """`before`: of the configuration until now; who passed its checks is not tried again.
        `outside`: who decides beyond the configuration; None: nobody."""
        self.connection_type = connection_type
        self.outside = outside
        self.is_required = options.is_auth_required
        self._administrators = Administrators(options)
        self._token = options.token
        self._users: dict[str, User] = {
            user.name: user
            for user in options.users
            if not user.nkey
            and (not user.connection_types or connection_type in user.connection_types)
        }
        self._has_nkeys = any(user.nkey for user in options.users)
        self._nkeys: dict[str, User] = {
            user.nkey: user
            for user in options.users
            if user.nkey and (not user.connection_types or connection_type in user.connection_types)
        }
        if options.username and options.username not in self._users:
            self._users[options.username] = User(
                options.username, options.password, options.default_permissions
            )
        self._decoys = _decoys(user.password for user in self._users.values())
        self._no_auth_user = options.no_auth_user
        # Certificates say who a client is; with one user and its password that is asked for.
        self._mapped: CertificateUsers | None = None
        if options.tls is not None and options.tls.is_mapping and options.users:
            self._mapped = CertificateUsers(
                user.name for user in options.users if user.name in self._users
            )
        self._wants_passwords = self._mapped is None and _is_mapping_elsewhere(options)
        self._is_open_besides_system = options.is_open_besides_system
        # Secrets that passed bcrypt, as (hash, digest): a reconnect storm costs no second check.
        self._passed: dict[str, bytes] = {} if before is None else before._passed
        self._salt: bytes = bcrypt.gensalt(4) if before is None else before._salt

    @property
    def no_auth_identity(self) -> Identity | None:
        """Identity of a connection that sends no CONNECT; None: it must log in."""
        if not self.is_required:
            return self._administrators.admit(Identity())
        if self._mapped is not None or self.outside is not None:
            return None
        if self._is_open_besides_system:
            return Identity()
        user = self._users.get(self._no_auth_user) if self._no_auth_user else None
        return self._identity(user) if user is not None else None

    @property
    def _plain_identity(self) -> Identity | None:
        """Identity of a CONNECT without credentials: that of a user with a key, too."""
        user = self._nkeys.get(self._no_auth_user)
        if user is None and self.outside is not None:
            user = self._users.get(self._no_auth_user)
            return None if user is None else self._identity(user)
        return self.no_auth_identity if user is None else self._identity(user)

    @property
    def is_mapping(self) -> bool:
        """True if users are named by their certificates, whatever CONNECT says."""
        return self._mapped is not None

    @property
    def needs_nonce(self) -> bool:
        """True if clients are given a nonce to sign."""
        return self._has_nkeys or (self.outside is not None and self.outside.needs_nonce)

    def judge(
        self, connect: ConnectOptions, approach: Approach = _CLEAR
    ) -> Verdict | Check | Consultation:
        """Return the identity, a refusal (None: without a reason to log), or what still has to be
        done: a `Check` to run, or a `Consultation` to begin."""
        if self.outside is not None:
            return self.outside.judge(connect, approach, self)
        return self.judge_configured(connect, approach)

    def judge_configured(
        self, connect: ConnectOptions, approach: Approach = _CLEAR
    ) -> Verdict | Check:
        """Judge by the configuration alone."""
        if not self.is_required:
            return self.admit(Identity())
        nkey = _text(connect, "nkey")
        if self._has_nkeys and nkey:
            return self._judge_nkey(nkey, _text(connect, "sig"), approach.nonce)
        if self._mapped is not None:
            return self._judge_certificate(self._mapped, connect, approach.tls)
        name = _text(connect, "user")
        password = _text(connect, "pass")
        token = _text(connect, "auth_token")
        if not (name or password or token):
            return self._plain_identity
        if self._users:
            user = self._users.get(name)
            if user is not None and self._wants_passwords and self._is_certified(user):
                return None
            if user is None:
                # As long as for somebody: nobody is to learn which users there are. To one name
                # always the same, or the second try would tell.
                at = int.from_bytes(self._digest(name)[:8], "big") % len(self._decoys)
                return self._compare(None, password, self._decoys[at])
            return self._compare(self._identity(user), password, user.password)
        if not self._token:
            return None  # there are only users who can't log in
        if not token and not password:
            token = name  # `nats://token@host` of some clients arrives as a user name
        return self._compare(self._administrators.admit(Identity()), token, self._token)

    def _is_certified(self, user: User) -> bool:
        """Return True if a user is there for certificates: without a password, and meant neither
        for this way to connect nor for clients without credentials."""
        is_meant = bool(user.connection_types) or user.name == self._no_auth_user
        return not (user.password or is_meant)

    def _judge_nkey(self, nkey: str, signature: str, nonce: str) -> Identity | Refusal | None:
        """Judge by a key; a name and a password beside it do not count."""
        user = self._nkeys.get(nkey)
        if user is None:
            return None
        if nkey != self._no_auth_user:  # that user has nothing to prove
            if not signature:
                return Refusal("Signature missing")
            try:
                is_good = verify(nkey, nonce.encode(), decode_signature(signature))
            except TokenError:
                return Refusal("Signature not valid base64")
            if not is_good:
                return Refusal("Signature not verified")
        return self._identity(user)

    def _judge_certificate(
        self, mapped: CertificateUsers, connect: ConnectOptions, tls: TlsFacts | None
    ) -> Identity | Check | None:
        """Judge by the certificate; the password counts too, and who has none gives none."""
        if tls is None or not tls.certificates:
            return None
        name = mapped.find(tls.certificates[0])
        if name is None:
            return None
        user = self._users[name]
        return self._compare(self._identity(user), _text(connect, "pass"), user.password)

    def admit(self, identity: Identity) -> Identity:
        """Note in `identity` what it administers, and return it."""
        return self._administrators.admit(identity)

    def remember(self, hashed: str, secret: str) -> None:
        """Note that `secret` passed the bcrypt check against `hashed`."""
        self._passed[hashed] = self._digest(secret)

    def knows(self, hashed: str, secret: str) -> bool:
        """Return True if `secret` has passed the bcrypt check against `hashed` before."""
        known = self._passed.get(hashed)
        return known is not None and hmac.compare_digest(known, self._digest(secret))

    def _digest(self, secret: str) -> bytes:
        return hashlib.sha256(self._salt + secret.encode()).digest()

    def _compare(
        self, identity: Identity | None, secret: str, wanted: str
    ) -> Identity | Check | None:
        if _BCRYPT.match(wanted):
            if self.knows(wanted, secret):
                return identity
            return Check(self, identity, secret, wanted)
        # Digests have one length: the time tells nothing of how long the password is.
        is_good = hmac.compare_digest(self._digest(wanted), self._digest(secret))
        return identity if is_good else None

    def _identity(self, user: User) -> Identity:
        # Users who had none of their own have their block's by now; those of other accounts do not.
        return self._administrators.admit(Identity(user.identity, user.account, user.permissions))


def _is_mapping_elsewhere(options: Options) -> bool:
    """Return True if another listener asks for certificates that name users. Who is there for them
    does not come in where none is asked for, by the name alone."""
    framed = options.websocket.tls
    return options.is_mapping_elsewhere or (framed is not None and framed.is_mapping)


def _decoys(passwords: Iterable[str]) -> list[str]:
    """Return for each of `passwords` one that takes as long to compare with, and that no user has:
    a plain one for a plain one, for a hash a random hash of the same cost."""
    decoys: list[str] = []
    for password in passwords:
        found = _BCRYPT.match(password)
        if found is None:
            decoys.append(secrets.token_hex(16))
        else:
            rounds = bcrypt.gensalt(4)[7:].decode()  # 22 characters of a salt, whatever the cost
            decoys.append(found.group() + rounds + secrets.token_hex(16)[:31])
    return decoys


def named_in(connect: ConnectOptions) -> str:
    """Return who a client says it is, as nats-server looks for users who need no callout."""
    for key in ("nkey", "user", "auth_token"):
        if found := _text(connect, key):
            return found
    return ""


def _text(connect: ConnectOptions, key: str) -> str:
    value = connect.get(key)
    return value if isinstance(value, str) else ""


class UserRights:
    """Permissions of one connection: those of its user, and the replies it was granted."""

    __slots__ = (
        "_deny_cache",
        "_grants",
        "_may_publish",
        "_permissions",
        "has_subscribe_deny",
        "is_granting_replies",
    )

    def __init__(self, permissions: Permissions) -> None:
        self._permissions = permissions
        self._may_publish: dict[bytes, bool] = {}
        self._deny_cache: dict[bytes, bool] = {}
        self.has_subscribe_deny = bool(permissions.subscribe_deny)
        self.is_granting_replies = permissions.allow_responses is not None
        # Reply subjects this connection was sent: how often, and until when (ns), it may use them.
        self._grants: dict[bytes, tuple[int, int]] = {}

    def may_publish(self, subject: bytes, *, now_ns: int) -> bool:
        """Return True if publishing to `subject` is allowed; a grant for it is used up."""
        verdict = self._may_publish.get(subject)
        if verdict is None:
            verdict = self._decide_publish(subject)
            if len(self._may_publish) >= RIGHTS_CACHE_MAX:
                self._may_publish.clear()
            self._may_publish[subject] = verdict
        return verdict or (self.is_granting_replies and self._use_grant(subject, now_ns))

    def _decide_publish(self, subject: bytes) -> bool:
        allow = self._permissions.publish_allow
        if allow is not None and not any(matches(pattern, subject) for pattern in allow):
            return False
        return not any(matches(pattern, subject) for pattern in self._permissions.publish_deny)

    def may_subscribe(self, pattern: bytes, queue: bytes) -> bool:
        """Return True if a subscription to `pattern`, in `queue` if not b"", is allowed."""
        allow = self._permissions.subscribe_allow
        if allow is not None:
            if queue and not _is_open_to(queue, pattern, allow):
                return False
            if not any(_covers(entry, pattern, queue) for entry in allow):
                return False
        denied = self._permissions.subscribe_deny
        return not any(_is_denied_by(entry, pattern, queue) for entry in denied)

    def is_denied_delivery(self, subject: bytes) -> bool:
        """Return True if a message on `subject` must not reach this connection, though one of its
        wider subscriptions matches."""
        verdict = self._deny_cache.get(subject)
        if verdict is None:
            verdict = any(
                matches(entry, subject)
                for entry in self._permissions.subscribe_deny
                if b" " not in entry
            )
            if len(self._deny_cache) >= RIGHTS_CACHE_MAX:
                self._deny_cache.clear()
            self._deny_cache[subject] = verdict
        return verdict

    def grant_reply(self, reply: bytes, *, now_ns: int) -> None:
        """A message with `reply` was delivered, so answering it is allowed for a while."""
        response = self._permissions.allow_responses
        assert response is not None
        grants = self._grants
        grants.pop(reply, None)  # so that it moves to the young end
        while len(grants) >= REPLY_GRANTS_MAX:
            del grants[next(iter(grants))]
        until = now_ns + response.ttl_ns if response.ttl_ns > 0 else 0
        grants[reply] = (response.max_msgs, until)

    def _use_grant(self, subject: bytes, now_ns: int) -> bool:
        grant = self._grants.get(subject)
        if grant is None:
            return False
        left, until = grant
        if until and now_ns > until:
            del self._grants[subject]
            return False
        if left == 1:
            del self._grants[subject]
        elif left > 1:
            self._grants[subject] = (left - 1, until)
        return True


def _covers(entry: bytes, pattern: bytes, queue: bytes) -> bool:
    """Return True if a permission entry, `subject` or `subject queue`, covers a subscription."""
    subject, _, group = entry.partition(b" ")
    return is_subset(pattern, subject) and _is_of(group, queue)


def _is_open_to(queue: bytes, pattern: bytes, entries: list[bytes]) -> bool:
    """Return False if entries that name queue groups leave this one out.

    As in nats-server, `foo` allows any group, but `foo` and `foo v1` of the groups v1 alone.
    """
    split = (entry.partition(b" ") for entry in entries)
    groups = [group for subject, _, group in split if group and matches(subject, pattern)]
    return not groups or any(_is_of(group, queue) for group in groups)


def _is_denied_by(entry: bytes, pattern: bytes, queue: bytes) -> bool:
    """Return True if an entry that denies stops a subscription.

    As in nats-server, a wildcard is a token like others to it: denying `a.*` denies `a.>`, though
    that is wider. A subscription that is wider in any other way is let in, and not sent what is
    denied.
    """
    subject, _, group = entry.partition(b" ")
    return matches(subject, pattern) and _is_of(group, queue)


def _is_of(group: bytes, queue: bytes) -> bool:
    """Return True for an entry for all, or for the queue group `queue`."""
    group = group.strip()
    return not group or (bool(queue) and matches(group, queue))
