"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)
_LOCAL: Sequence[x509.GeneralName] = (
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
)
_ATTRIBUTES = {
    "CN": NameOID.COMMON_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "DC": NameOID.DOMAIN_COMPONENT,
    "C": NameOID.COUNTRY_NAME,
    "L": NameOID.LOCALITY_NAME,
}


class Pair(NamedTuple):
    """Paths of a certificate and its key, and the certificate."""

    cert: str
    key: str
    certificate: x509.Certificate

    @property
    def block(self) -> str:
        """The pair as members of a `tls` block."""
        return f'cert_file: "{self.cert}", key_file: "{self.key}"'

    @property
    def pin(self) -> str:
        """The SHA-256 of the public key, as `pinned_certs` has it."""
        key = self.certificate.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        digest = hashes.Hash(hashes.SHA256())
        digest.update(key)
        return digest.finalize().hex()


class Authority:
    """A certificate authority whose files are in one directory."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _subject(f"CN={name}")
        self._certificate = self._sign(self._name, self._key, (), is_authority=True, days=3650)
        self.pair = self._save(name, self._certificate, self._key)

    @property
    def cert(self) -> str:
        """Path of the authority's own certificate."""
        return self.pair.cert

    def issue(
        self,
        file: str,
        subject: str = "CN=localhost",
        names: Sequence[x509.GeneralName] = _LOCAL,
        *,
        days: int = 365,
        is_rsa: bool = False,
    ) -> Pair:
        """Sign a certificate for a new key, saved as `file`; `subject` is `CN=x,O=y` in the order
        of the certificate, `+` joins attributes. Fewer than no days: it has expired."""
        key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey = (
            rsa.generate_private_key(65537, 2048)
            if is_rsa
            else ec.generate_private_key(ec.SECP256R1())
        )
        return self._save(file, self._sign(_subject(subject), key, names, days=days), key)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
        names: Sequence[x509.GeneralName],
        *,
        days: int,
        is_authority: bool = False,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * _DAY)
            .not_valid_after(now + days * _DAY)
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256())

    def _save(
        self,
        file: str,
        certificate: x509.Certificate,
        key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
    ) -> Pair:
        cert_path, key_path = self._directory / f"{file}.pem", self._directory / f"{file}-key.pem"
        cert_path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        key_path.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return Pair(str(cert_path), str(key_path), certificate)


def _subject(text: str) -> x509.Name:
    parts = []
    for part in text.split(",") if text else ():
        joined = (attribute.partition("=") for attribute in part.split("+"))
        parts.append(
            x509.RelativeDistinguishedName(
                [x509.NameAttribute(_ATTRIBUTES[kind], value) for kind, _, value in joined]
            )
        )
    return x509.Name(parts)
