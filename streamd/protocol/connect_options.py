"""`ConnectOptions`: the options of a client's CONNECT, as the session has checked them."""

from __future__ import annotations

from typing import TypedDict

ConnectOptions = TypedDict(  # `pass` is no name of Python's
    "ConnectOptions",
    {
        "verbose": bool,
        "pedantic": bool,
        "echo": bool,
        "headers": bool,
        "no_responders": bool,
        "tls_required": bool,
        "new_account": bool,
        "user": str,
        "pass": str,
        "auth_token": str,
        "jwt": str,
        "nkey": str,
        "sig": str,
        "name": str,
        "lang": str,
        "version": str,
        "account": str,
        "remote_account": str,
        "proxy_sig": str,
        "protocol": int,
    },
    total=False,
)
