"""Names in certificates: as they are shown, and which user they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from streamd.net.tls.certificate_users import CertificateUsers, parse_dn
from streamd.net.tls.certificates import covers_host, read_der
from streamd.net.tls.distinguished_names import subject_of
from streamd.net.tls.facts import PeerCertificate
from tests.certificates import Authority


def facts(directory: Path, subject: str, *names: x509.GeneralName) -> PeerCertificate:
    pair = Authority(directory).issue("x", subject, names)
    return read_der(pair.certificate.public_bytes(Encoding.DER))


EMAIL = x509.RFC822Name("carol@x.io")
HOST = x509.DNSName("carol.x.io")
URI = x509.UniformResourceIdentifier("spiffe://x/carol")


@pytest.mark.parametrize(
    ("subject", "names", "users", "expected"),
    [
        ("CN=c", (HOST, EMAIL, URI), ["carol.x.io", "carol@x.io"], "carol@x.io"),
        ("CN=c", (URI, HOST), ["spiffe://x/carol", "carol.x.io"], "carol.x.io"),
        ("CN=c", (URI,), ["spiffe://x/carol"], "spiffe://x/carol"),
        ("CN=c", (EMAIL,), ["CN=c"], "CN=c"),  # a name of nobody falls through
        ("O=Acme,OU=eng,CN=carol", (), ["CN=carol,OU=eng,O=Acme"], "CN=carol,OU=eng,O=Acme"),
        ("O=Acme,OU=eng,CN=carol", (), ["cn=carol, ou=eng, o=Acme"], "cn=carol, ou=eng, o=Acme"),
        ("O=Acme,OU=eng,CN=carol", (), ["O=Acme,CN=carol,OU=eng"], "O=Acme,CN=carol,OU=eng"),
        (
            "CN=carol,DC=x,DC=io",
            (),
            ["CN=carol,DC=x,DC=io", "DC=io,DC=x,CN=carol"],
            "DC=io,DC=x,CN=carol",
        ),
        ("OU=a+CN=carol", (), ["CN=carol+OU=a"], "CN=carol+OU=a"),
        ("CN=carol", (), ["carol"], None),
        ("CN=carol,O=Acme", (), ["CN=carol"], None),
        ("CN=carol", (), ["CN=carol,O=Acme"], None),
        ("CN=carol", (), ["CN=Carol"], None),
    ],
)
def test_a_certificate_names_a_user(
    tmp_path: Path,
    subject: str,
    names: tuple[x509.GeneralName, ...],
    users: list[str],
    expected: str | None,
) -> None:
    """Persons, hosts, other names; then the subject, in its order before any; never a bare CN."""
    assert CertificateUsers(users).find(facts(tmp_path, subject, *names)) == expected


def test_subjects_are_shown_as_go_shows_them() -> None:
    """Sorted by type, equal types joined, escapes, and types without a name by their number."""

    def shown(*attributes: tuple[x509.ObjectIdentifier, str]) -> str:
        name = x509.Name([x509.NameAttribute(oid, value) for oid, value in attributes])
        return subject_of(name).text

    cn, org, unit = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME
    assert shown((cn, "carol"), (unit, "eng"), (org, "Acme")) == "CN=carol,OU=eng,O=Acme"
    assert shown((unit, "a"), (org, "Acme"), (unit, "b")) == "OU=a+OU=b,O=Acme"
    assert shown((cn, ' a, "b"+#c')) == r"CN=\ a\, \"b\"\+#c"
    assert shown((cn, "#a")) == r"CN=\#a"
    domain = NameOID.DOMAIN_COMPONENT
    assert shown((domain, "io"), (domain, "x"), (cn, "c")) == (
        "CN=c,0.9.2342.19200300.100.1.25=#130178,0.9.2342.19200300.100.1.25=#1302696f"
    )
    assert shown((NameOID.GIVEN_NAME, "é")) == "2.5.4.42=#0c02c3a9"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("CN=a", (frozenset({("CN", "a")}),)),
        (" cn = a ", (frozenset({("CN", "a")}),)),
        ("CN=a, O=b", (frozenset({("CN", "a")}), frozenset({("O", "b")}))),
        ("CN=a+OU=b", (frozenset({("CN", "a"), ("OU", "b")}),)),
        (r"CN=a\,b", (frozenset({("CN", "a,b")}),)),
        (r"CN=a\ ", (frozenset({("CN", "a ")}),)),
        (r"CN=a\41", (frozenset({("CN", "aA")}),)),
        ("carol", None),
        ("", None),
        ("CN=a,carol", None),
        ("=a", None),
    ],
)
def test_a_users_name_may_be_a_distinguished_name(
    text: str, expected: tuple[frozenset[tuple[str, str]], ...] | None
) -> None:
    """Spaces around types and values count nothing, escapes do."""
    assert parse_dn(text) == expected


def test_hosts_are_covered_by_a_wildcard_for_one_label() -> None:
    """As a dialer checks them."""
    assert covers_host(["*.x.io"], "a.X.io") and covers_host(["a.x.io"], "a.x.io.")
    assert not covers_host(["*.x.io"], "x.io")
    assert not covers_host(["*.x.io"], "b.a.x.io")
    assert not covers_host(["*"], "a")
