"""Facts about a connection's TLS, as other rooms read them. Standard library only."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

Rdn: TypeAlias = frozenset[tuple[str, str]]
"""A relative distinguished name: pairs of type, in upper case, and value."""

Dn: TypeAlias = tuple[Rdn, ...]


class Subject(NamedTuple):
    """Subject of a certificate in its forms."""

    text: str  # as Go prints it: the attributes it does not know come last
    known_text: str  # without those
    dn: Dn | None  # the most special part first; None: it has attributes that nobody names
    domain_components: str  # `DC=a,DC=b`, in the order of the certificate


class PeerCertificate(NamedTuple):
    """A certificate that the other side showed."""

    subject: Subject
    names: tuple[str, ...]  # alternative ones: of persons, hosts and other things, in this order
    hosts: tuple[str, ...]  # those of hosts
    spki_sha256: str  # of the public key, in hex
    cert_sha256: str
    der: bytes = b""  # the certificate itself


class TlsFacts(NamedTuple):
    """A connection's TLS, as monitoring shows it, and the certificates of the other side."""

    version: str  # as in "1.3"
    cipher_suite: str
    certificates: tuple[PeerCertificate, ...]  # its own one first; empty: it showed none
    is_first: bool = False  # the handshake came before INFO
    is_verified: bool = False  # the certificates were checked against authorities


class TlsFault(NamedTuple):
    """Reason why there is no TLS on a connection."""

    text: str
    is_certificate: bool  # of one side: somebody has to do something about it
