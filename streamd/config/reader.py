"""How a parsed configuration becomes `Options`.

Every key of nats-server is known here. One that this server does not serve yet is accepted with a
warning that names it; a key nobody knows is an error with its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any

from streamd.config.cluster import ClusterOptions, ClusterTls, RouteUrl, parse_route
from streamd.config.durations import SECOND_NS, format_duration, parse_duration
from streamd.config.grammar import Value, digest, parse_file
from streamd.config.options import Options, Permissions, ResponsePermission, User
from streamd.errors import ConfigError

Setter = Callable[[Value], None]


def load(path: str) -> Options:
    """Read the configuration file at `path`. Raises ConfigError; does not `finish`."""
    root = parse_file(path)
    options = from_tree(root)
    options.config_file = path
    options.config_digest = digest(root)
    return options


def from_tree(root: Value) -> Options:
    """Interpret a parsed configuration."""
    options = Options()
    _Reader(options).top(root)
    return options


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_UNSERVED_TOP = _words(
    """
    https https_port syslog remote_syslog prof_port prof_block_rate tls
    allow_non_tls proxy_protocol proxies system_account system no_system_account mappings maps
    disable_sublist_cache operator operators resolver resolver_tls resolver_preload
    resolver_pinned_accounts trusted_keys trusted default_sentinel ocsp ocsp_cache
    gateway leafnodes leaf websocket ws mqtt default_js_domain connect_error_reports
    reconnect_error_reports no_fast_producer_stall feature_flags write_timeout
    """
)

_UNSERVED_JETSTREAM = _words(
    """
    key encryption_key ek prev_key prev_encryption_key prev_ek cipher extension_hint
    max_outstanding_catchup max_buffered_size max_buffered_msgs request_queue_limit
    info_queue_limit meta_compact meta_compact_size meta_compact_sync max_concurrent_io tpm
    compress_ok
    """
)

_UNSERVED_CLUSTER = _words(
    """
    connect_backoff permissions pool_size accounts compression ping_interval ping_max
    write_deadline write_timeout
    """
)
_UNSERVED_TLS = _words(
    """
    verify_and_map verify_cert_and_check_known_urls cipher_suites allow_insecure_cipher_suites
    curve_preferences timeout connection_rate_limit pinned_certs min_version handshake_first
    handshake_first_fallback certs certificates cert_store cert_match cert_match_by ocsp_peer
    """
)
_UNSERVED_AUTHORIZATION = _words(
    """
    auth_callout proxy_required nkeys
    """
)
_ACCOUNT_KEYS = _words(
    """
    nkey users imports exports jetstream default_permissions mappings maps limits msg_trace
    trace_dest cluster_traffic
    """
)


class _Reader:
    """Carries values of the tree into `Options`, one method per block."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._listen_line: Value | None = None

    def top(self, root: Value) -> None:
        o = self._options
        self._block(
            root,
            {
                "listen": self._listen,
                "host|net": self._text("host"),
                "port": self._integer("port"),
                "client_advertise": self._text("client_advertise"),
                "server_name": self._server_name,
                "server_tags": self._server_tags,
                "server_metadata": self._server_metadata,
                "http": self._http,
                "http_port|monitor_port": self._integer("http_port"),
                "http_base_path": self._text("http_base_path"),
                "debug": self._flag("is_debug"),
                "trace": self._flag("is_trace"),
                "trace_verbose": self._trace_verbose,
                "trace_headers": self._trace_headers,
                "logtime": self._flag("has_logtime"),
                "logtime_utc": self._flag("is_logtime_utc"),
                "logfile|log_file": self._text("log_file"),
                "logfile_size_limit|log_size_limit": self._integer("log_size_limit"),
                "logfile_max_num|log_max_num": self._integer("log_files_max"),
                "max_traced_msg_len": self._integer("max_traced_msg_len"),
                "pidfile|pid_file": self._text("pid_file"),
                "ports_file_dir": self._text("ports_file_dir"),
                "max_control_line": self._positive("max_control_line"),
                "max_payload": self._positive("max_payload"),
                "max_pending": self._positive("max_pending"),
                "max_connections|max_conn": self._integer("max_connections"),
                "max_subscriptions|max_subs": self._integer("max_subscriptions"),
                "max_sub_tokens|max_subscription_tokens": self._integer("max_sub_tokens"),
                "max_closed_clients": self._positive("max_closed_clients"),
                "ping_interval": self._duration("ping_interval_ns"),
                "ping_max": self._integer("ping_max"),
                "write_deadline": self._duration("write_deadline_ns"),
                "lame_duck_duration": self._lame_duck_duration,
                "lame_duck_grace_period": self._lame_duck_grace,
                "no_header_support": self._no_header_support,
                "authorization": self._authorization,
                "accounts": self._accounts,
                "no_auth_user": self._text("no_auth_user"),
                "jetstream": self._jetstream,
                "cluster": self._cluster,
                "store_dir|storedir": lambda v: self._set_on(o.jetstream, "store_dir", _text(v)),
            },
            _UNSERVED_TOP,
        )
        names = [user.name for user in o.users]
        for name in names:
            if names.count(name) > 1:
                raise root.error(f'Duplicate user "{name}" detected')

    # --- helpers ------------------------------------------------------------------------------

    def _block(
        self, block: Value, setters: dict[str, Setter], unserved: Collection[str], path: str = ""
    ) -> None:
        """Hand each member of `block` to its setter; the key may have aliases (`a|b`)."""
        by_name = {name: set_ for names, set_ in setters.items() for name in names.split("|")}
        for key, value in _members(block, path or "configuration").items():
            name = key.lower()
            if name in by_name:
                by_name[name](value)
            elif name in unserved:
                self._warn(value, f'"{path}{key}" is not served by this version and is ignored')
            elif not value.is_referred_to:
                raise value.error(f'unknown field "{key}"')

    def _warn(self, value: Value, text: str) -> None:
        self._options.warnings.append(f"{value.file}:{value.line}:{value.col}: {text}")

    def _set_on(self, target: object, attribute: str, value: Any) -> None:
        setattr(target, attribute, value)

    def _text(self, attribute: str) -> Setter:
        return lambda v: setattr(self._options, attribute, _text(v))

    def _flag(self, attribute: str) -> Setter:
        return lambda v: setattr(self._options, attribute, _flag(v))

    def _integer(self, attribute: str) -> Setter:
        return lambda v: setattr(self._options, attribute, _integer(v))

    def _positive(self, attribute: str) -> Setter:
        """A bound that must exist: nobody gets an unlimited one."""

        def set_(value: Value) -> None:
            number = _integer(value)
            if not 0 < number <= 0x7FFFFFFF:
                raise value.error(f"{number} is out of range: 1 to 2147483647")
            setattr(self._options, attribute, number)

        return set_

    def _duration(self, attribute: str) -> Setter:
        def set_(value: Value) -> None:
            setattr(self._options, attribute, self._duration_of(value, attribute[:-3]))

        return set_

    def _duration_of(self, value: Value, name: str) -> int:
        if isinstance(value.raw, int) and not isinstance(value.raw, bool):
            if value.raw >= 1_000_000:  # a bare 2m is two million, not two minutes
                raise value.error(
                    f'error parsing {name}: {value.raw} seconds: quote durations, as in "2m"'
                )
            self._warn(
                value, f'invalid use of field "{name}": {name} should be converted to a duration'
            )
            return value.raw * SECOND_NS
        try:
            return parse_duration(_text(value))
        except ValueError as err:
            raise value.error(f"error parsing {name}: {err}") from err

    # --- top-level values with rules of their own ------------------------------------------------

    def _listen(self, value: Value) -> None:
        host, port = _host_port(value)
        if host is not None:
            self._options.host = host
        self._options.port = port

    def _http(self, value: Value) -> None:
        host, port = _host_port(value)
        if host is not None:
            self._options.http_host = host
        self._options.http_port = port

    def _server_name(self, value: Value) -> None:
        name = _text(value)
        if re.search(r"\s", name):
            raise value.error("server name cannot contain spaces")
        self._options.server_name = name

    def _server_tags(self, value: Value) -> None:
        tags = _list(value) if isinstance(value.raw, list) else [value]
        self._options.server_tags = [_text(tag) for tag in tags]

    def _server_metadata(self, value: Value) -> None:
        members = _members(value, "server_metadata")
        self._options.server_metadata = {key: _text(child) for key, child in members.items()}

    def _trace_verbose(self, value: Value) -> None:
        self._options.is_trace_verbose = _flag(value)
        self._options.is_trace = self._options.is_trace or self._options.is_trace_verbose

    def _trace_headers(self, value: Value) -> None:
        self._options.is_trace_headers = _flag(value)
        self._options.is_trace = self._options.is_trace or self._options.is_trace_headers

    def _lame_duck_duration(self, value: Value) -> None:
        if not isinstance(value.raw, str):
            raise _mismatch(value, "string")
        duration = self._duration_of(value, "lame_duck_duration")
        if duration < 30 * SECOND_NS:
            raise value.error(
                f"invalid lame_duck_duration of {format_duration(duration)}, minimum is 30 seconds"
            )
        self._options.lame_duck_duration_ns = duration

    def _lame_duck_grace(self, value: Value) -> None:
        if not isinstance(value.raw, str):
            raise _mismatch(value, "string")
        duration = self._duration_of(value, "lame_duck_grace_period")
        if duration < 0:
            raise value.error("invalid lame_duck_grace_period, needs to be positive")
        self._options.lame_duck_grace_ns = duration

    def _no_header_support(self, value: Value) -> None:
        self._options.has_header_support = not _flag(value)

    # --- who may connect ------------------------------------------------------------------------

    def _authorization(self, block: Value) -> None:
        o = self._options
        users: list[User] = []
        defaults: list[Permissions] = []

        def add_timeout(value: Value) -> None:
            if isinstance(value.raw, str):
                o.auth_timeout_s = self._duration_of(value, "timeout") / SECOND_NS
            else:
                o.auth_timeout_s = float(_number(value))

        self._block(
            block,
            {
                "user|username": self._text("username"),
                "pass|password": self._text("password"),
                "token": self._text("token"),
                "timeout": add_timeout,
                "users": lambda v: users.extend(self._users(v, "$G")),
                "default_permissions|default_permission|permissions": lambda v: defaults.append(
                    self._permissions(v)
                ),
            },
            _UNSERVED_AUTHORIZATION,
            "authorization.",
        )
        if users and (o.username or o.password):
            raise block.error("Can not have a single user/pass and a users array")
        if users and o.token:
            raise block.error("Can not have a token and a users array")
        if o.username and o.token:
            raise block.error("Cannot have a user/pass and token")
        if defaults:
            o.default_permissions = defaults[-1]
            for user in users:
                user.permissions = user.permissions or defaults[-1]
        o.users.extend(users)

    def _accounts(self, block: Value) -> None:
        """Users of all accounts may log in; accounts are not separated from each other yet."""
        self._warn(block, '"accounts" is not served by this version: all users share one account')
        for name, account in _members(block, "accounts").items():
            users: list[User] = []
            if isinstance(account.raw, dict):
                self._block(
                    account,
                    {"users": lambda v, n=name, u=users: u.extend(self._users(v, n))},  # type: ignore[misc]
                    _ACCOUNT_KEYS,
                    f"accounts.{name}.",
                )
            elif not account.is_referred_to:
                raise account.error(f"Expected map entries for accounts, got {_kind(account)}")
            self._options.users.extend(users)

    def _users(self, value: Value, account: str) -> list[User]:
        return [user for entry in _list(value) if (user := self._user(entry, account))]

    def _user(self, entry: Value, account: str) -> User | None:
        user = User("", account=account)
        nkeys: list[str] = []

        def set_permissions(value: Value) -> None:
            user.permissions = self._permissions(value)

        self._block(
            entry,
            {
                "user|username": lambda v: self._set_on(user, "name", _text(v)),
                "pass|password": lambda v: self._set_on(user, "password", _text(v)),
                "permission|permissions|authorization": set_permissions,
                "nkey": lambda v: nkeys.append(_text(v)),
            },
            ["allowed_connection_types", "connection_types", "clients", "proxy_required"],
            "users.",
        )
        if nkeys:
            self._warn(entry, '"nkey" is not served by this version: the user cannot log in')
            return None
        if not user.name:
            raise entry.error("User entry requires a user")
        return user

    def _permissions(self, block: Value) -> Permissions:
        permissions = Permissions()

        def publish(value: Value) -> None:
            permissions.publish_allow, permissions.publish_deny = _allow_deny(value, False)

        def subscribe(value: Value) -> None:
            permissions.subscribe_allow, permissions.subscribe_deny = _allow_deny(value, True)

        def responses(value: Value) -> None:
            permissions.allow_responses = self._responses(value)

        self._block(
            block,
            {
                "pub|publish|import": publish,
                "sub|subscribe|export": subscribe,
                "allow_responses|publish_allow_responses": responses,
            },
            [],
            "permissions.",
        )
        if permissions.allow_responses and permissions.publish_allow is None:
            permissions.publish_allow = []  # responses only
        return permissions

    def _responses(self, value: Value) -> ResponsePermission | None:
        if isinstance(value.raw, bool):
            return ResponsePermission() if value.raw else None
        response = ResponsePermission()
        self._block(
            value,
            {
                "max|max_msgs|max_messages|max_responses": lambda v: self._set_on(
                    response, "max_msgs", _integer(v) or 1
                ),
                "expires|expiration|ttl": lambda v: self._set_on(
                    response, "ttl_ns", self._duration_of(v, "expires") or 120 * SECOND_NS
                ),
            },
            [],
            "allow_responses.",
        )
        return response

    # --- peers ----------------------------------------------------------------------------------

    def _cluster(self, block: Value) -> None:
        settings: dict[str, Any] = {}

        def put(attribute: str, convert: Callable[[Value], Any]) -> Setter:
            return lambda v: settings.__setitem__(attribute, convert(v))

        def listen(value: Value) -> None:
            host, port = _host_port(value)
            if host:
                settings["host"] = host
            settings["port"] = port

        def name(value: Value) -> str:
            text = _text(value)
            if re.search(r"\s", text):
                raise value.error("cluster name cannot contain spaces")
            return text

        def tls(value: Value) -> None:
            found: dict[str, Any] = {}

            def keep(key: str, convert: Callable[[Value], Any]) -> Setter:
                return lambda v: found.__setitem__(key, convert(v))

            self._block(
                value,
                {
                    "cert_file": keep("cert_file", _text),
                    "key_file": keep("key_file", _text),
                    "ca_file": keep("ca_file", _text),
                    "insecure": keep("is_insecure", _flag),
                    "verify": lambda v: None,  # peers are always verified
                },
                _UNSERVED_TLS,
                "cluster.tls.",
            )
            if not found.get("cert_file") or not found.get("key_file"):
                raise value.error("missing 'cert_file' or 'key_file' in TLS configuration")
            settings["tls"] = ClusterTls(**found)

        self._block(
            block,
            {
                "name": put("name", name),
                "listen": listen,
                "host|net": put("host", _text),
                "port": put("port", _integer),
                "authorization": lambda v: settings.update(self._cluster_authorization(v)),
                "routes": put("routes", _routes),
                "advertise|cluster_advertise": put("advertise", _text),
                "no_advertise": put("has_advertise", lambda v: not _flag(v)),
                "connect_retries": put("connect_retries", _integer),
                "tls": tls,
            },
            _UNSERVED_CLUSTER,
            "cluster.",
        )
        self._options.cluster = ClusterOptions(**settings)

    def _cluster_authorization(self, block: Value) -> dict[str, Any]:
        settings: dict[str, Any] = {}

        def put(attribute: str, convert: Callable[[Value], Any]) -> Setter:
            return lambda v: settings.__setitem__(attribute, convert(v))

        def refuse(text: str) -> Setter:
            def set_(value: Value) -> None:
                raise block.error(f"Cluster authorization does not {text}")

            return set_

        def seconds(value: Value) -> float:
            if isinstance(value.raw, str):
                return self._duration_of(value, "timeout") / SECOND_NS
            return float(_number(value))

        self._block(
            block,
            {
                "user|username": put("username", _text),
                "pass|password": put("password", _text),
                "timeout": put("auth_timeout_s", seconds),
                "users": refuse("allow multiple users"),
                "token": refuse("support tokens"),
            },
            [*_UNSERVED_AUTHORIZATION, "default_permissions", "permissions"],
            "cluster.authorization.",
        )
        return settings

    # --- JetStream ------------------------------------------------------------------------------

    def _jetstream(self, value: Value) -> None:
        js = self._options.jetstream
        if isinstance(value.raw, bool):
            js.is_enabled = value.raw
            return
        if isinstance(value.raw, str):
            if value.raw.lower() not in ("enabled", "enable", "disabled", "disable"):
                raise value.error(
                    f"Expected 'enabled' or 'disabled' for string value, got '{value.raw}'"
                )
            js.is_enabled = value.raw.lower().startswith("enable")
            return
        if not isinstance(value.raw, dict):
            raise value.error(
                f"Expected map, bool or string to define JetStream, got {_kind(value)}"
            )
        js.is_enabled = True

        def put(attribute: str, convert: Callable[[Value], Any]) -> Setter:
            return lambda v: setattr(js, attribute, convert(v))

        self._block(
            value,
            {
                "enabled|enable": put("is_enabled", _flag),
                "store_dir|storedir|store": put("store_dir", _text),
                "domain": put("domain", _text),
                "unique_tag": put("unique_tag", lambda v: _text(v).strip().lower()),
                "max_memory_store|max_mem_store|max_mem|max_memory": put("max_memory", _size),
                "max_file_store|max_file": put("max_storage", _size),
                "strict": put("is_strict", _flag),
                "sync_interval|sync": put("sync_interval_ns", self._sync_interval),
                "limits": self._jetstream_limits,
            },
            _UNSERVED_JETSTREAM,
            "jetstream.",
        )

    def _sync_interval(self, value: Value) -> int:
        if isinstance(value.raw, str) and value.raw.lower() == "always":
            return 0
        interval = self._duration_of(value, "sync_interval")
        if interval <= 0:
            raise value.error(f"sync_interval must be positive or always, got {_text_of(value)}")
        return interval

    def _jetstream_limits(self, block: Value) -> None:
        js = self._options.jetstream

        def put(attribute: str, convert: Callable[[Value], Any]) -> Setter:
            return lambda v: setattr(js, attribute, convert(v))

        def batch(inner: Value) -> None:
            self._block(
                inner,
                {
                    "max_inflight_per_stream": put("max_batches_per_stream", _integer),
                    "max_inflight_total": put("max_batches_total", _integer),
                    "max_msgs": put("max_batch_msgs", _integer),
                    "timeout": put("batch_timeout_ns", lambda v: self._duration_of(v, "timeout")),
                },
                [],
                "jetstream.limits.batch.",
            )

        self._block(
            block,
            {
                "max_ack_pending": put("max_ack_pending", _integer),
                "max_ha_assets": put("max_ha_assets", _integer),
                "max_request_batch": put("max_request_batch", _integer),
                "duplicate_window": put(
                    "duplicate_window_ns", lambda v: self._duration_of(v, "duplicate_window")
                ),
                "batch": batch,
            },
            [],
            "jetstream.limits.",
        )


