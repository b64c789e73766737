"""`-sl command[=pid]`: send a running server a signal, by pid, by pid file or by its name."""

from __future__ import annotations

import os
import signal

from streamd.errors import ConfigError

_SIGNALS = {
    "stop": signal.SIGKILL,
    "quit": signal.SIGINT,
    "term": signal.SIGTERM,
    "reopen": signal.SIGUSR1,
    "reload": signal.SIGHUP,
    "ldm": signal.SIGUSR2,
}


def send(request: str, program: str) -> None:
    """Carry out `command[=pid or pid file]`. Raises ConfigError with nats-server's words.

    Without a pid the one other server running under `program`'s name is meant; several are an
    error that lists them.
    """
    command, _, target = request.partition("=")
    if command not in _SIGNALS:
        raise ConfigError(f'unknown signal "{command}"')
    pid = _pid_of(target) if target else _only_server(program)
    try:
        os.kill(pid, _SIGNALS[command])
    except OverflowError as err:
        raise ConfigError(f"invalid pid: {target}") from err
    except OSError as err:
        raise ConfigError(f'\nsignal "{command}" {pid}: {(err.strerror or "").lower()}') from err


def _pid_of(target: str) -> int:
    text = target
    if not text.isdigit():
        try:
            with open(target, encoding="ascii", errors="replace") as file:
                text = file.read(64).strip()
        except OSError as err:
            raise ConfigError(f"invalid pid: {target}") from err
    if not text.isdigit() or int(text) < 2:  # 0 and 1 would reach far more than a server
        raise ConfigError(f"invalid pid: {target}")
    return int(text)


def _only_server(program: str) -> int:
    pids = _servers(program)
    if not pids:
        raise ConfigError(f"no {program} processes running")
    if len(pids) > 1:
        listing = "\n".join(str(pid) for pid in pids)
        raise ConfigError(f"multiple {program} processes running:\n{listing}\n")
    return pids[0]


def _servers(program: str) -> list[int]:
    """Pids of this user's processes that run `program`, by /proc; nothing where there is none."""
    found = []
    try:
        names = os.listdir("/proc")
    except OSError:
        return []
    for name in names:
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            if os.stat(f"/proc/{name}").st_uid != os.getuid():
                continue
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue  # it has ended meanwhile
        # The program itself, or a Python interpreter whose script it is.
        script = (
            words[1] if len(words) > 1 and b"python" in os.path.basename(words[0]) else words[0]
        )
        if os.path.basename(script) == program.encode():
            found.append(int(name))
    return sorted(found)
