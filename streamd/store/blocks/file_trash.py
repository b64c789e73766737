"""Removal of a deleted stream's files, one file a job."""

from __future__ import annotations

import os
from collections.abc import Callable

from streamd.callbacks import ignore
from streamd.store.blocks.record_format import BLOCK_SUFFIX
from streamd.store.disk import Disk, Thread


def move_to_trash(disk: Disk, directory: str, trash_dir: str) -> None:
    """Move a closed stream's directory, if it exists, to `trash_dir` under its own name, durably.
    Raises OSError."""
    if not disk.exists(directory):
        return
    if not disk.exists(trash_dir):
        disk.mkdir(trash_dir)
        disk.sync_dir(os.path.dirname(trash_dir))
    target = os.path.join(trash_dir, os.path.basename(directory))
    disk.remove_tree(target)
    disk.replace(directory, target)
    disk.sync_dir(trash_dir)
    disk.sync_dir(os.path.dirname(directory))


class EmptyTrash:
    """Removes a directory in `trash/` on the block thread, one block per job.

    Reads and writes of other streams come in between; while a file system frees a file, syncs of
    others wait. What a stop or a failure leaves is removed after the next start; `on_failed` is
    called with a failure.
    """

    def __init__(
        self,
        disk: Disk,
        thread: Thread,
        path: str,
        on_failed: Callable[[BaseException], None] = ignore,
    ) -> None:
        self._disk = disk
        self._thread = thread
        self._path = path
        self._on_failed = on_failed

    def begin(self) -> None:
        """Start the removal."""
        self._thread.submit(lambda: self._disk.listdir(self._path), self._listed)

    def _listed(self, names: list[str] | BaseException) -> None:
        if isinstance(names, BaseException):
            self._on_failed(names)
        else:
            self._go_on([name for name in names if name.endswith(BLOCK_SUFFIX)])

    def _go_on(self, blocks: list[str]) -> None:
        if not blocks:
            self._thread.submit(lambda: self._disk.remove_tree(self._path), self._removed)
            return
        path = os.path.join(self._path, blocks.pop())

        def removed(result: BaseException | None) -> None:
            if isinstance(result, BaseException):
                self._on_failed(result)
            else:
                self._go_on(blocks)

        self._thread.submit(lambda: self._disk.unlink(path), removed)

    def _removed(self, result: BaseException | None) -> None:
        if isinstance(result, BaseException):
            self._on_failed(result)
