"""Options of a server, defaults applied.

`reader.py` fills them from a configuration file, `flags.py` lays the command line over that, and
`finish` checks what only makes sense as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from streamd.config.account_options import AccountOptions, default_accounts
from streamd.config.callout_options import CalloutOptions
from streamd.config.cluster_options import ClusterOptions, client_address
from streamd.config.http_options import HttpLogins
from streamd.config.leaf_options import LeafOptions
from streamd.config.operator_options import OperatorOptions
from streamd.config.tls_options import TlsOptions
from streamd.config.user_options import Permissions as Permissions
from streamd.config.user_options import ResponsePermission as ResponsePermission
from streamd.config.user_options import User as User
from streamd.config.websocket_options import WebSocketOptions
from streamd.durations import SECOND_NS, format_duration
from streamd.errors import ConfigError
from streamd.limits import (
    BATCH_MSGS_CONFIGURED_MAX,
    CLUSTER_PAYLOAD_BYTES_MAX,
    CONTROL_LINE_BYTES_MAX,
)
from streamd.types import ACCOUNT, SYSTEM_ACCOUNT, AssetLimits, BatchLimits

DEFAULT_PORT = 4222
DEFAULT_HOST = "0.0.0.0"


@dataclass(slots=True)
class JetStreamOptions:
    is_enabled: bool = False
    store_dir: str = ""  # "": a directory below the system's temporary one
    domain: str = ""
    max_memory: int = -1  # bytes; -1: three quarters of the machine's memory
    max_storage: int = -1  # bytes; -1: what is stored, and three quarters of the free disk
    sync_interval_ns: int = 0  # 0: fsync before every ack
    is_strict: bool = True
    max_ack_pending: int = -1
    unique_tag: str = ""  # prefix of tags, lower case
    max_ha_assets: int = 0
    max_request_batch: int = 0
    duplicate_window_ns: int = 0
    max_batches_per_stream: int = 0  # 0: the default of limits.py
    max_batches_total: int = 0
    max_batch_msgs: int = 0
    batch_timeout_ns: int = 0
    cipher: str = "chacha"  # or "aes"; of what is written from now on
    key: str = field(default="", repr=False)  # "": files are not encrypted
    previous_key: str = field(default="", repr=False)

    @property
    def asset_limits(self) -> AssetLimits:
        """Limits of each stream and consumer."""
        return AssetLimits(
            ack_pending_max=max(0, self.max_ack_pending),
            request_batch_max=max(0, self.max_request_batch),
            duplicate_window_ns_max=max(0, self.duplicate_window_ns),
        )

    @property
    def batch_limits(self) -> BatchLimits:
        """Limits of atomic batches; a value of 0 or less is not set."""
        return BatchLimits(
            per_stream_max=max(0, self.max_batches_per_stream),
            per_server_max=max(0, self.max_batches_total),
            msgs_max=min(max(0, self.max_batch_msgs), BATCH_MSGS_CONFIGURED_MAX),
            idle_ms_max=max(0, -(-self.batch_timeout_ns // 1_000_000)),
        )

    @property
    def is_sync_always(self) -> bool:
        return self.sync_interval_ns == 0


@dataclass(slots=True)
class Options:
    """Settings of one server process, defaults applied. Times are ns, sizes are bytes."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    server_name: str = ""
    client_advertise: str = ""
    accepts_loss: bool = False  # of the command line only: for one start
    is_dry_run: bool = False  # likewise: say what accepting the loss would come to
    ignores_unserved: bool = False  # start although settings that protect are not served
    is_strict: bool = False  # what would be a warning is an error
    server_tags: list[str] = field(default_factory=list)
    server_metadata: dict[str, str] = field(default_factory=dict)

    http_host: str = ""  # "": as `host`
    http_port: int = 0  # 0: no monitoring
    http_base_path: str = ""
    http_logins: HttpLogins = field(default_factory=HttpLogins)  # of the dashboard

    is_debug: bool = False
    is_trace: bool = False
    is_trace_verbose: bool = False
    is_trace_headers: bool = False  # of payloads, only their headers
    has_logtime: bool = True
    is_logtime_utc: bool = False
    log_file: str = ""
    log_size_limit: int = 0
    log_files_max: int = 0
    max_traced_msg_len: int = 0

    pid_file: str = ""
    ports_file_dir: str = ""

    max_control_line: int = 4096
    max_payload: int = 1024 * 1024
    max_pending: int = 64 * 1024 * 1024
    max_connections: int = 64 * 1024
    max_subscriptions: int = 0  # per connection; 0: any number
    max_sub_tokens: int = 0
    max_closed_clients: int = 10_000
    ping_interval_ns: int = 120 * SECOND_NS
    ping_max: int = 2
    write_deadline_ns: int = 10 * SECOND_NS
    lame_duck_duration_ns: int = 120 * SECOND_NS
    lame_duck_grace_ns: int = 10 * SECOND_NS
    has_header_support: bool = True

    tls: TlsOptions | None = None  # of clients; None: in clear
    allows_non_tls: bool = False  # clients in clear are served beside those with TLS
    https_port: int = 0  # of monitoring with the certificates of `tls`; 0: none

    username: str = ""
    password: str = ""
    token: str = ""
    auth_timeout_s: float = 2.0
    users: list[User] = field(default_factory=list)
    default_permissions: Permissions | None = None
    accounts: dict[str, AccountOptions] = field(default_factory=default_accounts)  # by name
    configured_accounts: tuple[str, ...] = ()  # those that the file gives settings
    system_account: str = SYSTEM_ACCOUNT
    has_system_account: bool = True  # False: no events, and nobody administers by messages
    operators: OperatorOptions = field(default_factory=OperatorOptions)
    callout: CalloutOptions | None = None
    no_auth_user: str = ""
    cluster_place: tuple[str, int, int] = ("", 0, 0)  # of the cluster block: file, line, column
    allows_open_cluster: bool = False  # --insecure-cluster
    is_open_besides_system: bool = False  # users are the system's; others need say nothing
    is_mapping_elsewhere: bool = False  # of a view: certificates name users at another listener

    jetstream: JetStreamOptions = field(default_factory=JetStreamOptions)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    websocket: WebSocketOptions = field(default_factory=WebSocketOptions)
    leaf: LeafOptions = field(default_factory=LeafOptions)

    config_file: str = ""
    config_digest: str = ""
    warnings: list[str] = field(default_factory=list)
    unserved: list[str] = field(default_factory=list)  # settings that protect; each with its place

    @property
    def is_auth_required(self) -> bool:
        """True if a client must prove who it is (there may still be a `no_auth_user`)."""
        return bool(
            self.users
            or self.username
            or self.token
            or self.operators.has_trusted_keys
            or self.callout is not None
        )

    @property
    def log_settings(self) -> dict[str, Any]:
        """Arguments of the server log: path, levels and format."""
        return {
            "path": self.log_file,
            "is_debug": self.is_debug,
            "is_trace": self.is_trace,
            "has_time": self.has_logtime,
            "is_utc": self.is_logtime_utc,
            "size_limit": self.log_size_limit,
            "files_max": self.log_files_max,
        }

    @property
    def has_http(self) -> bool:
        return self.http_port != 0 or self.https_port != 0

    def for_websocket(self) -> Options:
        """Return the options as they hold for WebSocket clients: that listener's address, logins.

        A name or token of its own replaces the single one of other clients.
        """
        own = self.websocket
        login = own if own.username or own.token else self
        return replace(
            self,
            username=login.username,
            password=login.password,
            token=login.token,
            host=own.host,
            port=own.port,
            client_advertise=own.advertise,
            tls=None if own.tls is None else replace(own.tls, is_verifying=False),  # not in INFO
            is_mapping_elsewhere=self.tls is not None and self.tls.is_mapping,
            allows_non_tls=False,
            no_auth_user=own.no_auth_user or self.no_auth_user,
            auth_timeout_s=own.auth_timeout_s or self.auth_timeout_s,
            ping_interval_ns=own.ping_interval_ns or self.ping_interval_ns,
        )

    @property
    def is_clustered(self) -> bool:
        """True if JetStream is replicated: there are peers to share it with.

        A server that listens for peers and names none serves JetStream alone and routes messages.
        """
        return self.jetstream.is_enabled and self.cluster.is_enabled and bool(self.cluster.routes)


