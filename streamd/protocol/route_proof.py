"""How two servers show each other that they know the cluster's password: SPAKE2, sans-IO.

The threat model. Others can dial our port, can be dialed in the place of a peer (a name that leads
elsewhere, a gossiped address), can see what is sent and repeat it. They must not join, nor learn
anything with which passwords could be tried at home. With a plain proof, a digest over the password
and both nonces, whoever proves first hands out exactly that: the dialer to whoever is dialed, or
the acceptor to whoever dials. So nobody proves anything with the password itself:

* Each side sends a share that says nothing of the password: a random power, blinded by one that the
  password gives. Only with the same password do both come to one key (a password-authenticated key
  exchange, after RFC 9382, in the group of RFC 3526 number 14). Who guesses has to commit to one
  password for each connection, and learns no more than whether it was that one.
* The acceptor proves first. A stand-in for a peer gets no proof of the dialer's before it has shown
  that it knows the password. Who dials gets a proof of a key that it has itself blinded with its
  one guess.
* A proof covers both HELLO frames, hence names, cluster, process and nonce of both servers, and
  both shares: it is good for one link. Blinding and proof differ by role, so none can be sent back.
* The password is stretched (scrypt), once a process: whoever comes by what it gives, in another way
  than by this exchange, still pays for each guess. Comparing takes the same time for all.

What it does not do: what follows on the link is not encrypted, and who sits in the middle can cut
in after the handshake. That is what TLS is for. A cluster without a password proves nothing: there
a share is empty, and one side with a password refuses one without.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache
from typing import Final, NamedTuple

SECRET_BITS: Final = 256  # of the random exponent that each link draws

_SHARE_BYTES: Final = 256
_P: Final = int(
    "FFFFFFFFFFFFFFFFC90FDAA22168C234C4C6628B80DC1CD129024E088A67CC74"
    "020BBEA63B139B22514A08798E3404DDEF9519B3CD3A431B302B0A6DF25F1437"
    "4FE1356D6D51C245E485B576625E7EC6F44C42E9A637ED6B0BFF5CB6F406B7ED"
    "EE386BFB5A899FA5AE9F24117C4B1FE649286651ECE45B3DC2007CB8A163BF05"
    "98DA48361C55D39A69163FA8FD24CF5F83655D23DCA3AD961C62F356208552BB"
    "9ED529077096966D670C354E4ABC9804F1746C08CA18217C32905E462E36CE3B"
    "E39E772C180E86039B2783A2EC07A28FB5C55DF06F4C52C9DE2BCBF695581718"
    "3995497CEA956AE515D2261898FA051015728E5A8AACAA68FFFFFFFFFFFFFFFF",
    16,
)
_G: Final = 2  # a square modulo `_P`, so it generates the subgroup of prime order (P - 1) / 2


class Proofs(NamedTuple):
    """What each side sends, and what it expects of the other."""

    dialer: bytes
    acceptor: bytes


class RouteKey:
    """What the password gives: the blinding of either role. Made by `stretched`."""

    __slots__ = (
        "_secret",
        "_unblind_acceptor",
        "_unblind_dialer",
        "blind_acceptor",
        "blind_dialer",
    )

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        exponent = int.from_bytes(secret, "big")
        self.blind_dialer = pow(_point(b"dialer"), exponent, _P)
        self.blind_acceptor = pow(_point(b"acceptor"), exponent, _P)
        self._unblind_dialer = pow(self.blind_dialer, -1, _P)
        self._unblind_acceptor = pow(self.blind_acceptor, -1, _P)

    def begin(self, *, is_dialer: bool, random: int) -> Exchange:
        """Begin an exchange with a `random` number of SECRET_BITS that nobody else knows."""
        return Exchange(self, is_dialer, random)

    def unblinded(self, share: int, *, is_dialers: bool) -> int:
        """The random power behind a share, if it was made with this password."""
        return share * (self._unblind_dialer if is_dialers else self._unblind_acceptor) % _P

    def mixed(self, *parts: bytes) -> bytes:
        """One key of all that both sides have in common."""
        digest = hashlib.sha256()
        for part in (b"streamd route 2", self._secret, *parts):
            digest.update(len(part).to_bytes(8, "big") + part)
        return digest.digest()


class Exchange:
    """One side of one handshake."""

    __slots__ = ("_is_dialer", "_key", "_random", "share")

    def __init__(self, key: RouteKey, is_dialer: bool, random: int) -> None:
        assert random.bit_length() <= SECRET_BITS, random.bit_length()
        self._key = key
        self._is_dialer = is_dialer
        self._random = random
        blind = key.blind_dialer if is_dialer else key.blind_acceptor
        self.share = _bytes_of(pow(_G, random, _P) * blind % _P)  # for the other side

    def proofs(
        self, their_share: bytes, dialer_hello: bytes, acceptor_hello: bytes
    ) -> Proofs | None:
        """Return both sides' proofs, given what the other side sent; None: that is no share. The
        HELLO frames hold both shares."""
        value = int.from_bytes(their_share, "big")
        if len(their_share) != _SHARE_BYTES or not 1 < value < _P - 1:
            return None
        power = self._key.unblinded(value, is_dialers=not self._is_dialer)
        # Twice the exponent: whatever was sent, the result lies in the subgroup of prime order.
        common = pow(power, 2 * self._random, _P)
        key = self._key.mixed(dialer_hello, acceptor_hello, _bytes_of(common))
        return _proofs_by(key)


def open_proofs(dialer_hello: bytes, acceptor_hello: bytes) -> Proofs:
    """The proofs of a cluster without a password: anybody can make them."""
    return _proofs_by(hashlib.sha256(dialer_hello + acceptor_hello).digest())


def is_proof(given: bytes, expected: bytes) -> bool:
    """Compare in a time that tells nothing."""
    return hmac.compare_digest(given, expected)


@lru_cache(maxsize=64)  # this server's own, and those of routes with credentials in their URLs
def stretched(username: str, password: str) -> RouteKey:
    """Return the key of a cluster's user and password. Takes some 0.1 s and 16 MiB the first time,
    on purpose; and lets other threads run meanwhile."""
    salt = b"streamd route\0" + username.encode()
    secret = hashlib.scrypt(
        password.encode(), salt=salt, n=2**14, r=8, p=1, maxmem=64 * 1024 * 1024, dklen=32
    )
    return RouteKey(secret)


def _proofs_by(key: bytes) -> Proofs:
    return Proofs(hmac.digest(key, b"dialer", "sha256"), hmac.digest(key, b"acceptor", "sha256"))


def _point(name: bytes) -> int:
    """A member of the subgroup whose logarithm nobody knows: the square of a digest."""
    wide = hashlib.shake_256(b"streamd route point " + name).digest(_SHARE_BYTES + 16)
    return pow(int.from_bytes(wide, "big") % _P, 2, _P)


def _bytes_of(value: int) -> bytes:
    return value.to_bytes(_SHARE_BYTES, "big")
