"""A server that may open few files: streams share them, and the log keeps its own."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.wire import Wire

STREAMS = 100
ROUNDS = 8
BODY = b"x" * 60_000  # so that what gathers in memory has to go to the blocks


def limited(path: Path, binary: str, files: int) -> str:
    """The server, as `ulimit -n` has it."""
    program = path / f"streamd-{files}"
    program.write_text(f'#!/bin/sh\nulimit -n {files}\nexec {binary} "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_more_streams_than_files_are_written_and_none_stops(
    make_server: Start, tmp_path: Path, binary: str
) -> None:
    """128 files, 100 streams, and 200 connections that want one each: all is acked, and there
    after a kill. At 1,024 files blocks failed from about the 1,000th stream, then the log."""
    server = make_server(binary=limited(tmp_path, binary, 128))
    server.start()
    wire = Wire(server.port)
    for number in range(STREAMS):
        config = {"name": f"S{number}", "subjects": [f"s.{number}"]}
        assert "error" not in wire.api(f"STREAM.CREATE.S{number}", config)
    crowd: list[socket.socket] = []
    for turn in range(ROUNDS):
        for number in range(STREAMS):
            assert wire.ask(f"s.{number}", BODY, within_s=30)[0].json()["seq"] == turn + 1
        if turn == ROUNDS // 2:
            crowd += [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
        assert len(os.listdir(f"/proc/{server.pid}/fd")) < 128
    for each in crowd:
        each.close()
    server.kill()
    server.start()
    wire = Wire(server.port)
    for number in range(STREAMS):
        assert wire.api(f"STREAM.INFO.S{number}")["state"]["messages"] == ROUNDS
    log = server.log_file.read_text()
    assert "[ERR]" not in log
    assert "[FTL]" not in log


def test_a_start_with_too_few_files_says_how_many_it_needs(tmp_path: Path, binary: str) -> None:
    found = subprocess.run(
        [limited(tmp_path, binary, 32), "-js", "-sd", str(tmp_path / "d"), "-p", "-1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 1
    assert "the process may open 32 files, JetStream needs 64" in found.stderr + found.stdout
