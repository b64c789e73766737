"""Results on standard output: tables for people, JSON and YAML for programs.

Names and payloads come from clients: characters that a terminal would obey are shown, not sent.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from streamd.ctl.quantities import count_text, size_text, span_text
from streamd.ctl.settings import Settings

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Document = Mapping[str, Any]
_WIDE: Final = 200  # columns where the output is no terminal
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Column(NamedTuple):
    """Column of a table: a row's key, the title, and how a value becomes text."""

    key: str
    title: str
    text: Callable[[Any], str] = str
    is_number: bool = False


def counts(*specs: str) -> tuple[Column, ...]:
    """Return columns of counts, each `key` or `key=title`; a title is else the key, with spaces."""
    return _columns(specs, count_text)


def sizes(*specs: str) -> tuple[Column, ...]:
    """Return columns of bytes, likewise."""
    return _columns(specs, size_text)


def spans(*specs: str) -> tuple[Column, ...]:
    """Return columns of durations, likewise."""
    return _columns(specs, span_text)


def words(*specs: str) -> tuple[Column, ...]:
    """Return columns of text, likewise."""
    pairs = (spec.partition("=")[::2] for spec in specs)
    return tuple(Column(key, title or key.replace("_", " ")) for key, title in pairs)


def _columns(specs: Sequence[str], text: Callable[[Any], str]) -> tuple[Column, ...]:
    return tuple(column._replace(text=text, is_number=True) for column in words(*specs))


class Field(NamedTuple):
    """Line of a description: its title and its text; an empty title goes on with the last one."""

    title: str
    text: str


def clean(text: str) -> str:
    """Return a text with control characters, and those that turn its direction, spelled out."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def say(text: str) -> None:
    """Print a line for people."""
    print(clean(text), flush=True)


def note(text: str) -> None:
    """Print a remark for people beside the results: to standard error."""
    print(clean(text), file=sys.stderr, flush=True)


def show_data(settings: Settings, data: object) -> bool:
    """Print `data` as JSON or YAML; return False, and print nothing, where tables are wanted."""
    if settings.output == "json":
        print(json.dumps(data, indent=2, ensure_ascii=False))
        return True
    if settings.output == "yaml":
        import yaml

        plain = json.loads(json.dumps(data))
        text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
        print(text, end="")
        return True
    return False


def show_item(settings: Settings, data: object) -> bool:
    """Print one document of many, at once: JSON a line, YAML behind `---`. Return False, and print
    nothing, where text is wanted."""
    if settings.output == "table":
        return False
    if settings.output == "json":
        print(json.dumps(data, ensure_ascii=False), flush=True)
        return True
    print("---")
    show_data(settings, data)
    sys.stdout.flush()
    return True


def show_rows(
    settings: Settings,
    rows: Sequence[Document],
    columns: Sequence[Column],
    *,
    none: str = "nothing to show",
) -> None:
    """Print rows: a table of these columns, or all of their keys for programs."""
    if show_data(settings, list(rows)):
        return
    if not rows:
        say(none)
        return
    show_table(rows, columns)


def show_table(rows: Sequence[Document], columns: Sequence[Column]) -> None:
    """Print a table of these columns, whatever the output is to be."""
    console().print(make_table(rows, columns))


def make_table(rows: Sequence[Document], columns: Sequence[Column]) -> Table:
    """Return a table of these columns."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(
            column.title,
            justify="right" if column.is_number else "left",
            overflow="fold",
            no_wrap=False,
        )
    for row in rows:
        values = [(column, row.get(column.key)) for column in columns]
        table.add_row(
            *("-" if value is None else clean(column.text(value)) for column, value in values)
        )
    return table


def show_fields(
    settings: Settings, data: object, sections: Sequence[tuple[str, Sequence[Field]]]
) -> None:
    """Print a description in sections of `title: text`; for programs `data`, whole."""
    if show_data(settings, data):
        return
    fields = [field for _, section in sections for field in section]
    width = max((len(field.title) for field in fields), default=0)
    is_first = True
    for heading, section in sections:
        if not section:
            continue
        if not is_first:
            say("")
        is_first = False
        say(heading)
        for field in section:
            lead = f"{field.title}:" if field.title else ""
            say(f"  {lead:<{width + 1}}  {field.text}".rstrip())


def console() -> Console:
    """Return the terminal, or as wide a page as COLUMNS says where there is none."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(markup=False, highlight=False, emoji=False, width=width, soft_wrap=False)
