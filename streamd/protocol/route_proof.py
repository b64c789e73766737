"""Proofs by which two servers show each other that they know the cluster's password, sans-IO.

The threat model. Others can dial our port, can be dialed in the place of a peer (a name that leads
elsewhere, a gossiped address), can see what is sent and repeat it. They must not join, and trying
passwords must cost them as much as can be asked:

* The password is never sent. Each side proves that it has the key that scrypt makes of it: an HMAC
  over both HELLO frames, hence over names, cluster, process and nonce of both servers. A proof is
  good for one link, and for one role: none can be sent back, or used again.
* The acceptor proves first. A stand-in for a peer, to which our dialer is led, gets no proof of the
  dialer's before it has shown that it knows the password.
* Whoever dials does get a proof of the acceptor's, and can try passwords against it at home. Each
  try costs a scrypt (some 0.1 s and 16 MiB), as it costs us once a process. A long random password
  (`openssl rand -hex 16`) can't be found that way; `config` warns of a short one.

What it does not do: what follows on the link is not encrypted, and whoever sits in the middle can
cut in after the handshake. TLS is for that. A cluster without a password has the empty key, which
anybody knows: one side with a password refuses one without, and the other way round.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache
from typing import NamedTuple


class Proofs(NamedTuple):
    """The proof that each side of one link sends, and the other expects."""

    dialer: bytes
    acceptor: bytes


def proofs(key: bytes, dialer_hello: bytes, acceptor_hello: bytes) -> Proofs:
    """Return both sides' proofs of `key` on the link with these HELLO frames."""
    link = b"%d %b%b" % (len(dialer_hello), dialer_hello, acceptor_hello)
    return Proofs(
        hmac.digest(key, b"dialer " + link, "sha256"),
        hmac.digest(key, b"acceptor " + link, "sha256"),
    )


def is_proof(given: bytes, expected: bytes) -> bool:
    """Compare in a time that tells nothing."""
    return hmac.compare_digest(given, expected)


@lru_cache(maxsize=64)  # this server's own, and those of routes with credentials in their URLs
def stretched(username: str, password: str) -> bytes:
    """Return the key of a cluster's user and password: 32 bytes, none if there is no password.
    Takes some 0.1 s and 16 MiB the first time, on purpose; and lets other threads run meanwhile."""
    if not password:
        return b""
    salt = b"streamd route\0" + username.encode()
    return hashlib.scrypt(
        password.encode(), salt=salt, n=2**14, r=8, p=1, maxmem=64 * 1024 * 1024, dklen=32
    )
