"""Facts about certificates: names, fingerprints, ends."""

from __future__ import annotations

import datetime
import hashlib
import ssl
from collections.abc import Callable, Collection
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from streamd.config.tls_options import TlsOptions
from streamd.net.tls.distinguished_names import subject_of
from streamd.net.tls.facts import PeerCertificate


def peer_certificates(tls: ssl.SSLObject) -> tuple[PeerCertificate, ...]:
    """Return the certificates that the other side showed, its own one first. Raises ValueError."""
    if tls.getpeercert(binary_form=True) is None:
        return ()
    return tuple(map(read_der, _chain(tls)))


def _chain(tls: ssl.SSLObject) -> list[bytes]:
    public: Callable[[], list[bytes]] | None = getattr(tls, "get_unverified_chain", None)
    if public is not None:  # Python 3.13
        return public()
    inner: Any = getattr(tls, "_sslobj", None)
    if hasattr(inner, "get_unverified_chain"):
        return [ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in
                inner.get_unverified_chain()]  # fmt: skip
    own = tls.getpeercert(binary_form=True)
    return [own] if own is not None else []


def read_der(der: bytes) -> PeerCertificate:
    """Return the facts of one certificate. Raises ValueError."""
    certificate = x509.load_der_x509_certificate(der)
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    names = _alternative_names(certificate)
    hosts = tuple(names.get_values_for_type(x509.DNSName)) if names is not None else ()
    every: list[str] = []
    if names is not None:
        every += names.get_values_for_type(x509.RFC822Name)
        every += hosts
        every += names.get_values_for_type(x509.UniformResourceIdentifier)
    return PeerCertificate(
        subject_of(certificate.subject),
        tuple(every),
        hosts,
        hashlib.sha256(key).hexdigest(),
        hashlib.sha256(der).hexdigest(),
        der,
    )


def read_certificate(path: str) -> x509.Certificate:
    """Return the first certificate of a PEM file. Raises OSError, ValueError."""
    with open(path, "rb") as file:
        return x509.load_pem_x509_certificate(file.read())


def names_host(certificate: x509.Certificate, host: str) -> bool:
    """Return True if a DNS name of the certificate is `host`, or a wildcard for it."""
    names = _alternative_names(certificate)
    return names is not None and covers_host(names.get_values_for_type(x509.DNSName), host)


def covers_host(names: Collection[str], host: str) -> bool:
    """Return True if one of `names` is `host`, or a wildcard for its first label."""
    host = host.lower().rstrip(".")
    _, _, domain = host.partition(".")
    wanted = {host, f"*.{domain}"} if domain else {host}
    return any(name.lower() in wanted for name in names)


def earliest_end(tls: TlsOptions) -> datetime.datetime | None:
    """Return when the first of a block's own certificates expires; None: there is none that can
    be read."""
    ends = []
    for pair in tls.certificates:
        try:
            ends.append(read_certificate(pair.cert_file).not_valid_after_utc)
        except (OSError, ValueError):
            continue
    return min(ends, default=None)


def _alternative_names(certificate: x509.Certificate) -> x509.SubjectAlternativeName | None:
    try:
        kind = x509.SubjectAlternativeName
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
