"""State of a live page of `streamctl top` that keys change: views, order, filter, pace."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from streamd.ctl.failures import unusable

Rows = list[dict[str, Any]]
KEYS_TEXT: Final = (
    "q quit   s S sort   r reverse   / filter   v view   p pause   + - pace   ? these keys"
)
EVERY_MIN_S: Final = 0.05
EVERY_MAX_S: Final = 3600.0
_ARROWS: Final = {"\x1b[C": "s", "\x1b[D": "S", "\x1bOC": "s", "\x1bOD": "S"}
_ESCAPE: Final = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]")
_PATTERN_MAX: Final = 200


class TopState:
    """Views, order and filter of a page; no terminal and no server."""

    def __init__(
        self,
        columns: Mapping[str, Sequence[str]],
        defaults: Mapping[str, str],
        views: Sequence[str],
        sort: str | None,
        pattern: str,
        every_s: float,
    ) -> None:
        """`columns`: keys of each view's columns; `defaults`: the one that orders it unasked.
        Raises CtlError for an order or a filter that can't be."""
        self._columns = columns
        self._defaults = defaults
        self.views = tuple(views)
        self.sort = sort
        self.is_reversed = False
        self.is_paused = False
        self.is_over = False
        self.every_s = min(EVERY_MAX_S, max(EVERY_MIN_S, every_s))
        self.prompt: str | None = None  # a filter that is being typed
        self.remark = ""
        if sort is not None and sort not in self.sort_keys():
            raise unusable(f"--sort {sort}: there are {', '.join(sorted(self.sort_keys()))}")
        try:
            self._wanted = re.compile(pattern)
        except re.error as err:
            raise unusable(f"--filter {pattern!r}: {err}") from None

    def sort_keys(self) -> list[str]:
        """Return the columns of the views, each once, in their order."""
        return list(dict.fromkeys(key for view in self.views for key in self._columns[view]))

    def chosen(self, view: str, rows: Rows) -> Rows:
        """Return the rows of a view that the filter lets through, in order: numbers the highest
        first, names from A to Z, unless that is reversed."""
        found = [row for row in rows if self._wanted.search(str(row["name"]))]
        key = self.sort if self.sort in self._columns[view] else self._defaults[view]
        assert key is not None, view
        found.sort(key=lambda row: str(row["name"]))
        if any(isinstance(row[key], str) for row in found):
            found.sort(key=lambda row: str(row[key] or ""), reverse=self.is_reversed)
        else:
            found.sort(key=lambda row: float(row[key] or 0), reverse=not self.is_reversed)
        return found

    def lines(self) -> list[str]:
        """Return what is told beneath the page: the prompt, a remark, or how it is ordered."""
        if self.prompt is not None:
            return [f"filter (a regex; Enter takes it, Esc does not): {self.prompt}_"]
        order = self.sort or "as each view begins"
        told = f"sort: {order}{', reversed' if self.is_reversed else ''}"
        if self._wanted.pattern:
            told += f"   filter: {self._wanted.pattern}"
        told += f"   every {self.every_s:g} s{', paused' if self.is_paused else ''}   ? keys"
        return [text for text in (self.remark, told) if text]

    # --- keys -------------------------------------------------------------------------------------

    def type(self, text: str) -> None:
        """Obey what was typed at a terminal, which may be several keys."""
        while text:
            found = _ESCAPE.match(text)
            key = found[0] if found else text[0]
            text = text[len(key) :]
            if self.prompt is not None:
                self._edit(key)
            else:
                self._press(_ARROWS.get(key, key))

    def _press(self, key: str) -> None:
        self.remark = ""
        if key in ("q", "\x03", "\x04"):
            self.is_over = True
        elif key in ("s", "S"):
            self._sort_next(1 if key == "s" else -1)
        elif key == "r":
            self.is_reversed = not self.is_reversed
        elif key == "/":
            self.prompt = ""
        elif key in ("v", "\t"):
            self._view_next()
        elif key in ("p", " "):
            self.is_paused = not self.is_paused
        elif key in ("+", "-"):
            wanted = self.every_s / 2 if key == "+" else self.every_s * 2
            self.every_s = min(EVERY_MAX_S, max(EVERY_MIN_S, wanted))
        elif key in ("?", "h"):
            self.remark = KEYS_TEXT

    def _sort_next(self, step: int) -> None:
        keys = [None, *self.sort_keys()]
        at = keys.index(self.sort) if self.sort in keys else 0
        self.sort = keys[(at + step) % len(keys)]

    def _view_next(self) -> None:
        known = tuple(self._columns)
        turns = [known, *((view,) for view in known)]
        at = turns.index(self.views) if self.views in turns else 0
        self.views = turns[(at + 1) % len(turns)]
        if self.sort not in self.sort_keys():
            self.sort = None

    def _edit(self, key: str) -> None:
        """Take a key as part of a filter."""
        assert self.prompt is not None
        if key in ("\r", "\n"):
            try:
                self._wanted = re.compile(self.prompt)
            except re.error as err:
                self.remark = f"no filter: {self.prompt!r}: {err}"
            self.prompt = None
        elif key in ("\x1b", "\x03"):
            self.prompt = None
        elif key in ("\x7f", "\b"):
            self.prompt = self.prompt[:-1]
        elif key.isprintable() and len(self.prompt) < _PATTERN_MAX:
            self.prompt += key
