"""TLS of a client as a service that decides on its login sees it: version, suite, certificates."""

from __future__ import annotations

import ssl
from typing import Any

from streamd.net.tls.facts import TlsFacts


def tls_claims(tls: TlsFacts) -> dict[str, Any]:
    """Return the `client_tls` of a question. Certificates that the server verified are a chain."""
    shown = [ssl.DER_cert_to_PEM_cert(each.der) for each in tls.certificates if each.der]
    claims: dict[str, Any] = {"version": tls.version, "cipher": tls.cipher_suite}
    if shown and tls.is_verified:
        claims["verified_chains"] = [shown]
    elif shown:
        claims["certs"] = shown
    return claims