# Of these 0 means "not set".
_NEVER_ZERO = (
    *("port", "max_control_line", "max_payload", "max_pending", "max_closed_clients"),
    *("ping_interval_ns", "ping_max", "write_deadline_ns", "lame_duck_grace_ns", "auth_timeout_s"),
)


def finish(options: Options) -> Options:
    """Check and complete settings that depend on each other, once flags are applied too.

    Raises ConfigError; adds a warning for each setting that is not served as it is.
    """
    _fill_in(options)
    if options.https_port and options.http_port:
        raise ConfigError(
            f"can't specify both HTTP ({options.http_port}) and HTTPs ({options.https_port}) ports"
        )
    if options.https_port and options.tls is None:
        raise ConfigError("TLS cert and key required for HTTPS")
    if options.jetstream.max_batch_msgs > BATCH_MSGS_CONFIGURED_MAX:
        options.warnings.append(
            f"jetstream.limits.batch.max_msgs ({options.jetstream.max_batch_msgs}) is taken for"
            f" {BATCH_MSGS_CONFIGURED_MAX}, the most that one log entry is to hold"
        )
    if " " in options.server_name:
        raise ConfigError("server name cannot contain spaces")
    if " " in options.cluster.name:
        raise ConfigError("cluster name cannot contain spaces")
    if options.jetstream.is_enabled and options.cluster.is_enabled:
        if not options.server_name:
            raise ConfigError("jetstream cluster requires `server_name` to be set")
        if not options.cluster.name:
            raise ConfigError("jetstream cluster requires `cluster.name` to be set")
    if options.cluster.is_enabled and options.max_payload > CLUSTER_PAYLOAD_BYTES_MAX:
        raise ConfigError(
            f"max_payload ({options.max_payload}) cannot be higher than"
            f" {CLUSTER_PAYLOAD_BYTES_MAX} in a cluster"
        )
    if options.max_control_line > CONTROL_LINE_BYTES_MAX:
        options.warnings.append(
            f"max_control_line ({options.max_control_line}) is taken for {CONTROL_LINE_BYTES_MAX},"
            " the longest that a subject may be"
        )
        options.max_control_line = CONTROL_LINE_BYTES_MAX
    advertise = options.client_advertise
    if advertise:
        try:
            client_address(advertise, DEFAULT_PORT)
        except ValueError as err:
            raise ConfigError(f'invalid client_advertise value of "{advertise}": {err}') from None
    if options.cluster.auth_timeout_s <= 0:
        raise ConfigError("cluster authorization timeout needs to be positive")
    if options.cluster.password.startswith(("$2a$", "$2b$", "$2x$", "$2y$")):
        raise ConfigError("cluster password must be plain text: peers prove that they know it")
    if options.max_payload > options.max_pending:
        raise ConfigError(
            f"max_payload ({options.max_payload}) cannot be higher than"
            f" max_pending ({options.max_pending})"
        )
    if options.lame_duck_grace_ns >= options.lame_duck_duration_ns:
        raise ConfigError(
            f"lame duck grace period ({format_duration(options.lame_duck_grace_ns)}) should be"
            " strictly lower than lame duck duration"
            f" ({format_duration(options.lame_duck_duration_ns)})"
        )
    options.leaf.check(options.accounts, has_operators=bool(options.operators.tokens))
    options.websocket.check(
        has_users=bool(options.users), has_operators=options.operators.has_trusted_keys
    )
    options.operators.check(
        accounts=options.configured_accounts,
        system_account="" if options.system_account == SYSTEM_ACCOUNT else options.system_account,
        has_users=bool(options.users),
        has_callout=options.callout is not None,
        no_auth_user=options.no_auth_user,
    )
    _check_no_auth_users(options)
    _check_system_account(options)
    advertise = options.websocket.advertise
    if advertise:
        try:
            client_address(advertise, DEFAULT_PORT)
        except ValueError as err:
            raise ConfigError(
                f'invalid websocket advertise value of "{advertise}": {err}'
            ) from None
    return options