# --- one value ----------------------------------------------------------------------------------


def _kind(value: Value) -> str:
    """The Go name of the value's type: what nats-server's own messages say."""
    raw = value.raw
    if isinstance(raw, bool):
        return "bool"
    if isinstance(raw, dict):
        return "map[string]interface {}"
    return {str: "string", int: "int64", float: "float64", list: "[]interface {}"}[type(raw)]


def _mismatch(value: Value, wanted: str) -> ConfigError:
    return value.error(f"interface conversion: interface {{}} is {_kind(value)}, not {wanted}")


def _text(value: Value) -> str:
    if isinstance(value.raw, str):
        return value.raw
    if isinstance(value.raw, int | float) and not isinstance(value.raw, bool):
        return str(value.raw)  # a user, password or name may look like a number
    raise _mismatch(value, "string")


def _text_of(value: Value) -> str:
    return str(value.plain())


def _flag(value: Value) -> bool:
    if not isinstance(value.raw, bool):
        raise _mismatch(value, "bool")
    return value.raw


def _integer(value: Value) -> int:
    if isinstance(value.raw, bool) or not isinstance(value.raw, int):
        raise _mismatch(value, "int64")
    if not -(2**63) <= value.raw < 2**63:
        raise value.error(f"{value.raw} does not fit in 64 bits")
    return value.raw


