"""`TrashRequests`: `trash/` of a running node, listed, put back and destroyed by operators."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from streamd.errors import StreamdError
from streamd.limits import MONITORING_PAGE
from streamd.node.context import NodeContext
from streamd.node.replicas.local_groups import LocalGroups
from streamd.store.disk import Disk, modified_ns, opened
from streamd.store.file_names import orphan_uid, trash_kind
from streamd.types import Document

T = TypeVar("T")
_DEPTH_MAX: Final = 4  # of directories in `trash/`
Answer = Callable[[Document | str], None]
"""Called once with a document, or with the reason why there is none."""


class _RefusedError(StreamdError):
    """Request that changes nothing; the text says why."""


class TrashRequests:
    """Requests about one node's trash. What they change is durable when they are answered."""

    def __init__(self, context: NodeContext, groups: LocalGroups, directory: str) -> None:
        """`directory`: the trash."""
        self._context = context
        self._groups = groups
        self._directory = directory

    def serve(self, action: str, names: Sequence[str], answer: Answer) -> None:
        """List what there is, `purge` the names, or `restore` the one name."""
        if action == "list":
            self._run(self._list, answer, answer)
        elif action == "purge":
            files = partial(self._files_of, list(names))
            self._run(files, partial(self._unlink_next, list(names), answer), answer)
        elif action == "restore" and len(names) == 1:
            reason = self._why_not_back(names[0])
            if reason:
                answer(f"{names[0]}: {reason}")
            else:
                self._run(partial(self._put_back, names[0]), answer, answer)
        else:
            answer(f"{action!r} of {len(names)} names: must be list, purge, or restore of one name")

    def _run(
        self, job: Callable[[], T], then: Callable[[T], None], answer: Callable[[str], None]
    ) -> None:
        """Run a job on the block thread; what it returns goes to `then`, a refusal to `answer`."""

        def done(result: T | BaseException) -> None:
            if isinstance(result, StreamdError | OSError):
                answer(str(result))
            elif isinstance(result, BaseException):
                raise result
            else:
                then(result)

        self._context.block_thread.submit(job, done)

    def _unlink_next(self, names: list[str], answer: Answer, files: list[str]) -> None:
        """Remove one file a job: while a file system frees bytes, syncs of other files may wait."""
        if not files:
            self._run(partial(self._purged, names), answer, answer)
            return
        unlink = partial(self._context.env.disk.unlink, files.pop())
        self._run(unlink, lambda _: self._unlink_next(names, answer, files), answer)

    def _why_not_back(self, name: str) -> str:
        """Return why a directory can't be put back; "": it can, unless its place is taken."""
        uid = orphan_uid(name)
        if not uid:
            return "only a directory of a stream can be put back"
        asset = self._groups.meta.streams_by_uid.get(uid)
        if asset is None:
            return f"no stream has the uid {uid}, so that the next start would set it aside again"
        if self._groups.get(uid) is not None:
            return f"stream {asset.name} has a replica here that is served"
        return ""

    # --- on the block thread ------------------------------------------------------------------

    def _list(self) -> Document:
        disk = self._context.env.disk
        names = disk.listdir(self._directory)
        items = [self._item(disk, name) for name in names]
        items.sort(key=lambda item: (item["mtime_ns"], item["name"]))
        return {"total": len(items), "items": items[:MONITORING_PAGE]}

    def _item(self, disk: Disk, name: str) -> dict[str, int | str]:
        path = os.path.join(self._directory, name)
        size, when = _size(disk, path), modified_ns(path)
        return {"name": name, "kind": trash_kind(name), "bytes": size, "mtime_ns": when}

    def _present(self, names: Sequence[str]) -> None:
        """Raise if one of these is no name of what lies in the trash."""
        there = set(self._context.env.disk.listdir(self._directory))
        for name in names:
            if name not in there:
                raise _RefusedError(f"{name!r} is not in the trash")
            if name.isdigit():
                raise _RefusedError(f"{name}: a deleted stream, which is being removed already")

    def _files_of(self, names: list[str]) -> list[str]:
        """Return the files that these names are, or that are right in them."""
        disk, found = self._context.env.disk, []
        self._present(names)
        for name in names:
            path = os.path.join(self._directory, name)
            if _is_directory(disk, path):
                below = [os.path.join(path, each) for each in disk.listdir(path)]
                found += [each for each in below if not _is_directory(disk, each)]
            else:
                found.append(path)
        return found

    def _purged(self, names: list[str]) -> Document:
        """Remove what is left of directories whose files are gone."""
        disk = self._context.env.disk
        for name in names:
            disk.remove_tree(os.path.join(self._directory, name))
        disk.sync_dir(self._directory)
        self._context.log.warn("trash was purged by an operator", names=", ".join(names))
        return {"destroyed": names}

    def _put_back(self, name: str) -> Document:
        disk = self._context.env.disk
        self._present([name])
        streams = os.path.join(self._context.root, "streams")
        target = os.path.join(streams, str(orphan_uid(name)))
        if disk.exists(target):
            text = "exists: move it away first, if it is the worse of the two"
            raise _RefusedError(f"{target} {text}")
        disk.replace(os.path.join(self._directory, name), target)
        disk.sync_dir(streams)
        disk.sync_dir(self._directory)
        self._context.log.warn("a stream's directory was put back by an operator", path=target)
        return {"restored": target}


def _is_directory(disk: Disk, path: str) -> bool:
    try:
        disk.listdir(path)
    except NotADirectoryError:
        return False
    return True


def _size(disk: Disk, path: str, depth: int = 0) -> int:
    """Return the bytes of a file, or of all files in a directory."""
    try:
        names = disk.listdir(path)
    except OSError:
        names = []
    if names and depth < _DEPTH_MAX:
        return sum(_size(disk, os.path.join(path, name), depth + 1) for name in names)
    try:
        with opened(disk, path) as fd:
            return disk.size(fd)
    except OSError:
        return 0
