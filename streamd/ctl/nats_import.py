"""nats-py, imported in half of the time: `quick_import`.

It imports aiohttp for WebSockets if that is there, its classes for JetStream, which this program
never uses, and the metadata of packages for its own version. The first is kept from it until a URL
is a WebSocket's, the second is loaded when it is used, the third is told from a directory's name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from pathlib import Path
from types import ModuleType
from typing import Final

_LATE: Final = "nats.js"
_KEPT_AWAY: Final = ("aiohttp", "importlib.metadata")


class _LateFinder:
    """Finder that has `nats.js` run when an attribute of it is asked for."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the late module; of others None, and the next finder is asked."""
        if name != _LATE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec


@contextmanager
def quick_import() -> Iterator[None]:
    """Import nats-py in the block, quickly if nobody did before."""
    if "nats" in sys.modules:
        yield
        return
    away = [name for name in _KEPT_AWAY if name not in sys.modules]
    for name in away:
        sys.modules[name] = None  # type: ignore[assignment]
    sys.meta_path.insert(0, _LateFinder)
    try:
        yield
    finally:
        sys.meta_path.remove(_LateFinder)
        for name in away:
            del sys.modules[name]
    client = sys.modules["nats.aio.client"]
    if "importlib.metadata" in away:
        client.__dict__["__version__"] = _version_of(client)


def _version_of(module: ModuleType) -> str:
    """Return the version of nats-py, as the directory beside the package is called."""
    packages = Path(module.__file__ or "").parents[2]
    names = [path.name for path in packages.glob("nats_py-*.dist-info")]
    return names[0].split("-")[1].removesuffix(".dist") if names else "0.0.0"
