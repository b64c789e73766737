"""Contexts of `ssl` from the options of a `tls` block. Errors name the block's place."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Final

from streamd.config.cipher_suites import INSECURE_SUITES, SECURE_SUITES
from streamd.config.tls_options import CertificatePair, TlsOptions
from streamd.errors import ConfigError
from streamd.net.tls.certificates import names_host, read_certificate

_CURVES: Final = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1"}
_BEGIN: Final = b"-----BEGIN "
_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"


def server_context(tls: TlsOptions) -> ssl.SSLContext:
    """Return the context of a listener. Raises ConfigError."""
    context = _context(tls, ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    if tls.is_verifying:
        context.verify_mode = ssl.CERT_REQUIRED
        # A resumed session would not have its certificate looked at again.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
    if len(tls.certificates) > 1:
        context.sni_callback = _choice(tls)
    return context


def client_context(tls: TlsOptions) -> ssl.SSLContext:
    """Return the context of connections that this server makes. Raises ConfigError."""
    context = _context(tls, ssl.PROTOCOL_TLS_CLIENT)
    if tls.is_insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _context(tls: TlsOptions, kind: int) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.minimum_version = (
        ssl.TLSVersion.TLSv1_3 if tls.min_version == "1.3" else ssl.TLSVersion.TLSv1_2
    )
    context.options |= ssl.OP_NO_RENEGOTIATION  # Go has none either; OpenSSL 1.1 would allow it
    # A certificate that the file names is trusted, whoever signed it: as in nats-server.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    _set_suites(context, tls)
    for curve in tls.curves:
        context.set_ecdh_curve(_CURVES[curve])
    # OpenSSL holds one certificate of each type of key: the first pair of a type is the last here.
    for pair in reversed(tls.certificates):
        _load_pair(context, pair, tls)
    if tls.ca_file:
        _load_authorities(context, tls)
    elif tls.is_verifying or kind == ssl.PROTOCOL_TLS_CLIENT:
        is_client = kind == ssl.PROTOCOL_TLS_CLIENT
        purpose = ssl.Purpose.SERVER_AUTH if is_client else ssl.Purpose.CLIENT_AUTH
        context.load_default_certs(purpose)
    return context


def _set_suites(context: ssl.SSLContext, tls: TlsOptions) -> None:
    """Set the suites of TLS 1.2 that the options name. The suites of 1.3 cannot be chosen."""
    if not tls.cipher_suites:
        context.set_ciphers(":".join(SECURE_SUITES.values()))
        return
    known = SECURE_SUITES | INSECURE_SUITES
    suites = [known[name] for name in tls.cipher_suites if name in known]
    if not suites:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        return
    for name in tls.cipher_suites:
        if name in known:
            try:
                context.set_ciphers(known[name])
            except ssl.SSLError:
                raise _fault(tls, f"cipher {name}: {ssl.OPENSSL_VERSION} has none") from None
    context.set_ciphers(":".join(suites))


def _load_pair(context: ssl.SSLContext, pair: CertificatePair, tls: TlsOptions) -> None:
    kind = "error parsing X509 certificate/key pair"
    certificate = _read(pair.cert_file, tls, f"{kind}: ")
    key = _read(pair.key_file, tls, f"{kind}: ")
    try:
        # With a password given, if an empty one, OpenSSL does not ask the terminal for one.
        context.load_cert_chain(pair.cert_file, pair.key_file, password=lambda: "")
    except ssl.SSLError as err:
        raise _fault(tls, f"{kind}: tls: {_reason(certificate, key, err)}") from err
    except OSError as err:
        raise _fault(tls, f"{kind}: {err}") from err


def _reason(certificate: bytes, key: bytes, err: ssl.SSLError) -> str:
    if _BEGIN not in certificate:
        return "failed to find any PEM data in certificate input"
    if _CERTIFICATE not in certificate:
        return "failed to find a certificate in the PEM of the certificate input"
    if _BEGIN not in key:
        return "failed to find any PEM data in key input"
    if b"PRIVATE KEY-----" not in key:
        return "found a certificate rather than a key in the PEM for the private key"
    if err.reason == "KEY_VALUES_MISMATCH":
        return "private key does not match public key"
    return f"failed to parse private key or certificate: {err.reason or err}"


def _load_authorities(context: ssl.SSLContext, tls: TlsOptions) -> None:
    _read(tls.ca_file, tls, "")
    try:
        context.load_verify_locations(tls.ca_file)
    except ssl.SSLError as err:
        raise _fault(tls, "failed to parse root ca certificate") from err


def _read(path: str, tls: TlsOptions, prefix: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as err:
        reason = (err.strerror or str(err)).lower()
        raise _fault(tls, f"{prefix}open {path}: {reason}") from err


def _choice(tls: TlsOptions) -> Callable[[ssl.SSLObject, str | None, ssl.SSLContext], None]:
    """Return the choice of a certificate by the name that the other side asks for: the first pair
    that has it, else the first of all."""
    choices = []
    for pair in tls.certificates:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        for other in reversed((pair, *tls.certificates)):
            _load_pair(context, other, tls)
        choices.append((read_certificate(pair.cert_file), context))

    def choose(connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        if name:
            for certificate, context in choices:
                if names_host(certificate, name):
                    connection.context = context
                    return

    return choose


def _fault(tls: TlsOptions, text: str) -> ConfigError:
    return ConfigError(text, *tls.place)
