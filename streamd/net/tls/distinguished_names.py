"""Subjects of certificates as Go prints them: sorted by type, whatever their order."""

from __future__ import annotations

from typing import Any, Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from streamd.net.tls.facts import Dn, Subject

_NAMES: Final = {
    NameOID.COUNTRY_NAME: "C",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.POSTAL_CODE: "POSTALCODE",
    NameOID.COMMON_NAME: "CN",
    NameOID.SERIAL_NUMBER: "SERIALNUMBER",
}
"""Attributes that Go knows, in the order in which it encodes them; text has the reverse order."""

_SINGLE: Final = (NameOID.COMMON_NAME, NameOID.SERIAL_NUMBER)
_ESCAPED: Final = ',+"\\<>;'
_PRINTABLE: Final = frozenset(
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 '()+,-./:=?"
)


def subject_of(name: x509.Name) -> Subject:
    """Return the forms of a certificate's subject."""
    known: list[list[tuple[str, str]]] = []
    for oid, kind in _NAMES.items():
        values = [_text(attribute) for attribute in name.get_attributes_for_oid(oid)]
        if values:
            known.append([(kind, value) for value in (values[-1:] if oid in _SINGLE else values)])
    parts = ["+".join(f"{kind}={_escape(value)}" for kind, value in rdn) for rdn in reversed(known)]
    others = [_unknown(attribute) for attribute in name if attribute.oid not in _NAMES]
    domain = [_text(a) for a in name.get_attributes_for_oid(NameOID.DOMAIN_COMPONENT)]
    return Subject(
        text=",".join([*parts, *reversed(others)]),
        known_text=",".join(parts),
        dn=_dn(name),
        domain_components=",".join(f"DC={value}" for value in domain),
    )


def _dn(name: x509.Name) -> Dn | None:
    rdns = []
    for rdn in reversed(name.rdns):
        pairs = set()
        for attribute in rdn:
            is_domain = attribute.oid == NameOID.DOMAIN_COMPONENT
            kind = "DC" if is_domain else _NAMES.get(attribute.oid)
            if kind is None:
                return None
            pairs.add((kind, _text(attribute)))
        rdns.append(frozenset(pairs))
    return tuple(rdns)


def _text(attribute: x509.NameAttribute[Any]) -> str:
    value = attribute.value
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _escape(value: str) -> str:
    last = len(value) - 1
    escaped = []
    for at, char in enumerate(value):
        is_edge = char == " " and at in (0, last)
        if char in _ESCAPED or is_edge or (char == "#" and at == 0):
            escaped.append("\\")
        escaped.append(char)
    return "".join(escaped)


def _unknown(attribute: x509.NameAttribute[Any]) -> str:
    """Return an attribute whose type has no name: its number and the value's DER, as Go has it."""
    value = _text(attribute)
    tag = 0x13 if set(value) <= _PRINTABLE else 0x0C
    data = value.encode()
    if len(data) < 0x80:
        length = bytes((len(data),))
    else:
        size = len(data).to_bytes((len(data).bit_length() + 7) // 8, "big")
        length = bytes((0x80 | len(size),)) + size
    return f"{attribute.oid.dotted_string}=#{(bytes((tag,)) + length + data).hex()}"
