"""The exchange by which servers show each other that they know the cluster's password."""

from __future__ import annotations

import random

import pytest

from streamd.protocol import route_proof
from streamd.protocol.route_proof import Exchange, Proofs, stretched

_dice = random.Random(7)


def side(password: str, *, is_dialer: bool, username: str = "route") -> Exchange:
    drawn = _dice.getrandbits(route_proof.SECRET_BITS)
    return stretched(username, password).begin(is_dialer=is_dialer, random=drawn)


def meet(dialer: Exchange, acceptor: Exchange) -> tuple[Proofs, Proofs]:
    """What each side makes of the other's share."""
    hellos = b"dialer" + dialer.share, b"acceptor" + acceptor.share
    theirs, ours = dialer.proofs(acceptor.share, *hellos), acceptor.proofs(dialer.share, *hellos)
    assert theirs is not None and ours is not None
    return theirs, ours


def test_both_come_to_one_key_by_one_password() -> None:
    """And to another one on each link, with another proof for each role."""
    found = set()
    for _ in range(3):
        dialer, acceptor = side("p", is_dialer=True), side("p", is_dialer=False)
        theirs, ours = meet(dialer, acceptor)
        assert theirs == ours and theirs.dialer != theirs.acceptor
        found |= set(theirs)
    assert len(found) == 6


@pytest.mark.parametrize(("username", "password"), [("route", "q"), ("other", "p"), ("route", "")])
def test_another_password_or_user_comes_to_another_key(username: str, password: str) -> None:
    """The proof of neither side tells the other anything but that."""
    dialer = side(password, is_dialer=True, username=username)
    theirs, ours = meet(dialer, side("p", is_dialer=False))
    assert not set(theirs) & set(ours)


def test_a_proof_covers_all_that_was_said() -> None:
    """Names, cluster and nonces are in the HELLO frames; where one ends the other may not begin."""
    dialer, acceptor = side("p", is_dialer=True), side("p", is_dialer=False)
    found = {
        proofs
        for one, other in ((b"x", b"yz"), (b"xy", b"z"), (b"yz", b"x"), (b"X", b"yz"))
        if (proofs := dialer.proofs(acceptor.share, one, other)) is not None
    }
    assert len(found) == 4


def test_a_share_cannot_be_sent_back() -> None:
    """Roles are blinded differently: who echoes what it is told comes to no key that it knows."""
    dialer = side("p", is_dialer=True)
    hellos = b"1", b"2"
    echoed = dialer.proofs(dialer.share, *hellos)
    twin = side("p", is_dialer=False).proofs(dialer.share, *hellos)
    assert echoed != twin


@pytest.mark.parametrize(
    "share",
    [
        b"", b"x", bytes(256), bytes(255) + b"\x01", b"\xff" * 256, bytes(256) + b"\x02",
        (route_proof._P - 1).to_bytes(256, "big"), route_proof._P.to_bytes(256, "big"),
    ],
)  # fmt: skip
def test_what_is_no_share_gives_no_proof(share: bytes) -> None:
    """Powers of 0, 1 and -1 are known without any password."""
    assert side("p", is_dialer=False).proofs(share, b"1", b"2") is None


def test_the_group_is_what_it_should_be() -> None:
    """Its order is twice a prime, 2 and both blinding points generate the prime part, and the
    points differ. (Fermat's test, to four bases.)"""
    p, q = route_proof._P, (route_proof._P - 1) // 2
    assert p.bit_length() == 2048
    assert all(pow(base, n - 1, n) == 1 for n in (p, q) for base in (2, 3, 5, 7))
    points = {route_proof._G, route_proof._point(b"dialer"), route_proof._point(b"acceptor")}
    assert len(points) == 3 and all(pow(point, q, p) == 1 for point in points)


def test_a_password_is_stretched_once() -> None:
    """A link costs some milliseconds, not the time that a guess is to cost."""
    assert stretched("u", "p") is stretched("u", "p")
