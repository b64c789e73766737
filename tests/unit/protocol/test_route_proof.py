"""The proofs by which servers show each other that they know the cluster's password."""

from __future__ import annotations

import pytest

from streamd.protocol.route_proof import is_proof, proofs, stretched

KEY = stretched("route", "p")


def test_roles_and_links_have_proofs_of_their_own() -> None:
    """None can be sent back, and none is good for another link: both HELLO frames are in each, and
    where one ends the other may not begin."""
    links = [(b"x", b"yz"), (b"xy", b"z"), (b"yz", b"x"), (b"X", b"yz")]
    found = {proof for link in links for proof in proofs(KEY, *link)}
    assert len(found) == 2 * len(links)
    assert proofs(KEY, b"x", b"yz") == proofs(KEY, b"x", b"yz")


@pytest.mark.parametrize(("username", "password"), [("route", "q"), ("other", "p"), ("route", "")])
def test_another_password_or_user_gives_another_proof(username: str, password: str) -> None:
    """No password is a key of its own, too: it proves nothing to a side that has one."""
    other = proofs(stretched(username, password), b"1", b"2")
    assert not any(map(is_proof, other, proofs(KEY, b"1", b"2")))


def test_a_password_is_stretched_once() -> None:
    """A link costs no more than a digest; a guess costs a scrypt."""
    assert stretched("u", "p") is stretched("u", "p")
    assert len(KEY) == 32 and stretched("u", "") == b""
