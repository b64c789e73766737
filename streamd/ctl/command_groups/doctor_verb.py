"""`streamctl doctor`: what makes a server slow or unsafe, on this machine and in a cluster."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from streamd.ctl.display import Column, say, show_data, show_table
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
FREE_PERCENT: Final = 10
CLOCK_NS: Final = 100_000_000
_VOLATILE: Final = ("tmpfs", "ramfs", "overlay")

Check = dict[str, Any]

COLUMNS = (
    Column("check", "check"),
    Column("state", "state"),
    Column("found", "found"),
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
@click.option("--syncs", type=click.IntRange(10, 10_000), default=200, show_default=True)
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
    yield _open_files(pid)
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


def _open_files(pid: int | None) -> Check:
    if pid is None:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        of = "of this shell"
    else:
        try:
            lines = Path(f"/proc/{pid}/limits").read_text(encoding="ascii").splitlines()
        except OSError as err:
            return _check("open files", UNKNOWN, str(err), "name the pid of a running server")
        word = next(line for line in lines if line.startswith("Max open files")).split()[3]
        soft = resource.RLIM_INFINITY if word == "unlimited" else int(word)
        of = f"of process {pid}"
    is_enough = soft == resource.RLIM_INFINITY or soft >= OPEN_FILES_MIN
    text = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,} {of}"
    advice = f"ulimit -n {OPEN_FILES_MIN}, or LimitNOFILE= of the systemd unit"
    return _check("open files", OK if is_enough else WARNING, text, advice)


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

    asked_ns = time.time_ns()
    servers = await all_servers(link)
    names = [answer["server"]["name"] for answer in servers.found]
    checks = [_presence(names, servers.missing), _clocks(servers.found, asked_ns)]
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
        checks += _smells(name, varz, js)
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


def _clocks(answers: list[Any], asked_ns: int) -> Check:
    """Compare the servers' clocks, each at the moment of its answer: to within the wait for all."""
    slack = time.time_ns() - asked_ns
    times = [time_ns(answer["server"]["time"]) or 0 for answer in answers]
    spread = max(0, max(times) - min(times) - slack) if times else 0
    text = f"within {span_text(spread)}" if spread else f"within the measure ({span_text(slack)})"
    advice = "run chrony or ntpd on every node: times of messages are those of the leader's clock"
    return _check("clocks", OK if spread < CLOCK_NS else WARNING, text, advice)


def _versions(answers: list[Any]) -> Check:
    versions = sorted({str(answer["server"]["ver"]) for answer in answers})
    advice = "bring all to one version, one server after another"
    return _check("versions", OK if len(versions) == 1 else WARNING, ", ".join(versions), advice)


def _quorum(size: int) -> Check:
    is_odd = size % 2 == 1
    advice = "an odd count: another server outlives no more failures, and must ack as well"
    return _check("cluster size", OK if is_odd else WARNING, str(size), advice)


def _smells(name: str, varz: dict[str, Any], js: dict[str, Any]) -> Iterator[Check]:
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
