"""Reader of a `tls` block, the same for all listeners. Error texts are nats-server's."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from streamd.config.cipher_suites import INSECURE_SUITES, SECURE_SUITES, TLS_1_3_SUITES
from streamd.config.grammar import Value
from streamd.config.key_blocks import KeyBlocks, Unserved, put_in, words
from streamd.config.tls_options import (
    FIRST_BYTE_DELAY_NS,
    TLS_TIMEOUT_S,
    CertificatePair,
    TlsOptions,
)
from streamd.config.values import plain_text
from streamd.durations import SECOND_NS, parse_duration

_SECURE: Final = {*SECURE_SUITES, *TLS_1_3_SUITES}
_NIST_CURVES: Final = words("CurveP256 CurveP384 CurveP521")
_CURVES: Final = _NIST_CURVES | words("X25519 X25519MLKEM768 SecP256r1MLKEM768 SecP384r1MLKEM1024")
_OLD_VERSIONS: Final = words("1.0 1.1")
_VERSIONS: Final = words("1.2 1.3")
_PIN: Final = re.compile(r"[0-9A-Fa-f]{64}\Z")
_UNSERVED: Final = Unserved(
    protecting=words("ocsp_peer cert_match cert_match_by cert_match_skip_invalid ca_certs_match")
)


def read_tls(
    block: Value, blocks: KeyBlocks, path: str = "tls.", *, has_known_urls: bool = False
) -> TlsOptions:
    """Read the block `path`; `has_known_urls` says that its listener has configured peers.

    Raises ConfigError. Files are not looked at: that is for whoever makes a context of it.
    """
    if not isinstance(block.raw, dict):
        raise block.error(f'"{path.rstrip(".")}" must be a block, not {plain_text(block)!r}')
    return _TlsReader(block, blocks, path, has_known_urls).read()


class _TlsReader:
    """Reads one block; keeps what only makes sense as a whole until its end."""

    def __init__(self, block: Value, blocks: KeyBlocks, path: str, has_known_urls: bool) -> None:
        self._block = block
        self._blocks = blocks
        self._path = path
        self._has_known_urls = has_known_urls
        self._settings: dict[str, Any] = {}
        self._pair: dict[str, str] = {}
        self._allows_insecure = False

    def read(self) -> TlsOptions:
        settings = self._settings
        put = partial(put_in, settings)
        self._blocks.read(
            self._block,
            {
                "cert_file": put_in(self._pair, "cert_file", _file("cert_file")),
                "key_file": put_in(self._pair, "key_file", _file("key_file")),
                "certs|certificates": put("certificates", self._certificates),
                "ca_file": put("ca_file", _file("ca_file")),
                "verify": self._verify,
                "verify_and_map": self._verify_and_map,
                "verify_cert_and_check_known_urls": self._check_known_urls,
                "cipher_suites": put("cipher_suites", _suites),
                "allow_insecure_cipher_suites": self._allow_insecure,
                "curve_preferences": put("curves", self._curves),
                "min_version": put("min_version", _min_version),
                "timeout": put("timeout_s", _timeout_s),
                "connection_rate_limit": put("connections_per_s_max", _rate),
                "pinned_certs": put("pinned_certs", _pins),
                "handshake_first|first|immediate": self._handshake_first,
                "insecure": put("is_insecure", _flag("insecure")),
                "cert_store": _no_cert_store,
            },
            self._path,
            _UNSERVED,
        )
        self._settle()
        block = self._block
        return TlsOptions(**settings, place=(block.file, block.line, block.col))

    def _settle(self) -> None:
        settings, pair, block = self._settings, self._pair, self._block
        if pair and settings.get("certificates"):
            raise block.error(
                "error parsing tls config, cannot combine 'cert_file' option with 'certs' option"
            )
        for one, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
            if pair.get(one) and not pair.get(other):
                raise block.error(f"missing '{other}' in TLS configuration")
        if pair.get("cert_file"):
            settings["certificates"] = (CertificatePair(pair["cert_file"], pair["key_file"]),)
        insecure = [name for name in settings.get("cipher_suites", ()) if name in INSECURE_SUITES]
        if insecure and not self._allows_insecure:
            raise block.error(
                "insecure cipher suites configured without 'allow_insecure_cipher_suites' option"
                f" set: {', '.join(insecure)}"
            )

    def _verify(self, value: Value) -> None:
        # The other two ask for it as well, whatever comes first.
        if _flag("verify")(value):
            self._settings["is_verifying"] = True

    def _verify_and_map(self, value: Value) -> None:
        if _flag("verify_and_map")(value):
            self._settings["is_verifying"] = self._settings["is_mapping"] = True

    def _check_known_urls(self, value: Value) -> None:
        if not _flag("verify_cert_and_check_known_urls")(value):
            return
        if not self._has_known_urls:
            raise value.error("verify_cert_and_check_known_urls not supported in this context")
        self._settings["is_verifying"] = self._settings["checks_known_urls"] = True

    def _allow_insecure(self, value: Value) -> None:
        self._allows_insecure = _flag("allow_insecure_cipher_suites")(value)

    def _certificates(self, value: Value) -> tuple[CertificatePair, ...]:
        if not isinstance(value.raw, list):
            raise _wrong_certificates(value)
        return tuple(self._certificate(entry) for entry in value.raw)

    def _certificate(self, entry: Value) -> CertificatePair:
        if not isinstance(entry.raw, dict):
            raise _wrong_certificates(entry)
        found: dict[str, str] = {}
        self._blocks.read(
            entry,
            {name: put_in(found, name, _file(name)) for name in CertificatePair._fields},
            f"{self._path}certs.",
        )
        if not found.get("cert_file") or not found.get("key_file"):
            raise entry.error(
                "error parsing certificates config: both 'cert_file' and 'cert_key' options are"
                " required"
            )
        return CertificatePair(**found)

    def _curves(self, value: Value) -> tuple[str, ...]:
        names = _names(value, "curve_preferences")
        for name, at in names:
            if name not in _CURVES:
                raise at.error(f"unrecognized curve preference {name}")
        curves = tuple(name for name, _ in names)
        if len(set(curves)) != 1 or curves[0] not in _NIST_CURVES:
            # Python's ssl can be told one curve, and only of these.
            self._blocks.refuse(
                value,
                f'"{value.key}": {", ".join(curves)} is not served by this version: give one of'
                f" {', '.join(sorted(_NIST_CURVES))}, or leave it out",
            )
            return ()
        return curves

    def _handshake_first(self, value: Value) -> None:
        settings, raw = self._settings, value.raw
        name = value.key.removeprefix(self._path)
        delay_ns = 0
        if isinstance(raw, str) and raw.lower() == "auto":
            raw, delay_ns = True, FIRST_BYTE_DELAY_NS
        elif isinstance(raw, str):
            found = parse_duration(raw)
            if found is None:
                raise value.error(f'field "{name}"\'s value "{raw}" is invalid')
            raw, delay_ns = True, max(0, found)
        if not isinstance(raw, bool):
            raise value.error(
                f'field "{name}" should be a boolean or a string, got {plain_text(value)}'
            )
        settings["is_first"], settings["first_delay_ns"] = raw, delay_ns


def _wrong_certificates(value: Value) -> Exception:
    return value.error(
        "error parsing certificates config: it must be a list of blocks with 'cert_file' and"
        f" 'key_file', not {plain_text(value)}"
    )


def _no_cert_store(value: Value) -> None:
    raise value.error("cert_store not compatible with current operating system")


def _file(name: str) -> Callable[[Value], str]:
    def convert(value: Value) -> str:
        if not isinstance(value.raw, str):
            raise value.error(f"error parsing tls config, expected '{name}' to be filename")
        return value.raw

    return convert


def _flag(name: str) -> Callable[[Value], bool]:
    def convert(value: Value) -> bool:
        if not isinstance(value.raw, bool):
            raise value.error(f"error parsing tls config, expected '{name}' to be a boolean")
        return value.raw

    return convert


def _names(value: Value, name: str) -> list[tuple[str, Value]]:
    """Return the names in a list that must have some, each with its place."""
    if not isinstance(value.raw, list):
        raise value.error(f"error parsing tls config, expected '{name}' to be a list of names")
    if not value.raw:
        raise value.error(f"error parsing tls config, '{name}' cannot be empty")
    return [(plain_text(entry), entry) for entry in value.raw]


def _suites(value: Value) -> tuple[str, ...]:
    names = _names(value, "cipher_suites")
    for name, at in names:
        if name not in _SECURE and name not in INSECURE_SUITES:
            raise at.error(f"unrecognized cipher {name}")
    return tuple(name for name, _ in names)


def _min_version(value: Value) -> str:
    raw = value.raw
    if not isinstance(raw, str):
        raise value.error(
            f"error parsing tls config: 'min_version' wrong type: {plain_text(value)}"
        )
    if raw in _OLD_VERSIONS:
        raise value.error(f"error parsing tls config: unsupported TLS version: TLS {raw}")
    if raw not in _VERSIONS:
        raise value.error(f"error parsing tls config: unknown version: {raw}")
    return raw


def _timeout_s(value: Value) -> float:
    raw = value.raw
    if isinstance(raw, str):
        ns = parse_duration(raw)
        if ns is None:
            raise value.error(
                f"error parsing tls config, 'timeout' time: invalid duration \"{raw}\""
            )
        return ns / SECOND_NS or TLS_TIMEOUT_S
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        raise value.error("error parsing tls config, 'timeout' wrong type")
    return float(raw) or TLS_TIMEOUT_S


def _rate(value: Value) -> int:
    if isinstance(value.raw, bool) or not isinstance(value.raw, int):
        raise value.error("error parsing tls config, 'connection_rate_limit' wrong type")
    return max(0, value.raw)


def _pins(value: Value) -> frozenset[str]:
    what = "hex-encoded sha256 of DER encoded SubjectPublicKeyInfo"
    if not isinstance(value.raw, list):
        raise value.error(
            f"error parsing tls config, expected 'pinned_certs' to be a list of {what}"
        )
    pins: list[str] = []
    for entry in value.raw:
        if not isinstance(entry.raw, str) or not _PIN.match(entry.raw):
            raise entry.error(
                f"error parsing tls config, 'pinned_certs' key {plain_text(entry)} does not look"
                f" like {what}"
            )
        pins.append(entry.raw.lower())
    return frozenset(pins)
