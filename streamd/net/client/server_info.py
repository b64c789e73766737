"""INFO: the document by which the server introduces itself to clients."""

from __future__ import annotations

import json
import sys
from typing import Final

from streamd import API_LEVEL, NATS_LEVEL, __version__
from streamd.config.cluster_options import client_address
from streamd.config.options import Options


class ServerInfo:
    """The INFO document that all client connections of a server share.

    Methods that change the document return True if clients that are connected should be sent it.
    """

    def __init__(
        self,
        options: Options,
        *,
        server_id: str,
        server_name: str,
        has_jetstream: bool,
        is_websocket: bool = False,
    ) -> None:
        self.is_lame_duck = False
        self._is_websocket = is_websocket
        self._needs_no_login = self._has_silent_user(options)
        self._shared: dict[str, object] = {
            "server_id": server_id,
            "server_name": server_name,
            "version": NATS_LEVEL,
            "proto": 1,
            "git_commit": f"streamd-{__version__}",
            "go": f"python{sys.version.split()[0]}",
            "host": options.host,
            "port": options.port,
            "headers": options.has_header_support,
        }
        self._shared |= _demands(options)
        self._shared["max_payload"] = options.max_payload
        if has_jetstream:
            self._shared["jetstream"] = True
            self._shared["api_lvl"] = API_LEVEL
            if options.jetstream.domain:
                self._shared["domain"] = options.jetstream.domain
        if options.cluster.is_enabled and options.cluster.name:
            self._shared["cluster"] = options.cluster.name

    def set_xkey(self, public: str) -> None:
        """Name the curve key with which services seal their answers; "": there is none."""
        if public:
            self._shared["xkey"] = public

    def set_address(self, options: Options, port: int) -> None:
        """Name the address that clients are told; `port` is the one that the server listens on."""
        self._shared["host"], self._shared["port"] = _shown_address(options, port)

    def apply_options(self, options: Options, port: int) -> bool:
        """Describe a configuration that was read again."""
        self._needs_no_login = self._has_silent_user(options)
        for key in _DEMANDS:
            self._shared.pop(key, None)
        self._shared |= _demands(options)
        host, shown_port = _shown_address(options, port)
        fresh = {"max_payload": options.max_payload, "host": host, "port": shown_port}
        is_changed = any(self._shared[key] != value for key, value in fresh.items())
        self._shared |= fresh
        return is_changed

    def _has_silent_user(self, options: Options) -> bool:
        """Return True if a client need not log in, which nats-server tells on plain sockets alone,
        and not of users that are the system account's only."""
        return bool(options.no_auth_user) and not self._is_websocket

    def set_connect_urls(self, urls: list[str]) -> bool:
        """Name other servers to which clients could connect."""
        if urls == self._shared.get("connect_urls", []):
            return False
        self._shared["connect_urls"] = urls
        return True

    def line(
        self,
        *,
        cid: int,
        ip: str,
        nonce: str = "",
        is_tls_first: bool = False,
        is_first: bool = False,
        account: str = "",
        max_payload: int = 0,
        is_lame_duck: bool = False,
    ) -> bytes:
        """Return the INFO line for one client, without CRLF; `nonce` is what it signs to log in,
        `is_tls_first`: it comes in TLS; `is_first`: it is the one that introduces the server;
        `account`: it has logged in, and may send messages of `max_payload` bytes."""
        info = {**self._shared, "client_id": cid, "client_ip": ip}
        if nonce:
            info["nonce"] = nonce
        if is_tls_first:
            info["tls_required"] = True
        if is_first and self._needs_no_login:
            info.pop("auth_required", None)
        if account:
            info["max_payload"] = max_payload
            info["connect_info"] = True
            info["remote_account"] = account
        if is_lame_duck or self.is_lame_duck:
            info["ldm"] = True
        return b"INFO %b " % json.dumps(info, separators=(",", ":")).encode()


_DEMANDS: Final = ("auth_required", "tls_required", "tls_verify", "tls_available")


def _demands(options: Options) -> dict[str, bool]:
    """Return what a client must do, or may, before it is served."""
    tls, allows_plain = options.tls, options.allows_non_tls
    is_wanted = (
        options.is_auth_required,
        tls is not None and not allows_plain,
        tls is not None and tls.is_verifying,
        tls is not None and allows_plain,
    )
    return {key: True for key, wanted in zip(_DEMANDS, is_wanted, strict=True) if wanted}


def _shown_address(options: Options, port: int) -> tuple[str, int]:
    if options.client_advertise:
        return client_address(options.client_advertise, port)
    return options.host, port
