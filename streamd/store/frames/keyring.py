"""Keys of an encrypted store: one random key, kept wrapped by the operator's, and what comes of it.

`encryption.json` and its copy hold the *store key*, encrypted with a key that scrypt makes of the
operator's text. Another text (rotation) wraps the store key anew; no file of data is touched. Each
file has a key of its own, derived from the store key and the file's random salt, so that no two
files share nonces.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from crc32c import crc32c
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from streamd.errors import ConfigError, CorruptionError
from streamd.store.blocks.snapshots import read_file, write_file
from streamd.store.disk import Disk, is_refused
from streamd.store.frames import frame_format as ff
from streamd.store.frames.framed_disk import Aead

NAMES: Final = ("encryption.json", "encryption-2.json")
SCRYPT_N: Final = 1 << 14  # 16 MiB and some 50 ms, once at a start
_KEY_BYTES: Final = 32
_VERSION: Final = 1
_CRC: Final = "crc"


class EncryptionKeys(NamedTuple):
    """Texts that the operator configured. Never shown: neither in logs nor by `repr`."""

    cipher: str  # "chacha" or "aes"
    key: str
    previous_key: str = ""  # opens the store if `key` does not; then `key` wraps it anew
    scrypt_n: int = SCRYPT_N

    def __repr__(self) -> str:
        return f"EncryptionKeys(cipher={self.cipher!r})"


class Keyring:
    """Keys of one store, opened. Implements `Keys` of `FramedDisk`."""

    def __init__(self, store_key: bytes, cipher: int) -> None:
        self._store_key = store_key
        self.cipher = cipher
        self.key_id = int.from_bytes(_derived(store_key, b"", b"streamd key id", 8), "little")

    def aead(self, cipher: int, salt: bytes) -> Aead:
        """Return the cipher of the file with this salt."""
        key = _derived(self._store_key, salt, b"streamd file %d" % cipher, _KEY_BYTES)
        return _aead(cipher, key)


class Keystore(NamedTuple):
    """Content of `encryption.json`."""

    fields: dict[str, Any]
    are_equal: bool  # both copies are whole, and say the same

    @property
    def is_whole(self) -> bool:
        """True once no file is left that is not encrypted."""
        return bool(self.fields.get("is_whole"))


def read_keystore(disk: Disk, root: str) -> Keystore | None:
    """Return the keystore; None: the store is not encrypted.

    Raises CorruptionError if neither copy is whole, and OSError if they may not be read now.
    """
    faults: list[str] = []
    found: list[dict[str, Any]] = []
    for name in NAMES:
        path = os.path.join(root, name)
        if not disk.exists(path):
            continue
        try:
            fields = dict(json.loads(read_file(disk, path)))
            if fields.pop(_CRC, None) != _crc(fields):
                raise ValueError("it is not what was written")
        except OSError as err:
            if is_refused(err):
                raise
            faults.append(f"{path}: {os.strerror(err.errno or 0)}")
            continue
        except (ValueError, TypeError) as err:
            faults.append(f"{path}: {err}")
            continue
        if fields.get("version") != _VERSION:
            raise ConfigError(
                f"{path}: version {fields.get('version')!r}, this server reads {_VERSION}"
            )
        found.append(fields)
    if found:
        return Keystore(found[0], len(found) == len(NAMES) and found[0] == found[1])
    if faults:
        raise CorruptionError(
            "the store is encrypted, and its keys can't be read: put encryption.json back from a "
            f"copy of this directory ({'; '.join(faults)})"
        )
    return None


def make_keystore(disk: Disk, root: str, keys: EncryptionKeys, *, is_whole: bool) -> Keyring:
    """Make a store key, and write it wrapped by the operator's."""
    store_key = disk.random_bytes(_KEY_BYTES)
    ring = Keyring(store_key, ff.CIPHERS[keys.cipher])
    _write(disk, root, _wrapped(disk.random_bytes, store_key, ring.key_id, keys, is_whole=is_whole))
    return ring


class Unlocked(NamedTuple):
    """Keyring that an operator's key opened, and the keystore as it has to be written, if at all:
    with a new key, or because a copy is missing."""

    ring: Keyring
    to_write: dict[str, Any] | None

    def commit(self, disk: Disk, root: str) -> None:
        """Write the keystore durably, if need be."""
        if self.to_write is not None:
            _write(disk, root, self.to_write)


