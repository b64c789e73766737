"""Templates in bodies and headers: `{{Count}}`, `{{TimeStamp}}`, `{{Random 10 20}}`."""

from __future__ import annotations

import random
import re
import secrets
import string
import time
from collections.abc import Callable, Mapping
from typing import Final

from streamd.ctl.failures import unusable

_PLACE: Final = re.compile(r"\{\{\s*\.?(\w+)((?:\s+\d+)*)\s*\}\}")
_LETTERS: Final = string.ascii_letters + string.digits
_RANDOM_MAX: Final = 1024 * 1024


def _stamp(_: str) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


_WORDS: Final[Mapping[str, Callable[[str], str]]] = {
    "count": lambda count: count,
    "timestamp": _stamp,
    "time": lambda _: time.strftime("%H:%M:%S"),
    "unix": lambda _: str(time.time_ns() // 10**9),
    "unixnano": lambda _: str(time.time_ns()),
    "id": lambda _: secrets.token_hex(11),
}


def filled(text: str, count: int) -> str:
    """Return the text with its templates filled in. Raises CtlError for one that there is not."""
    if "{{" not in text:
        return text
    return _PLACE.sub(lambda found: _value(found[1], found[2].split(), count), text)


def _value(word: str, numbers: list[str], count: int) -> str:
    name = word.lower()
    if name == "random" and len(numbers) in (1, 2):
        low, high = int(numbers[0]), int(numbers[-1])
        if not 0 <= low <= high <= _RANDOM_MAX:
            raise unusable(f"{{{{Random {low} {high}}}}}: from 0 to {_RANDOM_MAX}, the lower first")
        return "".join(random.choices(_LETTERS, k=random.randint(low, high)))
    if name in _WORDS and not numbers:
        return _WORDS[name](str(count))
    known = "Count, TimeStamp, Time, Unix, UnixNano, ID, Random MIN MAX"
    raise unusable(
        f"no template {{{{{' '.join([word, *numbers])}}}}}: there are {known}",
        "--no-templates to send it as it is",
    )
