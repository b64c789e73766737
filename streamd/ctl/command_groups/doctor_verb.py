"""`streamctl doctor`: what makes a server slow or unsafe, on this machine and in a cluster."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from streamd.ctl.display import Column, say, show_data, show_table, words
from streamd.ctl.failures import UNUSABLE, CtlError, unusable
from streamd.ctl.latencies import histogram_lines, summary
from streamd.ctl.progress_bar import progress_bar
from streamd.ctl.quantities import size_text, span_text, time_ns
from streamd.ctl.settings import Settings
from streamd.ctl.verbs import verb

OK, WARNING, BAD, UNKNOWN = "ok", "warning", "bad", "not checked"
SYNC_BYTES: Final = 4096
SLOW_SYNC_NS: Final = 10_000_000
BAD_SYNC_NS: Final = 100_000_000
OPEN_FILES_MIN: Final = 65_536
PROCESSES_MIN: Final = 4096
FILE_BYTES_MIN: Final = 1 << 40
FREE_PERCENT: Final = 10
CLOCK_NS: Final = 100_000_000
CLOCK_TRIES: Final = 3
PAYLOAD_BYTES: Final = 8 * 1024 * 1024  # from here on nats-server warns, too
_VOLATILE: Final = ("tmpfs", "ramfs", "overlay")

Check = dict[str, Any]

COLUMNS = (
    *words("check", "state", "found"),
    Column("advice", "what to do", lambda text: text or "-"),
)


def _check(check: str, state: str, found: str, advice: str = "", **more: Any) -> Check:
    advice = "" if state == OK else advice
    return {"check": check, "state": state, "found": found, "advice": advice, **more}


@verb(None, "doctor", example="streamctl doctor --dir /var/lib/streamd --user admin --password x")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    default=Path("."),
    help="Directory on the disk of the store: it is measured with a file of its own  [default: .].",
)
@click.option(
    "--syncs",
    type=click.IntRange(10, 10_000),
    default=200,
    show_default=True,
    help="Writes that are measured.",
)
@click.option("--pid", type=int, help="A server's process on this machine: its limits.")
@click.option("--no-servers", is_flag=True, help="This machine only.")
def command_doctor(
    settings: Settings, directory: Path, syncs: int, pid: int | None, no_servers: bool
) -> int:
    """Check disk, limits, clocks, versions and configuration, each with what to do.

    Servers are asked by a user of the system account. Status 0: all is well. 1: something is not.
    2: something could not be checked."""
    checks = list(_of_machine(directory, syncs, pid))
    if not no_servers:
        checks += _of_servers(settings)
    if not show_data(settings, checks):
        show_table(checks, COLUMNS)
        for each in checks:
            if "histogram" in each:
                say(f"\n{each['check']}: {each['count']} times")
                for line in histogram_lines(each):
                    say(line)
    states = {each["state"] for each in checks}
    return 1 if states & {WARNING, BAD} else UNUSABLE if UNKNOWN in states else 0


# --- this machine -------------------------------------------------------------------------------


def _of_machine(directory: Path, syncs: int, pid: int | None) -> Iterator[Check]:
    if not directory.is_dir():
        raise unusable(f"--dir {directory}: no such directory")
    yield _sync_latency(directory, syncs)
    yield _file_system(directory)
    yield _free_space(directory)
    yield from _ulimits(pid)
    yield from _memory()


def _sync_latency(directory: Path, count: int) -> Check:
    """Measure writes of one log page, each with fdatasync, as every ack waits for one."""
    path = directory / f".streamctl-doctor-{os.getpid()}"
    samples = []
    try:
        number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as err:
        return _check("fsync latency", UNKNOWN, str(err), "run it as a user who may write there")
    try:
        os.posix_fallocate(number, 0, SYNC_BYTES * count)
        os.fsync(number)
        page = b"\x5a" * SYNC_BYTES
        with progress_bar("measuring fsync", count) as bar:
            for at in range(count):
                began = time.perf_counter_ns()
                os.pwrite(number, page, at * SYNC_BYTES)
                os.fdatasync(number)
                samples.append(time.perf_counter_ns() - began)
                bar.advance()
    except OSError as err:
        return _check("fsync latency", BAD, str(err), "look at the disk: a sync failed")
    finally:
        os.close(number)
        path.unlink(missing_ok=True)
    found = summary(samples)
    p50, p99 = found["p50_ns"], found["p99_ns"]
    state = BAD if p99 >= BAD_SYNC_NS else WARNING if p99 >= SLOW_SYNC_NS else OK
    advice = "a disk with power-loss protection (p99 below 1 ms), and no other writer on it"
    return _check(
        "fsync latency", state, f"p50 {span_text(p50)}, p99 {span_text(p99)}", advice, **found
    )


def _file_system(directory: Path) -> Check:
    kind = _kind_of(directory.resolve())
    if kind in _VOLATILE:
        advice = "put the store on a disk: what is here is gone with the machine or container"
        return _check("file system", WARNING, kind, advice)
    return _check("file system", OK if kind else UNKNOWN, kind or "unknown")


def _kind_of(directory: Path) -> str:
    """Return the kind of the file system that a directory is on, "" if that is unknown."""
    best, kind = "", ""
    try:
        lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    for line in lines:
        fields = line.split()
        where = fields[1].replace("\\040", " ")
        inside = where == "/" or str(directory) == where or str(directory).startswith(where + "/")
        if inside and len(where) >= len(best):
            best, kind = where, fields[2]
    return kind


def _free_space(directory: Path) -> Check:
    found = os.statvfs(directory)
    free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    percent = 100 * free // max(1, total)
    text = f"{size_text(free)} of {size_text(total)} ({percent} %)"
    advice = "make room, or lower max_file_store and the limits of streams"
    return _check("free space", OK if percent >= FREE_PERCENT else WARNING, text, advice)


class _Limit(NamedTuple):
    """Limit of a process: its name in /proc/PID/limits, what a server needs, how to raise it."""

    check: str
    line: str
    number: int
    least: int
    advice: str


_LIMITS: Final = (
    _Limit(
        "open files", "Max open files", resource.RLIMIT_NOFILE, OPEN_FILES_MIN,
        f"ulimit -n {OPEN_FILES_MIN}, or LimitNOFILE= of the systemd unit",
    ),
    _Limit(
        "processes", "Max processes", resource.RLIMIT_NPROC, PROCESSES_MIN,
        f"ulimit -u {PROCESSES_MIN}, or LimitNPROC= of the systemd unit: threads count",
    ),
    _Limit(
        "file size", "Max file size", resource.RLIMIT_FSIZE, FILE_BYTES_MIN,
        "ulimit -f unlimited: a write beyond it fails, and ends the server's store",
    ),
)  # fmt: skip


def _ulimits(pid: int | None) -> Iterator[Check]:
    lines: list[str] = []
    if pid is not None:
        try:
            lines = Path(f"/proc/{pid}/limits").read_text(encoding="ascii").splitlines()
        except OSError as err:
            yield _check("ulimits", UNKNOWN, str(err), "name the pid of a running server")
            return
    of = "of this shell" if pid is None else f"of process {pid}"
    for limit in _LIMITS:
        if pid is None:
            soft, _ = resource.getrlimit(limit.number)
        else:
            line = next((line for line in lines if line.startswith(limit.line)), "")
            word = line.removeprefix(limit.line).split()[:1]
            soft = int(word[0]) if word and word[0].isdigit() else resource.RLIM_INFINITY
        is_endless = soft == resource.RLIM_INFINITY
        text = "unlimited" if is_endless else f"{soft:,} {of}"
        is_enough = is_endless or soft >= limit.least
        yield _check(limit.check, OK if is_enough else WARNING, text, limit.advice)


def _memory() -> Iterator[Check]:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        facts = {name: int(rest.split()[0]) * 1024 for name, _, rest in
                 (line.partition(":") for line in lines)}  # fmt: skip
        swappiness = int(Path("/proc/sys/vm/swappiness").read_text())
        dirty = int(Path("/proc/sys/vm/dirty_ratio").read_text())
    except (OSError, ValueError, IndexError) as err:
        yield _check("page cache", UNKNOWN, str(err))
        return
    cached, total = facts["Cached"], facts["MemTotal"]
    available = facts.get("MemAvailable", 0)
    text = f"{size_text(cached)} cached, {size_text(available)} of {size_text(total)} available"
    is_roomy = available * 10 >= total
    advice = "more memory, or less beside the server: reads of old messages come from this cache"
    yield _check("page cache", OK if is_roomy else WARNING, text, advice)
    swapped = facts.get("SwapTotal", 0) - facts.get("SwapFree", 0)
    is_calm = swapped < total // 100
    advice = "sysctl vm.swappiness=1, and memory limits that fit: a server that swaps stalls"
    found = f"{size_text(swapped)} in use, swappiness {swappiness}"
    yield _check("swap", OK if is_calm else WARNING, found, advice)
    is_bounded = dirty <= 40
    advice = "sysctl vm.dirty_ratio=20: large write-backs delay every fsync behind them"
    yield _check("write-back", OK if is_bounded else WARNING, f"dirty_ratio {dirty} %", advice)


# --- the servers --------------------------------------------------------------------------------


def _of_servers(settings: Settings) -> list[Check]:
    from streamd.ctl.nats_link import Link, run_on_link

    found: list[Check] = []

    async def ask(link: Link) -> None:
        found.extend(await _checks_of(link))

    try:
        run_on_link(settings, ask)
    except CtlError as err:
        advice = err.next_step or "--no-servers, to check this machine only"
        return [_check("servers", UNKNOWN, str(err), advice)]
    return found


async def _checks_of(link: Any) -> list[Check]:
    from streamd.ctl.server_survey import all_servers, ask_server

    servers = await all_servers(link)
    names = [answer["server"]["name"] for answer in servers.found]
    clocks = [await _clock_of(link, server) for server in servers.found]
    checks = [_presence(names, servers.missing), _clocks(clocks)]
    checks += [_versions(servers.found), _quorum(len(names) + len(servers.missing))]
    for server in servers.found:
        name = server["server"]["name"]
        health = await ask_server(link, server, "HEALTHZ")
        is_well = health.get("status") == "ok"
        reason = str(health.get("error", health.get("status")))
        advice = "docs/operating.md says what each reason asks for"
        checks.append(_check(f"health of {name}", OK if is_well else BAD, reason if not is_well
                             else "ok", advice))  # fmt: skip
        varz, js = await ask_server(link, server, "VARZ"), await ask_server(link, server, "JSZ")
        checks += _smells(name, varz, js, len(names))
        if server["statsz"]["slow_consumers"]:
            count = server["statsz"]["slow_consumers"]
            advice = "streamctl server report connections --sort pending"
            checks.append(_check(f"slow consumers of {name}", WARNING, str(count), advice))
    return checks


def _presence(names: list[str], missing: list[str]) -> Check:
    if missing:
        told = f"no answer from {', '.join(missing)}"
        return _check("servers", BAD, told, "start them, or remove one that is gone for good")
    return _check("servers", OK, ", ".join(names))


class _Clock(NamedTuple):
    """Server's clock against that of this machine, and how far that may be wrong, in ns."""

    server: str
    offset: int
    error: int


