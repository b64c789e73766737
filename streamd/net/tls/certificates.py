"""Facts about certificates: names, fingerprints, ends."""

from __future__ import annotations

from cryptography import x509


def read_certificate(path: str) -> x509.Certificate:
    """Return the first certificate of a PEM file. Raises OSError, ValueError."""
    with open(path, "rb") as file:
        return x509.load_pem_x509_certificate(file.read())


def names_host(certificate: x509.Certificate, host: str) -> bool:
    """Return True if a DNS name of the certificate is `host`, or a wildcard for it."""
    host = host.lower().rstrip(".")
    _, _, domain = host.partition(".")
    wanted = {host, f"*.{domain}"} if domain else {host}
    return any(name.lower() in wanted for name in dns_names(certificate))


def dns_names(certificate: x509.Certificate) -> list[str]:
    """Return the DNS names among the certificate's alternative names."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return names.value.get_values_for_type(x509.DNSName)
