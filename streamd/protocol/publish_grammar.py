"""Grammar of publishes: what all readers of `PUB` and `HPUB` hold to, in one place.

A publish is a control line, its payload, and CRLF::

    publish = "PUB"  1*blank subject 1*blank [reply 1*blank] size                  eol payload CRLF
            | "HPUB" 1*blank subject 1*blank [reply 1*blank] header-size 1*blank size
                                                                       eol headers payload CRLF
    blank   = space | tab | CR | VT | FF      size, header-size = 1 to 9 digits
    eol     = [CR] LF                         subject, reply    = bytes other than blank and LF

The verb may be in any case. `size` counts headers and payload, `header-size <= size`. Beyond that
the limits of the server hold: the bytes of a payload, and of a control line.

Three readers share it. `ClientParser._scan` reads anything, one publish after the other.
`ClientParser._lone` reads a chunk that is one publish of known sizes, and `bulk_publish` a run of
publishes in canonical spelling: the verb `PUB` in capitals, one space between fields, CRLF. Both
leave anything else to `_scan`, so they need not know what is wrong with it, only that it is right;
`tests/props/test_client_parser.py` compares them with `_scan` on any bytes, cut in any way.
"""

from __future__ import annotations

from typing import Final

from streamd.limits import PARSER_SIZES_MAX

PUB: Final = b"PUB"
HPUB: Final = b"HPUB"
PUB_START: Final = b"PUB "
HPUB_START: Final = b"HPUB "
CRLF: Final = b"\r\n"
FIELDS: Final = 3
"""Fields of a control line without reply, verb and all; `header-size` of an HPUB not counted."""
FIELDS_WITH_REPLY: Final = 4
SIZE_DIGITS_MAX: Final = 9


class SizeFields(dict[bytes, int]):
    """Size fields that were read, and the numbers they stand for.

    A connection sends few different ones, and a lookup costs a third of converting one. Use `get`,
    then `learn` on a miss.
    """

    __slots__ = ()

    def learn(self, text: bytes) -> int | None:
        """Return the number that `text` stands for, and remember it; None if it is no size."""
        if not is_size(text):
            return None
        if len(self) >= PARSER_SIZES_MAX:
            self.clear()
        size = self[text] = int(text)
        return size


def is_size(text: bytes) -> bool:
    """Return True if `text` is a size field."""
    return text.isdigit() and len(text) <= SIZE_DIGITS_MAX


def has_odd_blank(text: bytes) -> bool:
    """Return True if blanks that are neither a space nor part of a line's end are in `text`."""
    return b"\t" in text or b"\x0b" in text or b"\x0c" in text
