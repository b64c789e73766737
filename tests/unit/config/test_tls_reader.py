"""The `tls` block: every key, and the texts of its errors, which are nats-server's."""

from __future__ import annotations

import pytest

from streamd.config.grammar import parse
from streamd.config.key_blocks import KeyBlocks
from streamd.config.options import Options
from streamd.config.tls_options import CertificatePair, TlsOptions
from streamd.config.tls_reader import read_tls
from streamd.errors import ConfigError

PAIR = "cert_file: c.pem, key_file: k.pem"
PIN = "ab" * 32


def tls(members: str, options: Options | None = None, **kind: bool) -> TlsOptions:
    block = parse(f"tls {{ {members} }}", "t.conf", environ={}).raw["tls"]
    return read_tls(block, KeyBlocks(options or Options()), **kind)


def test_every_key_reaches_its_option() -> None:
    """All that a listener may have, read back."""
    found = tls(
        f"""
        {PAIR}, ca_file: a.pem, verify: true, timeout: 3.5, connection_rate_limit: 7
        cipher_suites: [TLS_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA]
        curve_preferences: [CurveP384], min_version: "1.3", pinned_certs: ["{PIN.upper()}"]
        handshake_first: "300ms", insecure: true
        """
    )
    assert found == TlsOptions(
        certificates=(CertificatePair("c.pem", "k.pem"),),
        ca_file="a.pem",
        is_verifying=True,
        cipher_suites=("TLS_AES_128_GCM_SHA256", "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA"),
        curves=("CurveP384",),
        min_version="1.3",
        timeout_s=3.5,
        connections_per_s_max=7,
        pinned_certs=frozenset({PIN}),
        is_first=True,
        first_delay_ns=300_000_000,
        is_insecure=True,
    )
    assert found.place == ("t.conf", 1, 1)


def test_defaults_and_words() -> None:
    """A block may be empty; several pairs; what implies that the other side is verified."""
    assert tls("") == TlsOptions() == tls("cert_file: '', key_file: ''")
    pairs = tls("certs: [{cert_file: a, key_file: b}, {cert_file: c, key_file: d}]").certificates
    assert pairs == (("a", "b"), ("c", "d"))
    assert tls("certificates: []").certificates == ()
    assert tls("verify_and_map: true").is_verifying and tls("verify_and_map: true").is_mapping
    known = tls("verify_cert_and_check_known_urls: true", has_known_urls=True)
    assert known.is_verifying and known.checks_known_urls
    assert not tls("verify: false, verify_and_map: no").is_verifying
    assert tls("timeout: '1500ms'").timeout_s == 1.5 and tls("timeout: 0").timeout_s == 2.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("handshake_first: true", (True, 0)),
        ("first: on", (True, 0)),
        ("immediate: auto", (True, 50_000_000)),
        ("handshake_first: AUTO", (True, 50_000_000)),
        ("handshake_first: '1s'", (True, 10**9)),
        ("handshake_first: '0s'", (True, 0)),
        ("handshake_first: false", (False, 0)),
    ],
)
def test_handshake_first_takes_a_flag_a_word_or_a_duration(
    text: str, expected: tuple[bool, int]
) -> None:
    """(first at all, how long to wait for the client's first byte)"""
    found = tls(text)
    assert (found.is_first, found.first_delay_ns) == expected


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ("cert_file: c", "missing 'key_file' in TLS configuration"),
        ("key_file: c", "missing 'cert_file' in TLS configuration"),
        ("cert_file: 1", "error parsing tls config, expected 'cert_file' to be filename"),
        (
            PAIR + ", certs: [{cert_file: a, key_file: b}]",
            "error parsing tls config, cannot combine 'cert_file' option with 'certs' option",
        ),
        (
            "certs: [{cert_file: a}]",
            "error parsing certificates config: both 'cert_file' and 'cert_key' options are"
            " required",
        ),
        ("certs: 1", "error parsing certificates config: "),
        ("certs: [1 ]", "error parsing certificates config: "),
        (
            "verify_cert_and_check_known_urls: true",
            "verify_cert_and_check_known_urls not supported in this context",
        ),
        ("cipher_suites: [X]", "unrecognized cipher X"),
        ("cipher_suites: []", "error parsing tls config, 'cipher_suites' cannot be empty"),
        (
            "cipher_suites: [TLS_RSA_WITH_AES_128_CBC_SHA]",
            "insecure cipher suites configured without 'allow_insecure_cipher_suites' option set:"
            " TLS_RSA_WITH_AES_128_CBC_SHA",
        ),
        ("curve_preferences: [x]", "unrecognized curve preference x"),
        ("curve_preferences: []", "error parsing tls config, 'curve_preferences' cannot be empty"),
        ("min_version: '1.1'", "error parsing tls config: unsupported TLS version: TLS 1.1"),
        ("min_version: '1.4'", "error parsing tls config: unknown version: 1.4"),
        ("min_version: 1.2", "error parsing tls config: 'min_version' wrong type: 1.2"),
        ("timeout: blah", "error parsing tls config, 'timeout' time: invalid duration \"blah\""),
        ("timeout: true", "error parsing tls config, 'timeout' wrong type"),
        (
            "connection_rate_limit: x",
            "error parsing tls config, 'connection_rate_limit' wrong type",
        ),
        (
            "pinned_certs: [zz]",
            "error parsing tls config, 'pinned_certs' key zz does not look like hex-encoded sha256"
            " of DER encoded SubjectPublicKeyInfo",
        ),
        (
            "pinned_certs: zz",
            "error parsing tls config, expected 'pinned_certs' to be a list of hex-encoded sha256"
            " of DER encoded SubjectPublicKeyInfo",
        ),
        ("handshake_first: blah", 'field "handshake_first"\'s value "blah" is invalid'),
        ("first: 5", 'field "first" should be a boolean or a string, got 5'),
        ("verify: 1", "error parsing tls config, expected 'verify' to be a boolean"),
        ("insecure: 1", "error parsing tls config, expected 'insecure' to be a boolean"),
        ("foo: true", 'unknown field "foo"'),
        ("cert_store: x", "cert_store not compatible with current operating system"),
    ],
)
def test_a_mistake_is_named_with_its_place(members: str, text: str) -> None:
    """In nats-server's words."""
    with pytest.raises(ConfigError) as caught:
        tls(members)
    assert caught.value.text.startswith(text)
    assert caught.value.line == 1 and caught.value.file == "t.conf"


def test_insecure_suites_have_to_be_allowed() -> None:
    """On purpose, wherever in the block that stands."""
    suite = "TLS_RSA_WITH_AES_128_CBC_SHA"
    members = f"cipher_suites: [{suite}], allow_insecure_cipher_suites: true"
    assert tls(members).cipher_suites == (suite,)


@pytest.mark.parametrize(
    "members",
    [
        "curve_preferences: [X25519, CurveP256]",
        "curve_preferences: [X25519]",
        "curve_preferences: [X25519MLKEM768]",
        "curve_preferences: [SecP256r1MLKEM768]",
        "curve_preferences: [SecP384r1MLKEM1024, CurveP384]",
        "ocsp_peer: true",
        "ocsp_peer {}",
    ],
)
def test_what_the_library_cannot_do_is_refused_by_name(members: str) -> None:
    """Curves beyond one of NIST's, and stapled answers: not ignored, unless on purpose."""
    options = Options()
    tls(members, options)
    (problem,) = options.unserved
    assert "is not served by this version" in problem and problem.startswith("t.conf:1:")
    options = Options()
    tls("ocsp_peer: false", options)
    assert options.unserved == []
