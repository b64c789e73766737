"""Vaults: where backups lie, as named bytes. A directory, which grows, or a tar, written once.

Segments of messages are named by the sha256 of their bytes, so what did not change between two
backups is there once, and damage is found by the name. The record of a backup is written last.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from streamd.errors import StreamdError, describe

_SEGMENTS: Final = "segments"
_RECORDS: Final = "backups"
_RECORD_END: Final = ".json"


class VaultError(StreamdError):
    """Files of a backup that are missing, damaged or can't be written."""


class Vault(Protocol):
    """Store of segments and records."""

    def put_segment(self, blob: bytes) -> str:
        """Keep a segment, durably; return its name. One that is there already is not written."""

    def segment(self, name: str) -> bytes:
        """Return a segment. Raises VaultError if it is missing or not what its name says."""

    def put_record(self, name: str, blob: bytes) -> None:
        """Keep the record of a backup: from here on the backup exists."""

    def record(self, name: str) -> bytes: ...

    def records(self) -> list[str]:
        """Return the names of all records, the oldest first."""

    def close(self) -> None: ...


def open_vault(path: str, *, is_written: bool = False) -> Vault:
    """Open the vault at `path`: a tar if it is called so, else a directory. `is_written`: it is
    made if it is not there; a tar must not be there."""
    try:
        if path.endswith(".tar"):
            return TarVault(path, is_written=is_written)
        if is_written:
            for name in (_SEGMENTS, _RECORDS):
                os.makedirs(os.path.join(path, name), exist_ok=True)
        elif not os.path.isdir(os.path.join(path, _RECORDS)):
            raise VaultError(f"{path}: there are no backups")
        return DirectoryVault(path)
    except (OSError, tarfile.TarError) as err:
        raise VaultError(f"{path}: {describe(err)}") from err


def _checked(blob: bytes, name: str, where: str) -> bytes:
    if hashlib.sha256(blob).hexdigest() != name:
        raise VaultError(f"{where}: segment {name[:16]} is damaged: its checksum is another")
    return blob


class DirectoryVault:
    """Vault of files: `segments/<2 digits>/<sha256>` and `backups/<name>.json`."""

    def __init__(self, path: str) -> None:
        self._path = path

    def put_segment(self, blob: bytes) -> str:
        """See Vault."""
        name = hashlib.sha256(blob).hexdigest()
        path = self._segment_path(name)
        try:
            if not os.path.exists(path) or os.path.getsize(path) != len(blob):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                _write(path, blob)
        except OSError as err:
            raise VaultError(f"{path}: {describe(err)}") from err
        return name

    def segment(self, name: str) -> bytes:
        """See Vault."""
        path = self._segment_path(name)
        try:
            with open(path, "rb") as file:
                return _checked(file.read(), name, self._path)
        except OSError as err:
            raise VaultError(f"{self._path}: segment {name[:16]}: {describe(err)}") from err

    def put_record(self, name: str, blob: bytes) -> None:
        """See Vault."""
        path = os.path.join(self._path, _RECORDS, name + _RECORD_END)
        try:
            _write(path, blob)
        except OSError as err:
            raise VaultError(f"{path}: {describe(err)}") from err

    def record(self, name: str) -> bytes:
        """See Vault."""
        path = os.path.join(self._path, _RECORDS, name + _RECORD_END)
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as err:
            raise VaultError(f"{path}: {describe(err)}") from err

    def records(self) -> list[str]:
        """See Vault."""
        names = os.listdir(os.path.join(self._path, _RECORDS))
        return sorted(
            name.removesuffix(_RECORD_END) for name in names if name.endswith(_RECORD_END)
        )

    def close(self) -> None:
        """Return at once: every file was synced when it was written."""

    def _segment_path(self, name: str) -> str:
        return os.path.join(self._path, _SEGMENTS, name[:2], name)


def _write(path: str, blob: bytes) -> None:
    """Write a file whole and durably, or not at all."""
    draft = f"{path}.{os.getpid()}.tmp"
    with open(draft, "wb") as file:
        file.write(blob)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


class TarVault:
    """Vault of one tar, with the same names in it."""

    def __init__(self, path: str, *, is_written: bool) -> None:
        self._path = path
        self._written: set[str] = set()
        self._tar = tarfile.open(path, "x" if is_written else "r")  # noqa: SIM115 - see close

    def put_segment(self, blob: bytes) -> str:
        """See Vault."""
        name = hashlib.sha256(blob).hexdigest()
        if name not in self._written:
            self._written.add(name)
            self._add(f"{_SEGMENTS}/{name[:2]}/{name}", blob)
        return name

    def segment(self, name: str) -> bytes:
        """See Vault."""
        return _checked(self._read(f"{_SEGMENTS}/{name[:2]}/{name}"), name, self._path)

    def put_record(self, name: str, blob: bytes) -> None:
        """See Vault."""
        self._add(f"{_RECORDS}/{name}{_RECORD_END}", blob)

    def record(self, name: str) -> bytes:
        """See Vault."""
        return self._read(f"{_RECORDS}/{name}{_RECORD_END}")

    def records(self) -> list[str]:
        """See Vault."""
        return sorted(self._record_names())

    def _record_names(self) -> Iterator[str]:
        for name in self._tar.getnames():
            if name.startswith(_RECORDS + "/") and name.endswith(_RECORD_END):
                yield name.removeprefix(_RECORDS + "/").removesuffix(_RECORD_END)

    def close(self) -> None:
        """Write the end of the tar."""
        self._tar.close()
        if self._written:
            with open(self._path, "rb") as file:
                os.fsync(file.fileno())

    def _add(self, name: str, blob: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = len(blob), 0o600
        try:
            self._tar.addfile(member, io.BytesIO(blob))
        except OSError as err:
            raise VaultError(f"{self._path}: {describe(err)}") from err

    def _read(self, name: str) -> bytes:
        try:
            file = self._tar.extractfile(name)
            assert file is not None, name
            return file.read()
        except (KeyError, OSError, tarfile.TarError) as err:
            raise VaultError(f"{self._path}: {name}: {describe(err)}") from err


@contextmanager
def opened_vault(path: str, *, is_written: bool = False) -> Iterator[Vault]:
    """Context of an open vault; see `open_vault`."""
    vault = open_vault(path, is_written=is_written)
    try:
        yield vault
    finally:
        vault.close()
