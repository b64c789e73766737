"""The handshake of a link without sockets: who is let in, and what each side proves first."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.net.route.handshake import Handshake
from streamd.protocol import peer_frames
from streamd.protocol.peer_frames import Frame, ProtocolError


def facts(name: str, **changes: Any) -> dict[str, Any]:
    known = {"name": name, "boot": name * 3, "host": "", "port": 6222, "id": f"N{name}"}
    return known | changes


def read(data: bytes) -> Frame:
    (frame,) = peer_frames.FrameReader().feed(data)
    return frame


def met(dialer_key: bytes = b"k", acceptor_key: bytes = b"k") -> tuple[Handshake, Handshake]:
    """Both ends after their HELLOs."""
    dialer = Handshake(dialer_key, is_dialer=True)
    acceptor = Handshake(acceptor_key, is_dialer=False)
    acceptor.on_hello(read(dialer.hello(facts("a"))), "10.0.0.1")
    dialer.on_hello(read(acceptor.hello(facts("b", host="b.example"))), "10.0.0.2")
    dialer.begin_proofs()
    acceptor.begin_proofs()
    return dialer, acceptor


def test_both_ends_learn_and_prove_each_other() -> None:
    dialer, acceptor = met()
    assert (dialer.name, dialer.address) == ("b", ("b.example", 6222))
    assert (acceptor.name, acceptor.boot, acceptor.server_id) == ("a", "aaa", "Na")
    assert acceptor.address == ("10.0.0.1", 6222)  # it did not say where: where it came from
    assert dialer.is_proof_due and acceptor.is_proof_due
    assert dialer.on_proof(read(acceptor.proof())[1])
    assert acceptor.on_proof(read(dialer.proof())[1])
    assert dialer.is_proven and acceptor.is_proven
    assert not dialer.is_proof_due and not acceptor.is_proof_due


def test_another_password_proves_nothing() -> None:
    dialer, acceptor = met(acceptor_key=b"other")
    assert not dialer.on_proof(read(acceptor.proof())[1]) and not dialer.is_proven
    assert not acceptor.on_proof(read(dialer.proof())[1]) and not acceptor.is_proven


def test_a_proof_is_good_for_one_link_and_one_role() -> None:
    dialer, acceptor = met()
    assert not acceptor.on_proof(read(acceptor.proof())[1])  # sent back to where it came from
    _, another = met()  # the same two servers, the same password
    assert not dialer.on_proof(read(another.proof())[1])


def test_no_proof_is_due_before_the_hellos() -> None:
    assert not Handshake(b"", is_dialer=False).is_proof_due


@pytest.mark.parametrize(
    "change", [{"name": ""}, {"name": 5}, {"name": "n" * 256}, {"port": "6222"}, {"boot": None}]
)
def test_a_hello_without_an_identity_is_a_fault(change: dict[str, Any]) -> None:
    stranger = Handshake(b"", is_dialer=True)
    frame = read(stranger.hello(facts("a") | change))
    with pytest.raises(ProtocolError):
        Handshake(b"", is_dialer=False).on_hello(frame, "10.0.0.1")