async def _clock_of(link: Any, server: Any) -> _Clock:
    """Measure a server's clock: of several answers the quickest tells it best."""
    from streamd.ctl.server_survey import ask_server

    found = []
    for _ in range(CLOCK_TRIES):
        before = time.time_ns()
        told = time_ns((await ask_server(link, server, "VARZ"))["now"]) or 0
        after = time.time_ns()
        error = (after - before) // 2
        found.append(_Clock(server["server"]["name"], told - (before + after) // 2, error))
    return min(found, key=lambda clock: clock.error)


def _clocks(clocks: Sequence[_Clock]) -> Check:
    """Judge how far the servers' clocks are apart for sure, whatever the errors of the measure."""
    early = max(clock.offset - clock.error for clock in clocks)
    late = min(clock.offset + clock.error for clock in clocks)
    spread = max(0, early - late)
    shown = ", ".join(
        f"{clock.server} {'-' if clock.offset < 0 else '+'}{span_text(abs(clock.offset))}"
        for clock in clocks
    )
    error = max(clock.error for clock in clocks)
    text = f"{shown} against this machine, to within {span_text(error)}"
    advice = "run chrony or ntpd on every node: times of messages are those of the leader's clock"
    offsets = {clock.server: clock.offset for clock in clocks}
    state = OK if spread < CLOCK_NS else WARNING
    return _check("clocks", state, text, advice, spread_ns=spread, offsets_ns=offsets)


def _versions(answers: list[Any]) -> Check:
    versions = sorted({str(answer["server"]["ver"]) for answer in answers})
    advice = "bring all to one version, one server after another"
    return _check("versions", OK if len(versions) == 1 else WARNING, ", ".join(versions), advice)


def _quorum(size: int) -> Check:
    is_odd = size % 2 == 1
    advice = "an odd count: another server outlives no more failures, and must ack as well"
    return _check("cluster size", OK if is_odd else WARNING, str(size), advice)


def _smells(
    name: str, varz: dict[str, Any], js: dict[str, Any], server_count: int
) -> Iterator[Check]:
    config = js.get("config") or {}
    store = str(config.get("store_dir", ""))
    if store.startswith(("/tmp/", "/var/tmp/", "/dev/shm/")):
        advice = "set jetstream { store_dir }: what is there is cleared by the system"
        yield _check(f"store of {name}", WARNING, store, advice)
    if not varz.get("auth_required") and varz.get("host") not in ("127.0.0.1", "localhost", "::1"):
        advice = "authorization or accounts with users, or listen on loopback only"
        yield _check(f"login at {name}", WARNING, f"anybody who reaches {varz['host']}", advice)
    if varz.get("auth_required") and not varz.get("tls_required") and varz.get("host") not in (
        "127.0.0.1", "localhost", "::1"
    ):  # fmt: skip
        advice = "tls {}: passwords and messages can be read on their way"
        yield _check(f"TLS at {name}", WARNING, "passwords in the clear", advice)
    used, reserved = js.get("storage", 0), js.get("reserved_storage", 0)
    limit = config.get("max_storage", 0)
    if limit > 0 and max(used, reserved) > limit * 9 // 10:
        advice = "raise max_file_store, or lower the limits of streams"
        text = f"{size_text(used)} used, {size_text(reserved)} reserved of {size_text(limit)}"
        yield _check(f"storage of {name}", WARNING, text, advice)
    if config and not config.get("sync_always"):
        every = span_text(config.get("sync_interval"))
        advice = "jetstream { sync: always }: a power cut takes what was acked since the last sync"
        yield _check(f"syncs of {name}", WARNING, f"every {every}", advice)
    payload = varz.get("max_payload", 0)
    if payload > PAYLOAD_BYTES:
        advice = "max_payload: 8MB at most; larger things go to an object bucket, in chunks"
        yield _check(f"max payload of {name}", WARNING, size_text(payload), advice)
    is_single = js.get("streams") and not js.get("ha_assets")
    if server_count > 1 and js.get("meta_cluster") and is_single:
        advice = "streamctl stream edit NAME --replicas 3: one copy is lost with its server"
        text = f"{js['streams']} streams, none has a second copy"
        yield _check(f"copies at {name}", WARNING, text, advice)
