"""The audit as one HTML file: no script, no network, light and dark, readable on a phone. Pure.

The same document gives the same bytes; a golden file pins them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from spark_jobs.audit.findings import CODES

LINE_BYTES: Final = 16  # of a hex dump
FINDINGS_MAX: Final = 500  # shown in full; all of them are in findings.parquet

_VERDICTS: Final = {
    "clean": ("Clean", "Nothing was found: every check passed."),
    "warnings": ("Warnings", "Nothing is lost or wrong; what was found is worth knowing."),
    "damage": ("Damage", "Data is damaged, missing, or differs between replicas."),
}
_LEVELS: Final = {
    "quick": "quick: headers, footers, state; no records",
    "digest": "digest: as quick, and one digest per 4,096 sequences, compared between replicas",
    "full": "full: every record of every block",
}

_STYLE: Final = """
:root{--bg:#fff;--fg:#1b1f24;--dim:#57606a;--line:#d0d7de;--soft:#f6f8fa;
--bad:#b42318;--bad-bg:#fff0ee;--warn:#8a5700;--warn-bg:#fff7e5;--good:#116329;--good-bg:#eafbef;
--mark:#ffd8d3;color-scheme:light dark}
@media(prefers-color-scheme:dark){:root{--bg:#0f1318;--fg:#e6edf3;--dim:#9aa4af;--line:#30363d;
--soft:#171c23;--bad:#ff8b7e;--bad-bg:#2d1513;--warn:#f2c14e;--warn-bg:#2a2110;--good:#6fdd8b;
--good-bg:#10261a;--mark:#6e1c14}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1rem;background:var(--bg);color:var(--fg);
font:1rem/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.4rem;margin:.5rem 0}h2{font-size:1.15rem;margin:2rem 0 .5rem}
h3{font-size:1rem;margin:0;overflow-wrap:anywhere}
p,ul,ol,dl{margin:.4rem 0}
code,pre,td.n{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.86em}
code,p,li{overflow-wrap:anywhere}
.verdict{border:1px solid;border-left-width:.5rem;border-radius:.4rem;padding:.7rem 1rem}
.verdict strong{font-size:1.3rem;display:block}
.clean{color:var(--good);background:var(--good-bg)}
.warnings,.warning{color:var(--warn);background:var(--warn-bg)}
.damage{color:var(--bad);background:var(--bad-bg)}
.verdict p,.verdict span{color:var(--fg)}
.tag{border:1px solid;border-radius:1rem;padding:0 .5rem;font-size:.8rem;font-weight:600}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:.4rem}
.scroll:focus-visible{outline:2px solid var(--dim)}
table{border-collapse:collapse;width:100%}
caption{text-align:left;padding:.4rem .7rem;color:var(--dim);font-size:.85rem}
th,td{text-align:left;padding:.35rem .7rem;border-top:1px solid var(--line);white-space:nowrap}
thead th{background:var(--soft);font-size:.85rem}td.n,th.n{text-align:right}
article{border:1px solid var(--line);border-radius:.4rem;padding:.8rem 1rem;margin:.8rem 0}
article header{display:flex;flex-wrap:wrap;gap:.3rem .6rem;align-items:baseline}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:.15rem .9rem}
.facts dt{color:var(--dim)}.facts dd{margin:0;overflow-wrap:anywhere;min-width:0}
pre{margin:0;padding:.6rem .7rem;line-height:1.45}
mark{background:var(--mark);color:inherit;border-radius:.15rem}
.dim,footer{color:var(--dim)}footer{margin-top:2.5rem;font-size:.85rem}
@media(max-width:34rem){.facts{grid-template-columns:1fr}.facts dt{margin-top:.3rem}}
@media print{.scroll{overflow:visible}article{break-inside:avoid}}
"""


def render(document: Mapping[str, Any]) -> str:
    """The page of `audit.document_of`."""
    verdict = str(document["verdict"])
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n',
        '<meta name="referrer" content="no-referrer">\n',
        f"<title>streamd audit: {_text(_VERDICTS[verdict][0])}</title>\n",
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n",
        "<h1>streamd audit</h1>\n",
        _verdict(document),
        _next_steps(document["next"]),
        _audited(document),
        _replicas(document["replicas"]),
        _findings(document["findings"]),
        _notes(document["notes"]),
        "</main>\n<footer>\n",
        "<p>The same in machine-readable form: <code>findings.parquet</code> and "
        "<code>findings.json</code> beside this file. The codes are explained in "
        "<code>docs/audit.md</code>.</p>\n",
        "</footer>\n</body>\n</html>\n",
    ]
    return "".join(parts)


def _text(value: object) -> str:
    """Text for HTML; what is no printable character is shown as its escape."""
    shown = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in str(value)
    )
    return escape(shown, quote=True)


def _verdict(document: Mapping[str, Any]) -> str:
    verdict = str(document["verdict"])
    title, said = _VERDICTS[verdict]
    codes: dict[str, int] = {}
    for each in document["findings"]:
        codes[each["code"]] = codes.get(each["code"], 0) + 1
    told = ", ".join(f"{count} × {_text(code)}" for code, count in sorted(codes.items()))
    summary = f"<p>{told}</p>\n" if told else ""
    return (
        f'<section class="verdict {verdict}" aria-label="Verdict">\n'
        f"<strong>{_text(title)}</strong>\n<p>{_text(said)}</p>\n{summary}</section>\n"
    )


def _next_steps(steps: Sequence[str]) -> str:
    if not steps:
        return ""
    lines = "".join(f"<li>{_text(step)}</li>\n" for step in steps)
    return f"<h2>What to do next</h2>\n<ol>\n{lines}</ol>\n"


def _audited(document: Mapping[str, Any]) -> str:
    inputs = "".join(
        f"<li><code>{_text(each['replica'])}</code>: {_text(each['kind'])} "
        f"<code>{_text(each['path'])}</code></li>\n"
        for each in document["inputs"]
    )
    rate = document["records"] / max(document["elapsed_s"], 0.001)
    rows = [
        ("Began", _text(document["started"])),
        ("Took", f"{document['elapsed_s']:.1f} s"),
        ("Level", _text(_LEVELS[document["level"]])),
        ("Read", f"{_number(document['records'])} records, {_size(document['bytes'])}"),
        ("Rate", f"{_number(int(rate))} records/s"),
    ]
    if document.get("expect"):
        rows.append(("Publisher's log", f"<code>{_text(document['expect'])}</code>"))
    return f"<h2>What was audited</h2>\n<ul>\n{inputs}</ul>\n{_facts(rows)}"


def _facts(rows: Iterable[tuple[str, str]]) -> str:
    """`rows` of (term, HTML)."""
    lines = "".join(f"<dt>{_text(term)}</dt><dd>{value}</dd>\n" for term, value in rows)
    return f'<dl class="facts">\n{lines}</dl>\n'


def _number(value: int) -> str:
    return f"{value:,}"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:,.1f} {unit}" if unit != "B" else f"{int(count)} B"
        count /= 1024
    raise AssertionError(count)


_COLUMNS: Final = (
    ("Stream", "stream", ""),
    ("Replica", "replica", ""),
    ("State", "state", ""),
    ("Log index", "applied", "n"),
    ("First", "first_seq", "n"),
    ("Last", "last_seq", "n"),
    ("Messages", "messages", "n"),
    ("Digest", "digest", ""),
    ("Read", "bytes_read", "n"),
    ("Findings", "findings", "n"),
)


def _replicas(rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(
        f'<th scope="col" class="n">{name}</th>' if kind else f'<th scope="col">{name}</th>'
        for name, _, kind in _COLUMNS
    )
    lines = []
    for row in rows:
        cells = [f'<th scope="row">{_text(row["stream"])}</th>']
        for _, key, kind in _COLUMNS[1:]:
            value = row[key]
            shown = _size(value) if key == "bytes_read" else value
            if isinstance(value, int) and key != "bytes_read":
                shown = _number(value)
            if key == "digest":
                cells.append(f"<td><code>{_text(shown or '-')}</code></td>")
            else:
                cells.append(
                    f"<td{f' class={chr(34)}n{chr(34)}' if kind else ''}>{_text(shown)}</td>"
                )
        lines.append(f"<tr>{''.join(cells)}</tr>\n")
    return (
        "<h2>Replicas</h2>\n"
        '<p class="dim">Equal digests at one log index are equal content. State: compared with '
        "the others at one log index; behind: an older copy, which lacks what others have "
        "committed; partly: compared where both have a message; alone: there is no other; live: "
        "read from a running node.</p>\n"
        '<div class="scroll" role="region" aria-label="Replicas" tabindex="0">\n<table>\n'
        "<caption>One row per replica of a stream</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{''.join(lines)}</tbody>\n</table>\n</div>\n"
    )


def _findings(findings: Sequence[Mapping[str, Any]]) -> str:
    if not findings:
        return "<h2>Findings</h2>\n<p>None.</p>\n"
    shown = "".join(
        _finding(number, each) for number, each in enumerate(findings[:FINDINGS_MAX], 1)
    )
    left = len(findings) - FINDINGS_MAX
    more = f"<p>{left} more are in <code>findings.parquet</code>.</p>\n" if left > 0 else ""
    return f"<h2>Findings</h2>\n{shown}{more}"


def _finding(number: int, each: Mapping[str, Any]) -> str:
    code, severity = str(each["code"]), str(each["severity"])
    rows = [("Replica", _text(each["replica"]))]
    if each["stream"]:
        rows.append(("Stream", _text(each["stream"])))
    if each["seq_lo"] is not None:
        seqs = _number(each["seq_lo"])
        if each["seq_hi"] not in (None, each["seq_lo"]):
            seqs += f" to {_number(each['seq_hi'])}"
        rows.append(("Sequence", seqs))
    if each["file"]:
        place = f"<code>{_text(each['file'])}</code>"
        if each["offset"] is not None:
            place += f", offset {_number(each['offset'])}"
        rows.append(("File", place))
    if each["expected"]:
        rows.append(("Expected", _text(each["expected"])))
    if each["got"]:
        rows.append(("Found", _text(each["got"])))
    rows.append(("Do", _text(each["advice"])))
    return (
        f'<article aria-labelledby="f{number}">\n<header><h3 id="f{number}">'
        f'{number}. {_text(code)}</h3> <span class="tag {severity}">{severity}</span>'
        f'</header>\n<p class="dim">{_text(CODES[code].meaning)}</p>\n'
        f"{_facts(rows)}{_records(number, each)}</article>\n"
    )


def _records(number: int, each: Mapping[str, Any]) -> str:
    """The hex of the record on the replica in question and on one other, differences marked."""
    records = [(str(whose), bytes.fromhex(text)) for whose, text in each.get("records") or ()]
    if not records:
        return ""
    blamed = str(each["replica"]).split(", ")
    mine = next((at for at, (whose, _) in enumerate(records) if whose in blamed), None)
    if mine is None:
        return _dump(number, *records[0], None)
    whose, blob = records.pop(mine)
    others = [record for record in records if record[0] not in blamed] or records
    differing = next((record for record in others if record[1] != blob), None)
    other = differing or (others[0] if others else None)
    if other is None:
        return _dump(number, whose, blob, None)
    return _dump(number, whose, blob, other[1]) + _dump(number, *other, blob)


def _dump(number: int, whose: str, blob: bytes, other: bytes | None) -> str:
    lines = []
    for at in range(0, len(blob), LINE_BYTES):
        hexes, texts = [], []
        for place in range(at, min(at + LINE_BYTES, len(blob))):
            byte = blob[place]
            differs = other is not None and (place >= len(other) or other[place] != byte)
            char = chr(byte) if 32 <= byte < 127 else "."
            hexes.append(f"<mark>{byte:02x}</mark>" if differs else f"{byte:02x}")
            texts.append(f"<mark>{_text(char)}</mark>" if differs else _text(char))
        gap = "   " * (LINE_BYTES - len(hexes))
        lines.append(f"{at:04x}  {' '.join(hexes)}{gap}  {''.join(texts)}\n")
    label = f"Record on {whose}, finding {number}"
    return (
        f'<p class="dim">On {_text(whose)}, the first {len(blob)} bytes of the record:</p>\n'
        f'<div class="scroll" role="region" aria-label="{_text(label)}" tabindex="0">'
        f"<pre>{''.join(lines)}</pre></div>\n"
    )


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    lines = "".join(f"<li>{_text(note)}</li>\n" for note in notes)
    return f"<h2>Notes</h2>\n<ul>\n{lines}</ul>\n"
