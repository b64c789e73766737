"""Claims of signed tokens as values: operators, accounts, users, activations, authorizations.

`decode` reads any text: what it returns was signed by the key that it names as issuer, a key of a
kind that may sign such claims. Nothing is trusted by that: whether the issuer may speak for the
account or operator, and whether the claims are valid now, is judged elsewhere.

Absent fields are the zeros of their types, as to all tools of NATS: an account without `limits` may
have no connection at all, and -1 is no limit. Times are unix seconds, as tokens have them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from streamd.errors import TokenError
from streamd.tokens.fields import Fields
from streamd.tokens.jwt import VERSION, SignedText, take_apart
from streamd.tokens.nkeys import KeyKind, is_valid_public

NO_LIMIT: Final = -1
ANY: Final = "*"  # in lists of revocations and of allowed accounts

_UINT8: Final = range(256)
_UINT64: Final = range(1 << 64)
_INT: Final = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class RegisteredClaims:
    """Claims that tokens of all kinds have."""

    subject: str = ""
    issuer: str = ""
    name: str = ""
    audience: str = ""
    issued_s: int = 0
    expires_s: int = 0  # 0: never
    not_before_s: int = 0
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SubjectRules:
    """Subjects that may, and may not, be used; an empty list says nothing."""

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ResponseRule:
    max_msgs: int
    ttl_ns: int


@dataclass(frozen=True, slots=True)
class PermissionClaims:
    publish: SubjectRules = SubjectRules()
    subscribe: SubjectRules = SubjectRules()
    response: ResponseRule | None = None


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """Time of day between which a user may connect: `15:04:05`."""

    start: str
    end: str


@dataclass(frozen=True, slots=True)
class UserRights:
    """Permissions and limits of a user, or the template of them in a scope."""

    permissions: PermissionClaims = PermissionClaims()
    max_subscriptions: int = 0
    max_payload: int = 0
    sources: tuple[str, ...] = ()  # networks: `10.0.0.0/8`
    times: tuple[TimeWindow, ...] = ()
    location: str = ""  # time zone of `times`; "": the server's own
    is_bearer: bool = False
    connection_types: tuple[str, ...] = ()
    is_proxy_required: bool = False


@dataclass(frozen=True, slots=True)
class UserClaims:
    registered: RegisteredClaims
    rights: UserRights
    has_rights: bool  # any permission or limit is there: a user of a scope must have none
    issuer_account: str = ""  # "": the issuer is the account

    @property
    def account(self) -> str:
        return self.issuer_account or self.registered.issuer


@dataclass(frozen=True, slots=True)
class OperatorClaims:
    registered: RegisteredClaims
    signing_keys: tuple[str, ...] = ()
    system_account: str = ""
    account_server_url: str = ""
    assert_server_version: str = ""
    is_signing_key_required: bool = False  # the operator's own key signs nothing

    @property
    def trusted_keys(self) -> tuple[str, ...]:
        """Keys whose accounts are trusted."""
        own = () if self.is_signing_key_required else (self.registered.subject,)
        return own + self.signing_keys


@dataclass(frozen=True, slots=True)
class LatencyClaims:
    subject: str
    sampling: int  # per cent; 0: by headers of requests


@dataclass(frozen=True, slots=True)
class ExportClaims:
    subject: str
    kind: str  # "stream", "service", "" if absent
    is_token_required: bool = False
    revocations: Mapping[str, int] = field(default_factory=dict)
    response_type: str = ""
    response_threshold_ns: int = 0
    latency: LatencyClaims | None = None
    account_token_position: int = 0
    allows_trace: bool = False
    description: str = ""
    info_url: str = ""


@dataclass(frozen=True, slots=True)
class ImportClaims:
    subject: str
    account: str
    kind: str
    local_subject: str = ""
    to: str = ""  # of older tools: a stream's prefix here, or a service's subject there
    token: str = ""  # activation
    is_shared: bool = False
    allows_trace: bool = False


@dataclass(frozen=True, slots=True)
class MappingClaims:
    """Destination of a mapped subject, perhaps among others."""

    subject: str
    weight: int = 0  # 0: all of it
    cluster: str = ""

    @property
    def effective_weight(self) -> int:
        return self.weight or 100


@dataclass(frozen=True, slots=True)
class JetStreamLimitClaims:
    memory: int = 0
    storage: int = 0
    streams: int = 0
    consumers: int = 0
    max_ack_pending: int = 0
    memory_max_stream_bytes: int = 0
    storage_max_stream_bytes: int = 0
    max_bytes_required: bool = False

    @property
    def is_enabled(self) -> bool:
        return self.memory != 0 or self.storage != 0


@dataclass(frozen=True, slots=True)
class AccountLimitClaims:
    subscriptions: int = 0
    bytes: int = 0
    payload: int = 0
    imports: int = 0
    exports: int = 0
    allows_wildcard_exports: bool = False
    connections: int = 0
    leafnodes: int = 0
    disallows_bearer: bool = False
    jetstream: JetStreamLimitClaims = JetStreamLimitClaims()
    tiers: Mapping[str, JetStreamLimitClaims] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scope:
    """Signing key of an account whose users all have the rights of one template."""

    key: str
    role: str
    template: UserRights


@dataclass(frozen=True, slots=True)
class AuthorizationClaims:
    """Logins of an account that a service decides upon (auth callout)."""

    auth_users: tuple[str, ...] = ()
    allowed_accounts: tuple[str, ...] = ()
    xkey: str = ""


@dataclass(frozen=True, slots=True)
class TraceClaims:
    destination: str
    sampling: int


@dataclass(frozen=True, slots=True)
class AccountClaims:
    registered: RegisteredClaims
    imports: tuple[ImportClaims | None, ...] = ()
    exports: tuple[ExportClaims | None, ...] = ()
    limits: AccountLimitClaims = AccountLimitClaims()
    signing_keys: Mapping[str, Scope | None] = field(default_factory=dict)
    revocations: Mapping[str, int] = field(default_factory=dict)
    default_permissions: PermissionClaims = PermissionClaims()
    mappings: Mapping[str, tuple[MappingClaims, ...]] = field(default_factory=dict)
    authorization: AuthorizationClaims = AuthorizationClaims()
    trace: TraceClaims | None = None
    cluster_traffic: str = ""
    description: str = ""
    info_url: str = ""


@dataclass(frozen=True, slots=True)
class ActivationClaims:
    """Permission of an account for another to import something of it."""

    registered: RegisteredClaims
    subject: str = ""  # what may be imported
    kind: str = ""
    issuer_account: str = ""


@dataclass(frozen=True, slots=True)
class AuthorizationRequestClaims:
    """Question of a server to the service that decides on a login."""

    registered: RegisteredClaims
    user_nkey: str
    content: Mapping[str, Any]  # `nats` as it is: server, client, CONNECT, TLS


@dataclass(frozen=True, slots=True)
class AuthorizationResponseClaims:
    registered: RegisteredClaims
    token: str = ""  # of the user; exactly one of these two is there
    error: str = ""
    issuer_account: str = ""


@dataclass(frozen=True, slots=True)
class GenericClaims:
    """Claims of another kind, as they are."""

    registered: RegisteredClaims
    content: Mapping[str, Any]


Claims = (
    OperatorClaims
    | AccountClaims
    | UserClaims
    | ActivationClaims
    | AuthorizationRequestClaims
    | AuthorizationResponseClaims
    | GenericClaims
)
_T = TypeVar("_T")


def decode(token: str) -> Claims:
    """Return the claims of a token whose signature and kind of issuer are right."""
    signed = take_apart(token)
    whole = Fields(signed.claims, "Claims")
    version, kind, body = _body(whole)
    if version > VERSION:
        raise TokenError("JWT was generated by a newer version ")
    known = _KINDS.get(kind)
    if known is None:
        raise TokenError(f"claims of the type {kind[:64]!r} are not supported")
    if kind not in _ANY_VERSION and version not in (1, VERSION):
        raise TokenError(f"library supports version {VERSION} or less - received {version}")
    read, signers = known
    claims = read(_registered(whole, body), body)
    issuer = claims.registered.issuer
    signed.check_signature(issuer, version=version)
    if not any(is_valid_public(signer, issuer) for signer in signers):
        names = " ".join(signer.name.lower() for signer in signers)
        raise TokenError(f"unable to validate expected prefixes - [{names}]")
    return claims


def decode_operator(token: str) -> OperatorClaims:
    return _of_type(token, OperatorClaims, "not operator claim")


def decode_account(token: str) -> AccountClaims:
    return _of_type(token, AccountClaims, "not account claim")


def decode_user(token: str) -> UserClaims:
    return _of_type(token, UserClaims, "not user claim")


def decode_activation(token: str) -> ActivationClaims:
    return _of_type(token, ActivationClaims, "not activation claim")


def decode_authorization_request(token: str) -> AuthorizationRequestClaims:
    return _of_type(token, AuthorizationRequestClaims, "not an authorization request claim")


def decode_authorization_response(token: str) -> AuthorizationResponseClaims:
    return _of_type(token, AuthorizationResponseClaims, "not an authorization request claim")


def decode_generic(token: str) -> GenericClaims:
    """Return the claims of a token of any kind, with its signature checked."""
    signed: SignedText = take_apart(token)
    whole = Fields(signed.claims, "Claims")
    body = whole.object("nats")
    registered = _registered(whole, body)
    signed.check_signature(registered.issuer, version=1 if signed.is_old else VERSION)
    content = signed.claims.get("nats")
    return GenericClaims(registered, content if isinstance(content, dict) else {})


def _of_type(token: str, wanted: type[_T], refusal: str) -> _T:
    claims = decode(token)
    if not isinstance(claims, wanted):
        raise TokenError(refusal)
    return claims


def _body(whole: Fields) -> tuple[int, str, Fields]:
    """Return version, kind and own claims of a token.

    Version 1 has the kind, tags and issuer account beside `nats`, and the kind of an activation as
    `type` in it.
    """
    body = whole.object("nats")
    kind = whole.text("type")
    if not kind:
        return body.integer("version", within=_INT, wanted="int"), body.text("type"), body
    content = dict(whole.value("nats") or {})
    content["kind"] = content.pop("type", None)
    content["issuer_account"] = whole.value("issuer_account")
    content["tags"] = whole.value("tags")
    if kind == "user" and content.pop("max", NO_LIMIT) not in (NO_LIMIT, None):
        raise TokenError("jwtV1 user: deprecated Max/Times in jwtV2")
    return 1, kind, whole.as_object(content, "nats")


def _registered(whole: Fields, body: Fields) -> RegisteredClaims:
    return RegisteredClaims(
        subject=whole.text("sub"),
        issuer=whole.text("iss"),
        name=whole.text("name"),
        audience=whole.text("aud"),
        issued_s=whole.integer("iat"),
        expires_s=whole.integer("exp"),
        not_before_s=whole.integer("nbf"),
        tags=body.texts("tags"),
    )


def _operator(registered: RegisteredClaims, body: Fields) -> OperatorClaims:
    return OperatorClaims(
        registered,
        signing_keys=body.texts("signing_keys"),
        system_account=body.text("system_account"),
        account_server_url=body.text("account_server_url"),
        assert_server_version=body.text("assert_server_version"),
        is_signing_key_required=body.flag("strict_signing_key_usage"),
    )


def _account(registered: RegisteredClaims, body: Fields) -> AccountClaims:
    authorization = body.object("authorization")
    trace = body.object("trace")
    return AccountClaims(
        registered,
        imports=tuple(_import(item) if item else None for item in body.objects("imports")),
        exports=tuple(_export(item) if item else None for item in body.objects("exports")),
        limits=_account_limits(body.object("limits")),
        signing_keys=_signing_keys(body),
        revocations=body.integers("revocations"),
        default_permissions=_permissions(body.object("default_permissions")),
        mappings=body.lists("mappings", _mapping),
        authorization=AuthorizationClaims(
            auth_users=authorization.texts("auth_users"),
            allowed_accounts=authorization.texts("allowed_accounts"),
            xkey=authorization.text("xkey"),
        ),
        trace=TraceClaims(trace.text("dest"), trace.integer("sampling", wanted="int"))
        if body.has("trace")
        else None,
        cluster_traffic=body.text("cluster_traffic"),
        description=body.text("description"),
        info_url=body.text("info_url"),
    )


def _account_limits(limits: Fields) -> AccountLimitClaims:
    return AccountLimitClaims(
        subscriptions=limits.integer("subs"),
        bytes=limits.integer("data"),
        payload=limits.integer("payload"),
        imports=limits.integer("imports"),
        exports=limits.integer("exports"),
        allows_wildcard_exports=limits.flag("wildcards"),
        connections=limits.integer("conn"),
        leafnodes=limits.integer("leaf"),
        disallows_bearer=limits.flag("disallow_bearer"),
        jetstream=_jetstream_limits(limits),
        tiers=limits.map("tiered_limits", _jetstream_limits),
    )


def _jetstream_limits(limits: Fields) -> JetStreamLimitClaims:
    return JetStreamLimitClaims(
        memory=limits.integer("mem_storage"),
        storage=limits.integer("disk_storage"),
        streams=limits.integer("streams"),
        consumers=limits.integer("consumer"),
        max_ack_pending=limits.integer("max_ack_pending"),
        memory_max_stream_bytes=limits.integer("mem_max_stream_bytes"),
        storage_max_stream_bytes=limits.integer("disk_max_stream_bytes"),
        max_bytes_required=limits.flag("max_bytes_required"),
    )


def _signing_keys(body: Fields) -> dict[str, Scope | None]:
    """Return plain signing keys, and those with a scope."""
    keys: dict[str, Scope | None] = {}
    listed = body.value("signing_keys")
    if listed is not None and not isinstance(listed, list):
        body.texts("signing_keys")  # which refuses it
    for item in listed or ():
        if isinstance(item, str):
            keys[item] = None
        elif isinstance(item, dict):
            scope = body.as_object(item, "signing_keys")
            if scope.value("kind") != "user_scope":
                raise TokenError(f"unknown signing key scope {item.get('type')!r:.64}")
            key = scope.text("key")
            template = _rights(scope.object("template"), default=NO_LIMIT)
            keys[key] = Scope(key, scope.text("role"), template)
    return keys


def _mapping(item: Fields) -> MappingClaims:
    weight = item.integer("weight", within=_UINT8, wanted="uint8")
    return MappingClaims(item.text("subject"), weight, item.text("cluster"))


def _kind(item: Fields, name: str) -> str:
    """Return "stream" or "service"; "" if the field is absent."""
    kind = item.text(name)
    if item.has(name) and kind not in ("stream", "service"):
        raise TokenError(f'unknown export type "{kind[:64]}"')
    return kind


def _import(item: Fields) -> ImportClaims:
    return ImportClaims(
        subject=item.text("subject"),
        account=item.text("account"),
        kind=_kind(item, "type"),
        local_subject=item.text("local_subject"),
        to=item.text("to"),
        token=item.text("token"),
        is_shared=item.flag("share"),
        allows_trace=item.flag("allow_trace"),
    )


def _export(item: Fields) -> ExportClaims:
    latency = item.object("service_latency")
    return ExportClaims(
        subject=item.text("subject"),
        kind=_kind(item, "type"),
        is_token_required=item.flag("token_req"),
        revocations=item.integers("revocations"),
        response_type=item.text("response_type"),
        response_threshold_ns=item.integer("response_threshold"),
        latency=LatencyClaims(latency.text("results"), _sampling(latency))
        if item.has("service_latency")
        else None,
        account_token_position=item.integer(
            "account_token_position", within=_UINT64, wanted="uint"
        ),
        allows_trace=item.flag("allow_trace"),
        description=item.text("description"),
        info_url=item.text("info_url"),
    )


def _sampling(latency: Fields) -> int:
    value = latency.value("sampling")
    if isinstance(value, str):
        if value.lower() != "headers":
            raise TokenError(f"unknown sampling {value[:64]!r}")
        return 0
    return latency.integer("sampling", wanted="int")


def _permissions(item: Fields) -> PermissionClaims:
    response = item.object("resp")
    return PermissionClaims(
        publish=_rules(item.object("pub")),
        subscribe=_rules(item.object("sub")),
        response=ResponseRule(response.integer("max", wanted="int"), response.integer("ttl"))
        if item.has("resp")
        else None,
    )


def _rules(item: Fields) -> SubjectRules:
    return SubjectRules(item.texts("allow"), item.texts("deny"))


def _rights(item: Fields, *, default: int) -> UserRights:
    return UserRights(
        permissions=_permissions(item),
        max_subscriptions=item.integer("subs", default=default),
        max_payload=item.integer("payload", default=default),
        sources=_sources(item),
        times=tuple(
            TimeWindow(window.text("start"), window.text("end"))
            for window in item.objects("times")
            if window is not None
        ),
        location=item.text("times_location"),
        is_bearer=item.flag("bearer_token"),
        connection_types=item.texts("allowed_connection_types"),
        is_proxy_required=item.flag("proxy_required"),
    )


def _sources(item: Fields) -> tuple[str, ...]:
    """Return networks: a list, or a text with commas between."""
    value = item.value("src")
    if isinstance(value, str):
        listed = (part.strip() for part in value.lower().split(","))
        return tuple(dict.fromkeys(part for part in listed if part))
    return item.texts("src")


_LISTS: Final = ("src", "times", "allowed_connection_types", "resp")


def _user(registered: RegisteredClaims, body: Fields) -> UserClaims:
    rights = _rights(body, default=0)
    rules = (body.object("pub"), body.object("sub"))
    has_rights = (
        rights != UserRights()
        or body.integer("data") != 0
        or any(body.has(name) for name in _LISTS)
        or any(rule.has(name) for rule in rules for name in ("allow", "deny"))
    )
    return UserClaims(registered, rights, has_rights, body.text("issuer_account"))


def _activation(registered: RegisteredClaims, body: Fields) -> ActivationClaims:
    return ActivationClaims(
        registered,
        subject=body.text("subject"),
        kind=_kind(body, "kind"),
        issuer_account=body.text("issuer_account"),
    )


def _request(registered: RegisteredClaims, body: Fields) -> AuthorizationRequestClaims:
    return AuthorizationRequestClaims(registered, body.text("user_nkey"), body.raw)


def _response(registered: RegisteredClaims, body: Fields) -> AuthorizationResponseClaims:
    return AuthorizationResponseClaims(
        registered,
        token=body.text("jwt"),
        error=body.text("error"),
        issuer_account=body.text("issuer_account"),
    )


# Kind of claims: how they are read, and the kinds of keys that may sign them.
_Reader = Callable[[RegisteredClaims, Fields], Claims]
_KINDS: Final[dict[str, tuple[_Reader, tuple[KeyKind, ...]]]] = {
    "operator": (_operator, (KeyKind.OPERATOR,)),
    "account": (_account, (KeyKind.ACCOUNT, KeyKind.OPERATOR)),
    "user": (_user, (KeyKind.ACCOUNT,)),
    "activation": (_activation, (KeyKind.ACCOUNT, KeyKind.OPERATOR)),
    "authorization_request": (_request, (KeyKind.SERVER,)),
    "authorization_response": (_response, (KeyKind.ACCOUNT,)),
}
_ANY_VERSION: Final = ("authorization_request", "authorization_response")