def _check_no_auth_users(options: Options) -> None:
    names = [options.no_auth_user]
    if options.websocket.is_enabled:
        names.append(options.websocket.no_auth_user)
    for name in filter(None, names):
        if not options.users:
            raise ConfigError(f'no_auth_user: "{name}" present, but users/nkeys are not defined')
        if name not in {user.identity for user in options.users}:
            raise ConfigError(
                f'no_auth_user: "{name}" not present as user or nkey in'
                " authorization block or account configuration"
            )


def _check_system_account(options: Options) -> None:
    operators = options.operators
    system = options.accounts.get(options.system_account)
    is_named = options.system_account != SYSTEM_ACCOUNT
    if system is None or (operators.trusted_keys and operators.resolver is None and is_named):
        raise ConfigError("error resolving system account: account missing")
    if operators.tokens and not is_named:
        options.warnings.append("Trusted Operators should utilize a System Account")
    if options.jetstream.is_enabled and system.jetstream and system.name != ACCOUNT:
        raise ConfigError("Not allowed to enable JetStream on the system account")


def _fill_in(options: Options) -> None:
    default = Options()
    if options.tls is not None:  # the handshake comes before the login
        default.auth_timeout_s = options.tls.timeout_s + 1
    for attribute in _NEVER_ZERO:
        if not getattr(options, attribute):
            setattr(options, attribute, getattr(default, attribute))