def _number(value: Value) -> float:
    if isinstance(value.raw, bool) or not isinstance(value.raw, int | float):
        raise _mismatch(value, "float64")
    return value.raw


_STORAGE = re.compile(r"(-?\d+) *([kmgt]?)(?:i?b)?\Z", re.IGNORECASE)


def _size(value: Value) -> int:
    """An amount of storage; as a quoted string its units are powers of 1024."""
    if not isinstance(value.raw, str):
        return _integer(value)
    match = _STORAGE.match(value.raw)
    if match is None:
        raise value.error(f'"{value.raw}" is not a size')
    power = " kmgt".index(match[2].lower() or " ")
    return int(match[1]) * (1 << 10 * power)


def _list(value: Value) -> list[Value]:
    if not isinstance(value.raw, list):
        raise value.error(f"Expected an array, got {_kind(value)}")
    return value.raw


def _routes(value: Value) -> tuple[RouteUrl, ...]:
    if not isinstance(value.raw, list):
        raise _mismatch(value, "[]interface {}")
    routes = []
    for entry in value.raw:
        try:
            routes.append(parse_route(_text(entry)))
        except ValueError as err:
            raise entry.error(str(err)) from err
    return tuple(routes)


def _members(value: Value, what: str) -> dict[str, Value]:
    if not isinstance(value.raw, dict):
        raise value.error(f"Expected map entries for {what.rstrip('.')}, got {_kind(value)}")
    return value.raw


