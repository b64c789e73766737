"""What objects of the server hold on to: the sizes of all containers behind one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any


def containers(root: object) -> Iterator[tuple[str, Any]]:
    """Every container that `root` and our objects behind it hold, as (`Class.attribute`, it)."""
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = [(type(root).__name__, root)]
    while todo:
        name, thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, (dict, list, set, deque)):
            yield name, thing
            inner = list(thing.values()) if isinstance(thing, dict) else list(thing)
            todo += [(f"{name}[]", each) for each in inner]
        elif type(thing).__module__.startswith("streamd."):
            slots = [
                slot for kind in type(thing).__mro__ for slot in getattr(kind, "__slots__", ())
            ]
            names = [*getattr(thing, "__dict__", {}), *slots]
            for attribute in names:
                child = getattr(thing, attribute, None)
                todo.append((f"{type(thing).__name__}.{attribute}", child))


def sizes(root: object) -> dict[str, int]:
    """How much is in the containers of each `Class.attribute`, all objects together."""
    found: dict[str, int] = {}
    for name, container in containers(root):
        found[name] = found.get(name, 0) + len(container)
    return found


def grown(before: dict[str, int], after: dict[str, int], by: int) -> dict[str, int]:
    """What holds at least `by` more than before."""
    more = {name: size - before.get(name, 0) for name, size in after.items()}
    return {name: count for name, count in more.items() if count >= by}
