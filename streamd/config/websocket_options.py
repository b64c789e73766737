"""Settings of the WebSocket listener."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from streamd.config.tls_options import TlsOptions
from streamd.errors import ConfigError

_HOP_HEADERS = {"host", "content-length", "connection", "upgrade", "nats-no-masking"}


@dataclass(frozen=True, slots=True)
class WebSocketOptions:
    """A `websocket` block. Times are ns; what is not given is as for other clients."""

    host: str = "0.0.0.0"
    port: int = 0  # 0: no listener, whatever else is set; -1: any free port
    advertise: str = ""
    has_no_tls: bool = False
    tls: TlsOptions | None = None
    is_same_origin: bool = False  # a page's origin must be this listener's own address
    allowed_origins: tuple[str, ...] = ()  # (): any
    handshake_timeout_ns: int = 0  # 0: the default of limits.py
    is_compressing: bool = False  # for clients that ask for it
    headers: tuple[tuple[str, str], ...] = ()  # of the answer that ends a handshake
    username: str = ""
    password: str = ""
    token: str = ""
    auth_timeout_s: float = 0.0
    no_auth_user: str = ""
    jwt_cookie: str = ""
    user_cookie: str = ""
    pass_cookie: str = ""
    token_cookie: str = ""
    ping_interval_ns: int = 0

    @property
    def is_enabled(self) -> bool:
        return self.port != 0

    @property
    def cookies(self) -> dict[str, str]:
        """Names of cookies that are logins, by the field of CONNECT that each fills."""
        names = {
            "jwt": self.jwt_cookie,
            "user": self.user_cookie,
            "pass": self.pass_cookie,
            "auth_token": self.token_cookie,
        }
        return {field: name for field, name in names.items() if name}

    def check(self, *, has_users: bool, has_operators: bool) -> None:
        """Check what only makes sense with the other options. Raises ConfigError."""
        if not self.is_enabled:
            return
        if self.tls is None and not self.has_no_tls:
            raise ConfigError("websocket requires TLS configuration")
        for origin in self.allowed_origins:
            _check_origin(origin)
        if has_users and (self.username or self.token):
            what = "username" if self.username else "token"
            raise ConfigError(
                f"websocket authentication {what} not compatible with presence of users/nkeys"
            )
        if self.jwt_cookie and not has_operators:
            raise ConfigError(
                "trusted operators or trusted keys configuration is required for JWT"
                f' authentication via cookie "{self.jwt_cookie}"'
            )
        for name, _ in self.headers:
            if name.lower().startswith("sec-websocket-"):
                raise ConfigError(
                    f'websocket: invalid header "{name}", "Sec-WebSocket-" prefix not allowed'
                )
            if name.lower() in _HOP_HEADERS:
                raise ConfigError(f'websocket: invalid header "{name}" not allowed')


def _check_origin(origin: str) -> None:
    if ":" not in origin and not origin.startswith("/"):
        raise ConfigError(
            f'unable to parse allowed origin: parse "{origin}": invalid URI for request'
        )
    try:
        parts = urlsplit(origin)
        is_absolute = parts.scheme in ("http", "https") and bool(parts.hostname)
        _ = parts.port  # raises as well
    except ValueError as err:
        raise ConfigError(f'unable to parse allowed origin: parse "{origin}": {err}') from None
    if not is_absolute:
        raise ConfigError(
            f'unable to parse allowed origin "{origin}": allowed origins must be absolute URLs with'
            " http or https scheme"
        )
