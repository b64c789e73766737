"""Contexts of `tls` blocks: what they accept and show, and the errors of their files."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509

from streamd.config.tls_options import CertificatePair, TlsOptions
from streamd.errors import ConfigError
from streamd.net.tls.ssl_contexts import client_context, server_context
from tests.certificates import Authority, Pair


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def options(*pairs: Pair, **others: object) -> TlsOptions:
    certificates = tuple(CertificatePair(pair.cert, pair.key) for pair in pairs)
    return TlsOptions(certificates, place=("t.conf", 3, 1), **others)  # type: ignore[arg-type]


def handshake(
    server: ssl.SSLContext, client: ssl.SSLContext, name: str = "localhost"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Shake hands in memory, and exchange a byte; return the server's end and the client's."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        server.wrap_bio(to_server, to_client, server_side=True),
        client.wrap_bio(to_client, to_server, server_hostname=name),
    )
    done = dict.fromkeys(ends, False)
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
                done[end] = True
            except ssl.SSLWantReadError:
                pass
    assert all(done.values())
    ends[1].write(b"x")
    assert ends[0].read(1) == b"x"
    return ends


def client_of(authority: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.cert)
    if pair is not None:
        context.load_cert_chain(pair.cert, pair.key)
    return context


def test_both_sides_of_the_same_options_understand_each_other(authority: Authority) -> None:
    """TLS 1.3, without a question for the client's certificate."""
    tls = options(authority.issue("server"), ca_file=authority.cert)
    server, client = handshake(server_context(tls), client_context(tls))
    assert server.version() == client.version() == "TLSv1.3"
    assert server.getpeercert(binary_form=True) is None


def test_verify_asks_for_a_certificate_of_the_authority(
    authority: Authority, tmp_path: Path
) -> None:
    """One of another authority, an expired one and none are not accepted."""
    server = server_context(
        options(authority.issue("server"), ca_file=authority.cert, is_verifying=True)
    )
    good = authority.issue("good", "CN=carol")
    ends = handshake(server, client_of(authority, good))
    shown = ends[0].getpeercert(binary_form=True)
    assert shown is not None and x509.load_der_x509_certificate(shown) == good.certificate
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").issue("client")
    expired = authority.issue("expired", days=-1)
    for pair in (stranger, expired, None):
        with pytest.raises(ssl.SSLError):
            handshake(server, client_of(authority, pair))


def test_a_certificate_that_the_file_names_is_trusted_whoever_signed_it(
    authority: Authority,
) -> None:
    """As in nats-server: the file may list certificates one by one."""
    client = authority.issue("client")
    server = server_context(
        options(authority.issue("server"), ca_file=client.cert, is_verifying=True)
    )
    handshake(server, client_of(authority, client))
    with pytest.raises(ssl.SSLError):
        handshake(server, client_of(authority, authority.issue("other")))


def test_min_version_and_suites_bound_what_is_spoken(authority: Authority) -> None:
    """A client of TLS 1.2 is turned away by 1.3, and has the suite that is named."""
    pair = authority.issue("server", is_rsa=True)
    old = client_of(authority)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        handshake(server_context(options(pair, min_version="1.3")), old)
    suite = "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA"
    old.set_ciphers("ECDHE-RSA-AES128-SHA:ECDHE-RSA-AES256-SHA")
    ends = handshake(server_context(options(pair, cipher_suites=(suite,))), old)
    assert ends[0].cipher() == ("ECDHE-RSA-AES256-SHA", "TLSv1.0", 256)
    with pytest.raises(ssl.SSLError):  # only suites of 1.3: no other version
        only_new = options(pair, cipher_suites=("TLS_AES_128_GCM_SHA256",))
        handshake(server_context(only_new), old)


def test_a_client_cannot_have_the_handshake_made_again(authority: Authority) -> None:
    """Each would take the loop for a millisecond, and more than one client may ask all the time."""
    context = server_context(options(authority.issue("server")))
    assert context.options & ssl.OP_NO_RENEGOTIATION


def test_one_curve_is_the_only_one(authority: Authority) -> None:
    """A client that has only another one is turned away."""
    client = client_of(authority)
    client.set_ecdh_curve("prime256v1")
    pair = authority.issue("server")
    handshake(server_context(options(pair, curves=("CurveP256",))), client)
    with pytest.raises(ssl.SSLError):
        handshake(server_context(options(pair, curves=("CurveP384",))), client)


def test_the_certificate_is_chosen_by_the_name_that_is_asked_for(authority: Authority) -> None:
    """Exact names, wildcards for one label, and the first pair for all else."""
    names = {"a": "a.test", "b": "*.b.test"}
    pairs = {
        key: authority.issue(key, f"CN={key}", [x509.DNSName(name)]) for key, name in names.items()
    }
    server = server_context(options(pairs["a"], pairs["b"]))
    client = client_of(authority)
    client.check_hostname = False
    for asked, expected in {
        "a.test": "a",
        "x.b.test": "b",
        "X.B.test": "b",
        "y.x.b.test": "a",
        "c.test": "a",
    }.items():
        ends = handshake(server, client, asked)
        shown = ends[1].getpeercert(binary_form=True)
        assert shown is not None
        assert x509.load_der_x509_certificate(shown) == pairs[expected].certificate, asked


def test_without_a_certificate_every_handshake_fails(authority: Authority) -> None:
    """The block is legal all the same."""
    with pytest.raises(ssl.SSLError):
        handshake(server_context(TlsOptions()), client_of(authority))


def _garbage(pair: Pair) -> TlsOptions:
    Path(pair.cert).write_text("nothing")
    return options(pair)


def _swapped(pair: Pair) -> TlsOptions:
    return TlsOptions((CertificatePair(pair.cert, pair.cert),))


def _gone(pair: Pair) -> TlsOptions:
    return TlsOptions((CertificatePair("/no.pem", pair.key),))


def _no_authority(pair: Pair) -> TlsOptions:
    return options(pair, ca_file=pair.key)


def _authority_gone(pair: Pair) -> TlsOptions:
    return options(pair, ca_file="/no.pem")


def _no_such_cipher(pair: Pair) -> TlsOptions:
    return options(pair, cipher_suites=("TLS_RSA_WITH_RC4_128_SHA",))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (_gone, "error parsing X509 certificate/key pair: open /no.pem: no such file or directory"),
        (
            _swapped,
            "error parsing X509 certificate/key pair: tls: found a certificate rather than a key"
            " in the PEM for the private key",
        ),
        (
            _garbage,
            "error parsing X509 certificate/key pair: tls: failed to find any PEM data in"
            " certificate input",
        ),
        (_no_authority, "failed to parse root ca certificate"),
        (_authority_gone, "open /no.pem: no such file or directory"),
        (_no_such_cipher, "cipher TLS_RSA_WITH_RC4_128_SHA: "),
    ],
)
def test_files_that_do_not_serve_are_named(
    authority: Authority, make: Callable[[Pair], TlsOptions], text: str
) -> None:
    """In nats-server's words."""
    with pytest.raises(ConfigError) as caught:
        server_context(make(authority.issue("server")))
    assert caught.value.text.startswith(text)


def test_a_key_of_another_certificate_is_refused_with_the_place_of_its_block(
    authority: Authority,
) -> None:
    """Where the operator has to look."""
    one, other = authority.issue("one"), authority.issue("other")
    with pytest.raises(ConfigError) as caught:
        server_context(options(one._replace(key=other.key)))
    assert str(caught.value) == (
        "t.conf:3:1: error parsing X509 certificate/key pair: tls: private key does not match"
        " public key"
    )