def _host_port(value: Value) -> tuple[str | None, int]:
    """`host:port`, `:port` or a bare port number."""
    if isinstance(value.raw, int) and not isinstance(value.raw, bool):
        return None, value.raw
    text = _text(value)
    host, colon, port = text.rpartition(":")
    if not colon:
        raise value.error(f'could not parse address string "{text}"')
    if not re.fullmatch(r"-?\d+", port):
        raise value.error(f'could not parse port "{port}"')
    return host.strip("[]"), int(port)


def _subjects(value: Value, with_queue: bool) -> list[bytes]:
    entries = value.raw if isinstance(value.raw, list) else [value]
    found = []
    for entry in entries:
        text = _text(entry)
        words = text.split()
        if not words or len(words) > (2 if with_queue else 1) or not _is_subject(words[0]):
            raise entry.error(f'subject "{text}" is not a valid subject')
        found.append(" ".join(words).encode())
    return found


def _is_subject(subject: str) -> bool:
    tokens = subject.split(".")
    return all(tokens) and ">" not in tokens[:-1]


def _allow_deny(value: Value, with_queue: bool) -> tuple[list[bytes] | None, list[bytes]]:
    """A subject, a list of them, or `{allow: ..., deny: ...}`."""
    if not isinstance(value.raw, dict):
        return _subjects(value, with_queue), []
    allow: list[bytes] | None = None
    deny: list[bytes] = []
    for key, child in value.raw.items():
        if key.lower() == "allow":
            allow = _subjects(child, with_queue)
        elif key.lower() == "deny":
            deny = _subjects(child, with_queue)
        elif not child.is_referred_to:
            raise child.error(f'unknown field "{key}"')
    return allow, deny
