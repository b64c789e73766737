"""Log lines: the format tools wait for, fields, files, rotation."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path

import pytest

from streamd.config.options import Options
from streamd.obs.server_log import Log

LINE = re.compile(
    r"\[(\d+)\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} \[(INF|WRN|ERR|FTL|DBG)\] (.*)\n"
)


def test_lines_look_like_nats_servers() -> None:
    """`[pid] date time [INF] text`, then key=value."""
    stream = io.StringIO()
    Log(stream=stream).info("snapshot saved", group=3, path="a b", name=b"x", note="")
    found = LINE.fullmatch(stream.getvalue())
    assert found is not None
    assert found.groups() == (
        str(os.getpid()),
        "INF",
        'snapshot saved group=3 path="a b" name=x note=""',
    )


def test_levels_are_filtered_and_the_time_can_be_left_out() -> None:
    """Debug and trace only when asked for."""
    stream = io.StringIO()
    log = Log(stream=stream, has_time=False)
    log.debug("no")
    log.trace("no")
    log.is_debug = log.is_trace = True
    log.debug("d")
    log.trace("t")
    log.warning("w")
    log.error("e")
    log.fatal("f")
    levels = [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()]
    assert levels == ["[DBG] d", "[TRC] t", "[WRN] w", "[ERR] e", "[FTL] f"]


def test_a_field_cannot_forge_a_line() -> None:
    """Line ends and quotes of client data are escaped."""
    stream = io.StringIO()
    Log(stream=stream).info("user", name='x"\n[1] [FTL] gone')
    assert stream.getvalue().count("\n") == 1


def test_a_moved_log_file_is_opened_anew(tmp_path: Path) -> None:
    """What SIGUSR1 is for."""
    path = tmp_path / "a.log"
    log = Log(path=str(path))
    log.info("one")
    path.rename(tmp_path / "old.log")
    log.info("two")
    log.reopen()
    log.info("three")
    log.close()
    assert "two" in (tmp_path / "old.log").read_text()
    assert "three" in path.read_text()
    assert "two" not in path.read_text()


def test_a_full_log_file_is_moved_aside_and_old_ones_removed(tmp_path: Path) -> None:
    """`log_size_limit` bounds each file, `log_max_num` their number."""
    log = Log(path=str(tmp_path / "a.log"), size_limit=200, files_max=3)
    for number in range(40):
        log.info("a line of some length", number=number)
    log.close()
    files = list(tmp_path.iterdir())
    assert len(files) == 3
    assert all(file.stat().st_size < 400 for file in files)


def test_a_reload_moves_the_log_or_leaves_it_as_it_is(tmp_path: Path) -> None:
    """It took on debug and trace only, and said that the configuration was reloaded."""
    log = Log(path=str(tmp_path / "a.log"))
    log.info("one")
    settings = Options(log_file=str(tmp_path / "b.log"), has_logtime=False).log_settings
    log.change(**settings)
    log.info("two")
    with pytest.raises(OSError):
        log.change(**settings | {"path": str(tmp_path / "none" / "c.log"), "has_time": True})
    log.info("three")
    log.close()
    assert "one" in (tmp_path / "a.log").read_text()
    lines = (tmp_path / "b.log").read_text().splitlines()
    assert [line.partition("] ")[2] for line in lines] == ["[INF] two", "[INF] three"]


def test_a_rotation_removes_only_files_that_it_made(tmp_path: Path) -> None:
    """A configuration or an archive beside the log may begin with its name."""
    (tmp_path / "a.log.2026.gz").touch()
    (tmp_path / "a.log.conf").touch()
    (tmp_path / "a.log.archive").mkdir()
    log = Log(path=str(tmp_path / "a.log"), size_limit=50, files_max=2)
    for number in range(20):
        log.info("a line of some length", number=number)
    log.close()
    names = {path.name for path in tmp_path.iterdir()}
    assert {"a.log", "a.log.2026.gz", "a.log.conf", "a.log.archive"} < names
    assert len(names) == 5


def test_a_rotation_that_fails_does_not_stop_the_server(tmp_path: Path) -> None:
    """It raised from whatever wrote a line: a signal, a stream's monitor, the stop."""
    directory = tmp_path / "logs"
    directory.mkdir()
    log = Log(path=str(directory / "a.log"), size_limit=20)
    log.info("one")
    directory.rename(tmp_path / "moved")
    for number in range(20):
        log.info("a line of some length", number=number)
    text = (tmp_path / "moved" / "a.log").read_text()
    assert "log file can't be rotated" in text and "number=19" in text  # the open file goes on
    (tmp_path / "moved").rename(directory)
    for number in range(20):
        log.info("a line of some length", number=number)
    log.close()
    assert len(list(directory.iterdir())) > 1


def test_the_log_goes_on_elsewhere_after_a_full_disk(tmp_path: Path) -> None:
    """Closing a file that a full disk had no room for raised: the log was silent from then on."""
    path = tmp_path / "a.log"
    path.symlink_to("/dev/full")
    log = Log(path=str(path))
    log.info("nobody reads this")
    path.unlink()
    log.reopen()
    log.info("there is room")
    log.close()
    assert "there is room" in path.read_text()


def test_a_closed_stream_does_not_stop_the_server() -> None:
    """Logging never raises."""
    stream = io.StringIO()
    log = Log(stream=stream)
    stream.close()
    log.info("nobody reads this")
