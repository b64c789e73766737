"""Which rows no stream, or not this one, would take: checked before they are sent.

What only the server knows (its state, its permissions) it says itself; exactly_once.py finds out
which row was meant.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.sink import ledger
from spark_jobs.sink import rows as sink_rows
from spark_jobs.sink.rows import Rows
from streamd import subjects as matching
from streamd.offline.server_text import message_headers

SUBJECT_BYTES_MAX: Final = 3072  # with reply and sizes it must fit a control line of 4096
HEADERS_BYTES_MAX: Final = 65_535
# At most what the sink's own batch headers take: names, ids of 20 bytes, sequences of 4.
_BATCH_HEADER_BYTES: Final = len("Nats-Batch-Id: Nats-Batch-Sequence: ") + 2 * 2 + 20 + 4
_KNOWN_MAX: Final = 65_536
_HEADER_RULES: Final = {
    sink_rows.HEADER_NAME: "a header name is empty or has a colon, white space or control byte",
    sink_rows.HEADER_VALUE: "a header value has a line end or a zero byte in it",
    sink_rows.HEADER_RESERVED: (
        "a header Nats-Batch-*, Nats-Expected-*, Nats-Msg-Id or Nats-TTL is the sink's own: "
        "use columns msg_id and ttl"
    ),
}


@dataclass(frozen=True, slots=True)
class Rejection:
    """A row that is not stored. `code`: the server's error code, 0 if it has none for this."""

    partition: int
    row: int
    subject: str
    rule: str
    code: int = 0

    def __str__(self) -> str:
        code = f" (error {self.code})" if self.code else ""
        place = f"partition {self.partition} row {self.row} subject {self.subject!r}"
        return f"{place}: {self.rule}{code}"


@dataclass(slots=True)
class Rules:
    """The rules of one stream. Remembers what it found out about subjects and TTLs."""

    facts: ledger.StreamFacts
    partition: int = 0
    is_exact: bool = True
    _subjects: dict[bytes, str] = field(default_factory=dict)

    def rejections(self, rows: Rows, lines: Any) -> dict[int, Rejection]:
        """By place in `rows`, why that row can't be sent; {} nearly always."""
        found: dict[int, tuple[str, int]] = {}
        self._check_sizes(rows, lines, found)
        if rows.bad_headers is not None:
            for at in np.flatnonzero(rows.bad_headers):
                found[int(at)] = (_HEADER_RULES[int(rows.bad_headers[at])], 0)
        if rows.ttl is not None:
            self._check_ttls(rows.ttl, found)
        if rows.msg_id is not None:
            bad = pc.match_substring_regex(rows.msg_id.cast(pa.binary()), r"[\r\n\x00]|^\s|\s$")
            for at in np.flatnonzero(pc.fill_null(bad, False).to_numpy(zero_copy_only=False)):
                found[int(at)] = ("its msg_id has a line end, or blanks around it", 0)
        self._check_subjects(rows.subject, found)
        return {
            at: Rejection(
                self.partition,
                int(rows.numbers[at]),
                rows.subject[at].as_py().decode("utf-8", "replace"),
                rule,
                code,
            )
            for at, (rule, code) in sorted(found.items())
        }

    def _check_subjects(self, column: Any, found: dict[int, tuple[str, int]]) -> None:
        coded = column.dictionary_encode()
        names = coded.dictionary.to_pylist()
        known = self._subjects
        if len(known) > _KNOWN_MAX:
            known.clear()
        rules = []
        for name in names:
            rule = known.get(name)
            if rule is None:
                rule = known[name] = self._subject_rule(name)
            rules.append(rule)
        if any(rules):
            for at, index in enumerate(coded.indices.to_pylist()):
                if rules[index]:
                    found[at] = (rules[index], 0)

    def _subject_rule(self, raw: bytes) -> str:
        """Return what is wrong with a subject; "" if nothing."""
        if not raw:
            return "its subject is null or empty"
        if len(raw) > SUBJECT_BYTES_MAX:
            return f"its subject has {len(raw)} bytes, at most {SUBJECT_BYTES_MAX} are allowed"
        if not matching.is_valid_literal(raw) or b"\x00" in raw:
            return "its subject has an empty token, white space or a wildcard in it"
        subject = raw.decode("utf-8", "replace")
        if ledger.is_ledger(subject):
            return f"subjects below {ledger.ROOT}. are the sink's own"
        if not self.facts.captures(subject):
            have = ", ".join(self.facts.subjects)
            return f"stream {self.facts.name} does not capture its subject (it has {have})"
        return ""

    def _check_sizes(self, rows: Rows, lines: Any, found: dict[int, tuple[str, int]]) -> None:
        facts = self.facts
        headers = sink_rows.header_sizes(rows, lines)
        if self.is_exact:
            headers = headers + _BATCH_HEADER_BYTES
        elif lines is None:
            headers = headers * 0
        sizes = headers + sink_rows.lengths_of(rows.payload)
        limits = (
            (facts.max_payload, sizes, 0, "the server's max_payload"),
            (facts.max_msg_size, sizes, 10054, "the stream's max_msg_size"),
            (HEADERS_BYTES_MAX, headers, 10097, "the limit of headers"),
        )
        for limit, have, code, name in limits:
            if limit and int(have.max(initial=0)) > limit:
                for at in np.flatnonzero(have > limit):
                    rule = f"it takes {int(have[at])} bytes with its headers, {name} is {limit}"
                    found[int(at)] = (rule, code)

    def _check_ttls(self, column: Any, found: dict[int, tuple[str, int]]) -> None:
        rules: dict[bytes, tuple[str, int] | None] = {}
        for text in pc.unique(column).to_pylist():
            if text is None:
                continue
            if not self.facts.allows_ttl:
                rules[text] = ("it has a ttl, and the stream has not allow_msg_ttl", 10166)
            elif message_headers.parse_ttl(text) is None:
                shown = text.decode("utf-8", "replace")
                rules[text] = (f"its ttl {shown!r} is not 1 s or more, nor `never`", 10165)
        if rules:
            for at, text in enumerate(column.to_pylist()):
                rule = rules.get(text)
                if rule is not None:
                    found[at] = rule
