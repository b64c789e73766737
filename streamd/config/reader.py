"""Reader of a parsed configuration: a tree of values in, `Options` out.

Every key of nats-server is known here. One that is not served and protects or separates is refused;
one that only adds is ignored with a warning that names it; an unknown key is an error.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from streamd.config.accounts_reader import AccountsReader
from streamd.config.cluster_options import ClusterOptions
from streamd.config.grammar import Value, digest, parse_file
from streamd.config.key_blocks import KeyBlocks, Setter, Unserved, put_in, put_on, words
from streamd.config.operator_reader import OperatorReader
from streamd.config.options import Options
from streamd.config.tls_options import TlsOptions
from streamd.config.tls_reader import read_tls
from streamd.config.users_reader import UNSERVED_AUTHORIZATION, UsersReader
from streamd.config.values import (
    as_flag,
    as_host_port,
    as_integer,
    as_list,
    as_members,
    as_number,
    as_routes,
    as_size,
    as_text,
    go_type,
    kind_of,
    mismatch,
    plain_text,
    quoted,
)
from streamd.config.websocket_reader import read_websocket
from streamd.durations import SECOND_NS, format_duration
from streamd.errors import ConfigError

_CIPHERS = {"chacha": "chacha", "chachapoly": "chacha", "aes": "aes"}
_OCSP_MODES = ("auto", "always", "must", "never")


def _as_secret(value: Value) -> str:
    """A string that no error repeats."""
    if not isinstance(value.raw, str):
        raise value.error(
            f'"jetstream.{value.key}" must be a string, not {kind_of(value)}: a text that looks '
            "like a number needs quotes"
        )
    return value.raw


def _as_cipher(value: Value) -> str:
    cipher = _CIPHERS.get(as_text(value).lower())
    if cipher is None:
        raise value.error(f'Unknown cipher type: "{value.raw}" (chacha and aes are known)')
    return cipher


def load(path: str) -> Options:
    """Read the configuration file at `path`. Raises ConfigError; does not `finish`."""
    root = parse_file(path)
    options = from_tree(root)
    options.config_file = path
    options.config_digest = digest(root)
    return options


def from_tree(root: Value) -> Options:
    """Interpret a parsed configuration."""
    options = Options(auth_timeout_s=0)  # 0: as `finish` finds right
    _Reader(options).top(root)
    return options


_UNSERVED_TOP = Unserved(
    protecting=words(
        """
        proxy_protocol proxies
        """
    ),
    additional=words(
        """
        syslog remote_syslog prof_port prof_block_rate disable_sublist_cache no_sublist_cache
        ocsp_cache gateway mqtt default_js_domain connect_error_reports
        reconnect_error_reports no_fast_producer_stall feature_flags write_timeout
        """
    ),
)

_UNSERVED_JETSTREAM = Unserved(
    protecting=words("tpm"),
    additional=words(
        """
        extension_hint max_outstanding_catchup max_buffered_size max_buffered_msgs
        request_queue_limit info_queue_limit meta_compact meta_compact_size meta_compact_sync
        max_concurrent_io
        """
    ),
)

_UNSERVED_CLUSTER = Unserved(
    protecting=words("permissions"),
    additional=words(
        """
        connect_backoff pool_size accounts compression ping_interval ping_max write_deadline
        write_timeout
        """
    ),
)


class _Reader:
    """Reads the tree into `Options`, one method per block."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._blocks = KeyBlocks(options)
        self._users = UsersReader(options, self._blocks)
        self._accounts = AccountsReader(options, self._blocks, self._users)
        self._operators = OperatorReader(options, self._blocks)

    def top(self, root: Value) -> None:
        o = self._options
        self._blocks.read(
            root,
            {
                "listen": self._listen,
                "host|net": self._blocks.text("host"),
                "port": self._blocks.integer("port"),
                "client_advertise": self._blocks.text("client_advertise"),
                "server_name": self._server_name,
                "server_tags": self._server_tags,
                "server_metadata": self._server_metadata,
                "http": self._http,
                "http_port|monitor_port": self._blocks.integer("http_port"),
                "https": self._https,
                "https_port": self._blocks.integer("https_port"),
                "http_base_path": self._blocks.text("http_base_path"),
                "debug": self._blocks.flag("is_debug"),
                "trace": self._blocks.flag("is_trace"),
                "trace_verbose": self._trace_verbose,
                "trace_headers": self._trace_headers,
                "logtime": self._blocks.flag("has_logtime"),
                "logtime_utc": self._blocks.flag("is_logtime_utc"),
                "logfile|log_file": self._blocks.text("log_file"),
                "logfile_size_limit|log_size_limit": self._blocks.integer("log_size_limit"),
                "logfile_max_num|log_max_num": self._blocks.integer("log_files_max"),
                "max_traced_msg_len": self._blocks.integer("max_traced_msg_len"),
                "pidfile|pid_file": self._blocks.text("pid_file"),
                "ports_file_dir": self._blocks.text("ports_file_dir"),
                "max_control_line": self._blocks.bound("max_control_line"),
                "max_payload": self._blocks.bound("max_payload"),
                "max_pending": self._blocks.bound("max_pending", highest=2**63 - 1),
                "max_connections|max_conn": self._blocks.integer("max_connections"),
                "max_subscriptions|max_subs": self._blocks.integer("max_subscriptions"),
                "max_sub_tokens|max_subscription_tokens": self._blocks.integer("max_sub_tokens"),
                "max_closed_clients": self._blocks.bound("max_closed_clients"),
                "ping_interval": self._blocks.duration("ping_interval_ns"),
                "ping_max": self._blocks.integer("ping_max"),
                "write_deadline": self._blocks.duration("write_deadline_ns"),
                "lame_duck_duration": self._lame_duck_duration,
                "lame_duck_grace_period": self._lame_duck_grace,
                "no_header_support": self._no_header_support,
                "authorization": self._users.authorization,
                "accounts": self._accounts.accounts,
                "mappings|maps": self._accounts.mappings,
                "system_account|system": self._accounts.system_account,
                "no_system_account|no_system|no_sys_acc": self._accounts.no_system_account,
                **self._operators.setters,
                "no_auth_user": self._blocks.text("no_auth_user"),
                "jetstream": self._jetstream,
                "cluster": self._cluster,
                "tls": self._tls,
                "allow_non_tls": self._blocks.flag("allows_non_tls"),
                "ocsp": self._ocsp,
                "websocket|ws": self._websocket,
                "leafnodes|leaf": self._leafnodes,
                "store_dir|storedir": put_on(o.jetstream, "store_dir", as_text),
            },
            unserved=_UNSERVED_TOP,
        )
        self._users.finish()
        self._operators.finish()
        self._accounts.finish()
        self._check_callout()
        # Monitoring is set up so for a server without logins: nats-server then admits every client
        # without credentials, as if there were no users.
        o.is_open_besides_system = (
            self._accounts.is_system_alone
            and not self._users.has_authorization
            and not o.no_auth_user
            and not o.operators.has_trusted_keys
        )

    def _check_callout(self) -> None:
        callout = self._options.callout
        for name in callout.allowed_accounts if callout is not None else ():
            if not self._accounts.is_configured(name):
                raise ConfigError(
                    f"auth_callout allowed account {quoted(name)} not found in configured accounts"
                )

    # --- top-level values with rules of their own ------------------------------------------------

    def _listen(self, value: Value) -> None:
        host, port = as_host_port(value)
        if host is not None:
            self._options.host = host
        self._options.port = port

    def _http(self, value: Value) -> None:
        self._monitoring(value, "http_port")

    def _https(self, value: Value) -> None:
        self._monitoring(value, "https_port")

    def _monitoring(self, value: Value, attribute: str) -> None:
        """Read an address, or a block that has logins of the dashboard as well."""
        port: int | None
        if isinstance(value.raw, dict):
            # Not needed, hence not imported, by a server that only gives an address.
            from streamd.config.http_reader import read_http

            host, port, logins = read_http(value, self._blocks)
            if logins and self._options.http_logins:
                raise value.error(f'"{value.key}" must not have logins beside another block\'s')
            self._options.http_logins = logins or self._options.http_logins
        else:
            host, port = as_host_port(value)
        if host is not None:
            self._options.http_host = host
        if port is not None:
            setattr(self._options, attribute, port)

    def _server_name(self, value: Value) -> None:
        name = as_text(value)
        if re.search(r"\s", name):
            raise value.error("server name cannot contain spaces")
        self._options.server_name = name

    def _server_tags(self, value: Value) -> None:
        tags = as_list(value) if isinstance(value.raw, list) else [value]
        self._options.server_tags = [as_text(tag) for tag in tags]

    def _server_metadata(self, value: Value) -> None:
        members = as_members(value, "server_metadata")
        self._options.server_metadata = {key: as_text(child) for key, child in members.items()}

    def _trace_verbose(self, value: Value) -> None:
        self._options.is_trace_verbose = as_flag(value)
        self._options.is_trace = self._options.is_trace or self._options.is_trace_verbose

    def _trace_headers(self, value: Value) -> None:
        self._options.is_trace_headers = as_flag(value)
        self._options.is_trace = self._options.is_trace or self._options.is_trace_headers

    def _lame_duck_duration(self, value: Value) -> None:
        if not isinstance(value.raw, str):
            raise mismatch(value, "a string")
        duration = self._blocks.duration_of(value, "lame_duck_duration")
        if duration < 30 * SECOND_NS:
            raise value.error(
                f"invalid lame_duck_duration of {format_duration(duration)}, minimum is 30 seconds"
            )
        self._options.lame_duck_duration_ns = duration

    def _lame_duck_grace(self, value: Value) -> None:
        if not isinstance(value.raw, str):
            raise mismatch(value, "a string")
        duration = self._blocks.duration_of(value, "lame_duck_grace_period")
        if duration < 0:
            raise value.error("invalid lame_duck_grace_period, needs to be positive")
        self._options.lame_duck_grace_ns = duration

    def _no_header_support(self, value: Value) -> None:
        self._options.has_header_support = not as_flag(value)

    def _tls(self, block: Value) -> None:
        self._options.tls = read_tls(block, self._blocks)

    def _ocsp(self, value: Value) -> None:
        """Accept what asks for no stapled answer; refuse what does."""
        if isinstance(value.raw, dict):
            mode = value.raw.get("mode")
            word = str(mode.raw).lower() if mode is not None else "auto"
            if mode is not None and word not in _OCSP_MODES:
                raise mode.error(
                    f"error parsing ocsp config: unsupported ocsp mode {go_type(mode)}"
                )
            is_off = word == "never"
        elif isinstance(value.raw, bool):
            is_off = not value.raw
        else:
            raise value.error(f"error parsing ocsp config: unsupported type {go_type(value)}")
        if not is_off:
            self._blocks.refuse(value, '"ocsp" is not served by this version')

    def _websocket(self, block: Value) -> None:
        self._options.websocket = read_websocket(block, self._blocks)

    def _leafnodes(self, block: Value) -> None:
        # Not needed, hence not imported, by a server without leaf links.
        from streamd.config.leaf_reader import read_leafnodes

        self._options.leaf = read_leafnodes(block, self._blocks)

    # --- peers ------------------------------------------------------------------------------------

    def _cluster(self, block: Value) -> None:
        settings: dict[str, Any] = {}
        put = partial(put_in, settings)

        def listen(value: Value) -> None:
            host, port = as_host_port(value)
            if host:
                settings["host"] = host
            settings["port"] = port

        def name(value: Value) -> str:
            text = as_text(value)
            if re.search(r"\s", text):
                raise value.error("cluster name cannot contain spaces")
            return text

        def tls(value: Value) -> TlsOptions:
            found = read_tls(value, self._blocks, "cluster.tls.", has_known_urls=True)
            if not found.certificates:
                raise value.error("missing 'cert_file' or 'key_file' in TLS configuration")
            # Links are in TLS from their first byte, and few: these change nothing.
            for key, is_set in (
                ("handshake_first", found.is_first),
                ("connection_rate_limit", found.connections_per_s_max),
            ):
                if is_set:
                    self._blocks.warn(value, f'"cluster.tls.{key}" has no effect and is ignored')
            return found

        self._blocks.read(
            block,
            {
                "name": put("name", name),
                "listen": listen,
                "host|net": put("host", as_text),
                "port": put("port", as_integer),
                "authorization": lambda v: settings.update(self._cluster_authorization(v)),
                "routes": put("routes", as_routes),
                "advertise|cluster_advertise": put("advertise", as_text),
                "no_advertise": put("has_advertise", lambda v: not as_flag(v)),
                "connect_retries": put("connect_retries", as_integer),
                "tls": put("tls", tls),
            },
            "cluster.",
            _UNSERVED_CLUSTER,
        )
        self._options.cluster = ClusterOptions(**settings)
        self._options.cluster_place = (block.file, block.line, block.col)

    def _cluster_authorization(self, block: Value) -> dict[str, Any]:
        settings: dict[str, Any] = {}
        put = partial(put_in, settings)

        def refuse(text: str) -> Setter:
            def set_(value: Value) -> None:
                raise block.error(f"Cluster authorization does not {text}")

            return set_

        def seconds(value: Value) -> float:
            if isinstance(value.raw, str):
                return self._blocks.duration_of(value, "timeout") / SECOND_NS
            return float(as_number(value))

        self._blocks.read(
            block,
            {
                "user|username": put("username", as_text),
                "pass|password": put("password", as_text),
                "timeout": put("auth_timeout_s", seconds),
                "users": refuse("allow multiple users"),
                "token": refuse("support tokens"),
            },
            "cluster.authorization.",
            Unserved([*UNSERVED_AUTHORIZATION.protecting, "default_permissions", "permissions"]),
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
                raise value.error(f'"jetstream" must be enabled or disabled, not "{value.raw}"')
            js.is_enabled = value.raw.lower().startswith("enable")
            return
        if not isinstance(value.raw, dict):
            raise value.error(
                f'"jetstream" must be enabled, disabled or a block, not {kind_of(value)}'
            )
        js.is_enabled = True
        put = partial(put_on, js)
        self._blocks.read(
            value,
            {
                "enabled|enable": put("is_enabled", as_flag),
                "store_dir|storedir|store": put("store_dir", as_text),
                "domain": put("domain", as_text),
                "unique_tag": put("unique_tag", lambda v: as_text(v).strip().lower()),
                "max_memory_store|max_mem_store|max_mem|max_memory": put("max_memory", as_size),
                "max_file_store|max_file": put("max_storage", as_size),
                "strict": put("is_strict", as_flag),
                "sync_interval|sync": put("sync_interval_ns", self._sync_interval),
                "key|ek|encryption_key": put("key", _as_secret),
                "prev_key|prev_ek|prev_encryption_key": put("previous_key", _as_secret),
                "cipher": put("cipher", _as_cipher),
                "limits": self._jetstream_limits,
            },
            "jetstream.",
            _UNSERVED_JETSTREAM,
        )

    def _sync_interval(self, value: Value) -> int:
        if isinstance(value.raw, str) and value.raw.lower() == "always":
            return 0
        interval = self._blocks.duration_of(value, "sync_interval")
        if interval <= 0:
            raise value.error(f"sync_interval must be positive or always, got {plain_text(value)}")
        return interval

    def _jetstream_limits(self, block: Value) -> None:
        put = partial(put_on, self._options.jetstream)

        def batch(inner: Value) -> None:
            self._blocks.read(
                inner,
                {
                    "max_inflight_per_stream": put("max_batches_per_stream", as_integer),
                    "max_inflight_total": put("max_batches_total", as_integer),
                    "max_msgs": put("max_batch_msgs", as_integer),
                    "timeout": put(
                        "batch_timeout_ns", lambda v: self._blocks.duration_of(v, "timeout")
                    ),
                },
                "jetstream.limits.batch.",
            )

        self._blocks.read(
            block,
            {
                "max_ack_pending": put("max_ack_pending", as_integer),
                "max_ha_assets": put("max_ha_assets", as_integer),
                "max_request_batch": put("max_request_batch", as_integer),
                "duplicate_window": put(
                    "duplicate_window_ns", lambda v: self._blocks.duration_of(v, "duplicate_window")
                ),
                "batch": batch,
            },
            "jetstream.limits.",
            Unserved(["default_max_consumers"]),
        )