def unlock(disk: Disk, root: str, store: Keystore, keys: EncryptionKeys) -> Unlocked:
    """Return the keyring that the operator's key opens, or the previous one: then the new key is
    to wrap the store key. Raises ConfigError. Writes nothing."""
    is_rotated = False
    store_key = _unwrapped(store.fields, keys.key)
    if store_key is None and keys.previous_key:
        store_key = _unwrapped(store.fields, keys.previous_key)
        is_rotated = True
    if store_key is None:
        names = "`key`, nor with `prev_key`" if keys.previous_key else "`key`"
        raise ConfigError(
            f"store directory {root!r} is encrypted, but not with the configured {names}: nothing "
            "was changed"
        )
    ring = Keyring(store_key, ff.CIPHERS[keys.cipher])
    to_write = None
    if is_rotated:
        to_write = _wrapped(
            disk.random_bytes, store_key, ring.key_id, keys, is_whole=store.is_whole
        )
    elif not store.are_equal:
        to_write = dict(store.fields)
    return Unlocked(ring, to_write)


def mark_whole(disk: Disk, root: str) -> None:
    """Record durably that no file is left that is not encrypted."""
    store = read_keystore(disk, root)
    assert store is not None, root
    _write(disk, root, store.fields | {"is_whole": True})


def _write(disk: Disk, root: str, fields: dict[str, Any]) -> None:
    content = json.dumps(fields | {_CRC: _crc(fields)}).encode()
    # One after the other: a crash leaves at most one of them behind, and either opens the store.
    write_file(disk, root, NAMES[0], [content], point="KEYSTORE")
    write_file(disk, root, NAMES[1], [content], point="KEYSTORE_COPY")


def _wrapped(
    random_bytes: Callable[[int], bytes],
    store_key: bytes,
    key_id: int,
    keys: EncryptionKeys,
    *,
    is_whole: bool,
) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "version": _VERSION,
        "key_id": f"{key_id:016x}",
        "scrypt": {"n": keys.scrypt_n, "r": 8, "p": 1, "salt": random_bytes(16).hex()},
    }
    nonce = random_bytes(ff.NONCE_BYTES)
    wrapping = ChaCha20Poly1305(_wrapping_key(fields, keys.key))
    wrapped = nonce + wrapping.encrypt(nonce, store_key, _bound(fields))
    return fields | {"store_key": wrapped.hex(), "is_whole": is_whole}


def _unwrapped(fields: dict[str, Any], key: str) -> bytes | None:
    """Return the store key; None: the operator's key is not the one it was wrapped with."""
    try:
        wrapped = bytes.fromhex(fields["store_key"])
        wrapping = ChaCha20Poly1305(_wrapping_key(fields, key))
        nonce, body = wrapped[: ff.NONCE_BYTES], wrapped[ff.NONCE_BYTES :]
        return wrapping.decrypt(nonce, body, _bound(fields))
    except InvalidTag:
        return None
    except (KeyError, ValueError, TypeError) as err:
        raise CorruptionError(f"{NAMES[0]}: unreadable: {err!r}") from err


def _wrapping_key(fields: dict[str, Any], key: str) -> bytes:
    costs = fields["scrypt"]
    salt = bytes.fromhex(costs["salt"])
    kdf = Scrypt(salt=salt, length=_KEY_BYTES, n=costs["n"], r=costs["r"], p=costs["p"])
    return kdf.derive(key.encode())


def _bound(fields: dict[str, Any]) -> bytes:
    """Return what is authenticated with the store key."""
    bound = {name: fields[name] for name in ("version", "key_id", "scrypt")}
    return json.dumps(bound, sort_keys=True).encode()


def _derived(key: bytes, salt: bytes, purpose: bytes, size: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=size, salt=salt or None, info=purpose).derive(key)


def _aead(cipher: int, key: bytes) -> Aead:
    return ChaCha20Poly1305(key) if cipher == ff.CHACHA else AESGCM(key)


def _crc(fields: dict[str, Any]) -> int:
    crc: int = crc32c(json.dumps(fields, sort_keys=True).encode())
    return crc
