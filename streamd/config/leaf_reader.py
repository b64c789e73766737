"""Reader of the `leafnodes` block. Error texts are nats-server's where it has them."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from streamd.config.grammar import Value
from streamd.config.key_blocks import KeyBlocks, Unserved, put_in, words
from streamd.config.leaf_options import (
    LeafCompression,
    LeafOptions,
    LeafRemote,
    LeafUrl,
    LeafUser,
    check_min_version,
    parse_leaf_url,
)
from streamd.config.tls_options import TlsOptions
from streamd.config.tls_reader import read_tls
from streamd.config.values import (
    as_flag,
    as_host_port,
    as_integer,
    as_number,
    as_text,
    kind_of,
    plain_text,
)
from streamd.durations import SECOND_NS
from streamd.errors import TokenError
from streamd.subjects import is_valid

_UNSERVED: Final = Unserved(additional=words("dial_timeout write_timeout"))
_UNSERVED_REMOTE: Final = Unserved(
    protecting=words("proxy"), additional=words("jetstream_cluster_migrate js_cluster_migrate")
)
_UNSERVED_LOGIN: Final = Unserved(protecting=words("proxy_required"))


def read_leafnodes(block: Value, blocks: KeyBlocks) -> LeafOptions:
    """Read the block. Raises ConfigError; what other options bear on is checked by `check`."""
    if not isinstance(block.raw, dict):
        raise block.error(f"Expected map to define a leafnode, got {kind_of(block)}")
    return _LeafReader(block, blocks).read()


class _LeafReader:
    """Reads one block; keeps what only makes sense as a whole until its end."""

    def __init__(self, block: Value, blocks: KeyBlocks) -> None:
        self._block = block
        self._blocks = blocks
        self._settings: dict[str, Any] = {}
        self._compressions: list[str] = []

    def read(self) -> LeafOptions:
        settings, blocks = self._settings, self._blocks
        put = partial(put_in, settings)

        def listen(value: Value) -> None:
            host, settings["port"] = as_host_port(value)
            if host is not None:
                settings["host"] = host

        settings["remotes"] = ()
        blocks.read(
            self._block,
            {
                "listen": listen,
                "host|net": put("host", as_text),
                "port": put("port", as_integer),
                "advertise": put("advertise", as_text),
                "no_advertise": put("has_advertise", lambda v: not as_flag(v)),
                "authorization": self._authorization,
                "remotes": put("remotes", self._remotes),
                "reconnect|reconnect_delay|reconnect_interval": put("reconnect_ns", self._positive),
                "tls": put("tls", lambda v: self._tls(v, "leafnodes.tls.")),
                "min_version|minimum_version": put("min_version", _min_version),
                "compression": put("compression", self._compression),
                "isolate_leafnode_interest|isolate": put("is_isolating", as_flag),
                "write_deadline": put("write_deadline_ns", self._positive),
            },
            "leafnodes.",
            _UNSERVED,
        )
        return LeafOptions(**settings, compressions=tuple(self._compressions))

    def _positive(self, value: Value) -> int:
        found = self._blocks.duration_of(value, value.key)
        if found <= 0:
            raise value.error(f'"{value.key}": {plain_text(value)} must be more than nothing')
        return found

    def _tls(self, value: Value, path: str) -> TlsOptions:
        found = read_tls(value, self._blocks, path)
        for key, is_set in (
            ("handshake_first", found.is_first),
            ("connection_rate_limit", found.connections_per_s_max),
            ("verify_and_map", found.is_mapping),
        ):
            if is_set and key == "connection_rate_limit":
                self._blocks.warn(value, f'"{path}{key}" has no effect and is ignored')
            elif is_set:
                self._blocks.refuse(value, f'"{path}{key}" is not served by this version')
        return found

    def _compression(self, value: Value) -> LeafCompression:
        """Read a mode; whether there is such a one is found out at the end."""
        mode: list[str] = []
        rtts: list[int] = []

        def thresholds(given: Value) -> None:
            for entry in given.raw if isinstance(given.raw, list) else [given]:
                rtts.append(self._blocks.duration_of(entry, "rtt_thresholds"))

        if isinstance(value.raw, bool):
            mode.append("on" if value.raw else "off")
        elif isinstance(value.raw, dict):
            self._blocks.read(
                value,
                {
                    "mode": lambda v: mode.append(as_text(v)),
                    "rtt_thresholds|thresholds|rtts|rtt": thresholds,
                },
                f"{value.key}.",
            )
        else:
            mode.append(as_text(value))
        self._compressions += mode
        return LeafCompression.of(mode[-1] if mode else "s2_auto", tuple(rtts))

    def _no_masking(self, value: Value) -> None:
        if as_flag(value):
            self._blocks.warn(
                value, f'"{value.key}" has no effect and is ignored: frames are masked'
            )

    # --- logins -----------------------------------------------------------------------------------

    def _authorization(self, block: Value) -> None:
        settings = self._settings
        put = partial(put_in, settings)

        def timeout_s(value: Value) -> float:
            if isinstance(value.raw, str):
                return self._blocks.duration_of(value, "timeout") / SECOND_NS
            return float(as_number(value))

        self._blocks.read(
            block,
            {
                "user|username": put("username", as_text),
                "pass|password": put("password", as_text),
                "nkey": put("nkey", _public_key),
                "account": put("account", as_text),
                "timeout": put("auth_timeout_s", timeout_s),
                "users": put("users", lambda v: self._users(block, v)),
            },
            "leafnodes.authorization.",
            _UNSERVED_LOGIN,
        )
        if settings.get("users") and (settings.get("username") or settings.get("password")):
            raise block.error("can not have a single user/pass and a users array")

    def _users(self, block: Value, value: Value) -> tuple[LeafUser, ...]:
        if not isinstance(value.raw, list):
            raise value.error(f"Expected users field to be an array, got {kind_of(value)}")
        users: list[LeafUser] = []
        for entry in value.raw:
            settings: dict[str, Any] = {"name": ""}
            put = partial(put_in, settings)
            self._blocks.read(
                entry,
                {
                    "user|username": put("name", as_text),
                    "pass|password": put("password", as_text),
                    "account": put("account", as_text),
                },
                "leafnodes.authorization.users.",
                _UNSERVED_LOGIN,
            )
            user = LeafUser(**settings)
            if not user.name:
                raise entry.error("User entry requires a user")
            if any(known.name == user.name for known in users):
                raise block.error(
                    f'duplicate user "{user.name}" detected in leafnode authorization'
                )
            users.append(user)
        return tuple(users)

    # --- remotes ----------------------------------------------------------------------------------

    def _remotes(self, value: Value) -> tuple[LeafRemote, ...]:
        if not isinstance(value.raw, list):
            raise value.error(f"Expected remotes field to be an array, got {kind_of(value)}")
        remotes: list[LeafRemote] = []
        for entry in value.raw:
            if not isinstance(entry.raw, dict):
                raise entry.error(
                    f"Expected remote leafnode entry to be a map/struct, got {plain_text(entry)}"
                )
            remote = self._remote(entry)
            if any(
                known.urls == remote.urls and known.account == remote.account for known in remotes
            ):
                shown = " ".join(f'"{url.text}"' for url in remote.urls)
                raise entry.error(f'duplicate remote urls=[{shown}], account="{remote.account}"')
            remotes.append(remote)
        return tuple(remotes)

    def _remote(self, entry: Value) -> LeafRemote:
        settings: dict[str, Any] = {"place": (entry.file, entry.line, entry.col)}
        put = partial(put_in, settings)
        self._blocks.read(
            entry,
            {
                "url|urls": put("urls", _urls),
                "account|local": put("account", as_text),
                "credentials|creds": put("credentials", as_text),
                "nkey|seed": put("nkey_seed", _seed),
                "tls": put("tls", lambda v: self._tls(v, "leafnodes.remotes.tls.")),
                "hub": put("is_hub", as_flag),
                "deny_imports|deny_import": put("deny_imports", _subjects),
                "deny_exports|deny_export": put("deny_exports", _subjects),
                "ws_compress|ws_compression|websocket_compress|websocket_compression": put(
                    "is_compressing", as_flag
                ),
                "ws_no_masking|websocket_no_masking": self._no_masking,
                "compression": put("compression", self._compression),
                "first_info_timeout": put("first_info_timeout_ns", self._positive),
                "dial_timeout": put("dial_timeout_ns", self._positive),
                "disabled": put("is_disabled", as_flag),
                "request_isolation": put("is_isolated", as_flag),
                "no_randomize|dont_randomize": put("is_randomized", lambda v: not as_flag(v)),
                "ignore_discovered_servers": put("ignores_discovered", as_flag),
            },
            "leafnodes.remotes.",
            _UNSERVED_REMOTE,
        )
        return LeafRemote(**settings)


def _urls(value: Value) -> tuple[LeafUrl, ...]:
    found = []
    for entry in value.raw if isinstance(value.raw, list) else [value]:
        try:
            found.append(parse_leaf_url(as_text(entry)))
        except ValueError as err:
            raise entry.error(f'"{value.key}": {err}') from err
    return tuple(found)


def _subjects(value: Value) -> tuple[bytes, ...]:
    if not isinstance(value.raw, str | list):
        raise value.error(
            "Expected subject permissions to be a subject, or array of subjects,"
            f" got {kind_of(value)}"
        )
    found = []
    for entry in value.raw if isinstance(value.raw, list) else [value]:
        subject = as_text(entry).encode()
        if not is_valid(subject):
            raise entry.error(f'subject "{as_text(entry)}" is not a valid subject')
        found.append(subject)
    return tuple(found)


def _seed(value: Value) -> str:
    from streamd.tokens.nkeys import KeyKind, decode_seed  # loads OpenSSL: a tenth of a second

    text = as_text(value)
    try:
        is_user = decode_seed(text)[0] is KeyKind.USER
    except TokenError:
        is_user = False
    if not is_user:
        raise value.error("Remote leafnode nkey is not a valid seed")  # a secret: not shown
    return text


def _public_key(value: Value) -> str:
    from streamd.tokens.nkeys import KeyKind, is_valid_public  # as in `_seed`

    text = as_text(value)
    if not is_valid_public(KeyKind.USER, text):
        raise value.error("Not a valid public nkey for leafnode authorization")
    return text


def _min_version(value: Value) -> str:
    try:
        return check_min_version(as_text(value))
    except ValueError as err:
        raise value.error(str(err)) from err
