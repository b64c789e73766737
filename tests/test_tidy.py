"""Rules that correctness rests on and a reader cannot see at once: layering, pure rooms, one
snapshot writer, turns without await, tasks with owners. Reads the source; runs nothing of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from streamd.api.shapes import CONSUMER_CONFIG_FIELDS, STREAM_CONFIG_FIELDS
from streamd.machine.asset_configs import ConsumerConfig, StreamConfig
from tests.parity.compatibility import own, peer
from tests.parity.compatibility.page import PAGE, load, render

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "streamd"

# room -> rooms it may import (itself always). Leaves are modules of `streamd` itself.
LEAVES = {
    "subjects",
    "subject_mapping",
    "subject_tree",
    "types",
    "limits",
    "errors",
    "durations",
    "memory_share",
    "callbacks",
    "go_json",
    "installation",
}
MAY_IMPORT = {
    "ctl": {"cli", "offline", "tokens"},
    "offline": {"node", "raft", "machine", "store"},
    "cli": {"net", "api", "node", "config", "obs", "store", "machine", "raft", "protocol"},
    "net": {"api", "protocol", "node", "machine", "config", "obs", "tokens"},
    "api": {"node", "machine", "protocol", "config", "obs"},
    "node": {"raft", "machine", "store", "protocol", "obs"},
    "raft": set(),
    "machine": set(),
    "store": {"obs"},
    "protocol": set(),
    "config": {"tokens"},
    "tokens": set(),
    "obs": set(),
}
# Types that two rooms share by design: how records are laid out on behalf of a machine, what the
# peer protocol turns into bytes, and what claims of tokens come to.
ALLOWED_LINKS = {
    ("store/blocks/record_format.py", "streamd.machine.base"),
    ("protocol/peer_frames.py", "streamd.raft.membership"),
    ("protocol/peer_frames.py", "streamd.raft.messages"),
    ("tokens/account_claims.py", "streamd.config.account_options"),
    ("tokens/permissions.py", "streamd.config.user_options"),
    ("tokens/validation.py", "streamd.config.user_options"),
}

PURE = ("raft", "machine", "protocol", "tokens")
PURE_FILES = (
    "node/groups/group.py", "node/groups/turn.py", "node/groups/group_shell.py",
    "node/groups/inbox.py", "node/groups/checkpoints.py", "node/groups/membership_watch.py",
    "node/groups/step_downs.py", "node/groups/block_port.py", "node/catchup/fetch.py",
    "node/delivery/cursor.py", "node/delivery/pending_state.py", "node/delivery/sender.py",
    "node/delivery/client_requests.py", "node/delivery/delivery_targets.py",
    "node/stream_groups/publish_intake.py", "node/stream_groups/delivery_hub.py",
    "node/stream_groups/maintenance.py", "node/stream_groups/stream_group.py",
    "net/client/session.py", "net/client/profile.py",
    "store/blocks/record_format.py", "store/blocks/footer.py", "store/blocks/block_codec.py",
)  # fmt: skip
IMPURE = {
    "asyncio", "socket", "os", "threading", "time", "random", "logging", "uuid", "secrets",
    "subprocess",
}  # fmt: skip


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def is_pure(path: Path) -> bool:
    relative = name_of(path)
    return relative.split("/")[0] in PURE or relative in PURE_FILES


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports(tree: ast.AST) -> Iterator[str]:
    """Full names of what is imported, anywhere in the tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, "imports are absolute"
            yield node.module
            if node.module == "streamd" or node.module.count(".") == 1:
                for alias in node.names:
                    yield f"{node.module}.{alias.name}"


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_imports_point_down_only(path: Path) -> None:
    """Each room imports only the rooms below it."""
    relative = name_of(path)
    room = relative.split("/")[0] if "/" in relative else ""
    for module in imports(tree_of(path)):
        if not module.startswith("streamd."):
            continue
        target = room_of(module)
        if target not in MAY_IMPORT and target not in LEAVES:
            continue  # a name in streamd/__init__.py
        if (relative, module) in ALLOWED_LINKS:
            continue
        if not room:
            assert target in LEAVES, f"{relative}: a leaf imports {module}"
        else:
            is_allowed = target == room or target in LEAVES or target in MAY_IMPORT[room]
            assert is_allowed, f"{relative} imports {module}"


@pytest.mark.parametrize("path", list(filter(is_pure, sources())), ids=name_of)
def test_pure_rooms_touch_no_clock_file_or_socket(path: Path) -> None:
    """Consensus, replicated state and protocol run in a simulator: they import no effects."""
    tree = tree_of(path)
    used = {module.split(".")[0] for module in imports(tree)}
    assert not used & IMPURE, f"{name_of(path)} imports {sorted(used & IMPURE)}"
    for node in ast.walk(tree):  # `datetime` is for arithmetic, not for asking what time it is
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).endswith("datetime"):
            assert node.attr not in ("now", "utcnow", "today"), f"{name_of(path)}:{node.lineno}"


def test_s0_6_only_do_snapshot_reaches_the_snapshot_writer() -> None:
    """S0.6, I3: snapshots are taken between two turns, by the monitor, nowhere else."""
    users = []
    for path in sources():
        for function in functions(tree_of(path)):
            for node in own_nodes(function):
                if isinstance(node, ast.Attribute) and node.attr == "_snapshot_writer":
                    users.append((name_of(path), function.name))
    assert sorted(set(users)) == [
        ("node/groups/monitor.py", "__init__"),
        ("node/groups/monitor.py", "_do_snapshot"),
    ]


def test_s0_6_nobody_saves_a_stream_snapshot_but_its_writer() -> None:
    """S0.6: the store's `save_snapshot` is called by the object that only the monitor holds."""
    callers = set()
    for path in sources():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if node.func.attr == "save_snapshot":
                    callers.add(name_of(path))
    assert callers <= {"node/groups/snapshot_writers.py"}, callers


def test_a_turn_has_no_await() -> None:
    """Nothing can interleave inside a turn, because it is a plain function."""
    turns = 0
    for path in sources():
        for function in functions(tree_of(path)):
            if function.name in ("_turn", "turn", "apply", "_do_snapshot"):
                turns += 1
                assert isinstance(function, ast.FunctionDef), f"{path}: async {function.name}"
                awaits = [n for n in ast.walk(function) if isinstance(n, ast.Await)]
                assert not awaits, f"{path}:{awaits[0].lineno}: await in {function.name}"
    assert turns, "the monitor's turn has another name now: mend this test"


def test_the_monitor_awaits_once() -> None:
    """`await self._wake.wait()` is the only await of the loop that runs a group."""
    tree = tree_of(PACKAGE / "node" / "groups" / "monitor.py")
    awaits = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Await)]
    assert awaits == ["await self._wake.wait()"]


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_tasks_have_owners_and_errors_have_names(path: Path) -> None:
    """No bare create_task, no gather, no asyncio.Lock, no bare or swallowed `except`."""
    relative = name_of(path)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "asyncio":
                banned = ("create_task", "ensure_future", "gather", "Lock")
                assert node.attr not in banned, f"{relative}:{node.lineno}: asyncio.{node.attr}"
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None, f"{relative}:{node.lineno}: bare except"
            is_broad = ast.unparse(node.type) in ("Exception", "BaseException")
            is_silent = all(isinstance(line, ast.Pass) for line in node.body)
            assert not (is_broad and is_silent), f"{relative}:{node.lineno}: swallows everything"


@pytest.mark.parametrize("path", sources(), ids=name_of)
def test_every_module_says_what_it_is(path: Path) -> None:
    """A module that holds anything starts with a docstring."""
    tree = tree_of(path)
    assert not tree.body or ast.get_docstring(tree), name_of(path)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a function without those of functions inside it."""
    stack = list(ast.iter_child_nodes(function))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        yield node
        stack.extend(ast.iter_child_nodes(node))


def modules() -> list[Path]:
    return [path for path in sources() if path.name != "__init__.py"]


def packages() -> list[str]:
    """Directories of `streamd` that hold modules, leaves excepted."""
    found = {path.parent.relative_to(PACKAGE).as_posix() for path in modules()}
    return sorted(found - {"."})


def test_the_architecture_has_a_row_for_every_package() -> None:
    """A reader finds any package's promise in ARCHITECTURE.md, which stays short."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    missing = [name for name in packages() if f"| `{name}/` |" not in text]
    assert not missing, missing
    assert len(text.splitlines()) <= 250


def test_keys_of_configurations_are_fields_of_them() -> None:
    """A misspelt key of a stream's or consumer's configuration is no silent default: mypy refuses
    `config["retentoin"]`, and here `config.get("retentoin")`, which it lets pass."""
    known = StreamConfig.__annotations__.keys() | ConsumerConfig.__annotations__.keys()
    unknown = []
    for path in sources():
        if name_of(path).split("/")[0] not in ("api", "machine", "node", "net"):
            continue
        for node in ast.walk(tree_of(path)):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner = ast.unparse(node.func.value).split(".")[-1]
            is_read = node.func.attr in ("get", "pop", "setdefault") and node.args
            if is_read and owner in ("config", "stream_config", "created_config"):
                key = node.args[0]
                if isinstance(key, ast.Constant) and key.value not in known:
                    unknown.append(f"{name_of(path)}:{node.lineno}: {key.value}")
    assert not unknown, unknown
    assert known >= STREAM_CONFIG_FIELDS.keys() | CONSUMER_CONFIG_FIELDS.keys()


@pytest.mark.parametrize("name", packages())
def test_a_package_readme_names_the_files_of_its_package(name: str) -> None:
    """The README of a package has a line for each file, and none for a file that is gone."""
    readme = PACKAGE / name / "README.md"
    own = {path.name for path in modules() if path.parent == readme.parent}
    named = set(re.findall(r"`(\w+\.py)`", readme.read_text(encoding="utf-8")))
    assert not own - named, f"not named: {sorted(own - named)}"
    gone = {each for each in named if not any(path.name == each for path in sources())}
    assert not gone, f"named, but not there: {sorted(gone)}"


def journeys() -> dict[str, list[str]]:
    """Steps of each journey in ARCHITECTURE.md, by its title."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    found = {}
    for section in text.split("\n## Journeys\n")[1].split("\n## ")[0].split("\n### ")[1:]:
        title, _, body = section.partition("\n")
        steps = re.findall(r"^\d+\. (.+(?:\n {3,}.+)*)", body, re.MULTILINE)
        if steps:
            found[title] = steps
    return found


def test_each_step_of_a_journey_names_a_function_that_exists() -> None:
    """A step is `file: function`, further functions of that file stand behind it; no step names a
    file or a folder alone."""
    assert len(journeys()) == 4
    wrong = []
    for title, steps in journeys().items():
        for number, step in enumerate(steps, 1):
            named = re.findall(r"`([\w/]+(?:\.py|/))?(?:: )?(\w*)`", step.split("`: ")[0] + "`")
            place = ""
            for where, function in named:
                place = where or place
                path = PACKAGE / place
                is_there = place.endswith(".py") and path.exists()
                if not is_there or function not in {f.name for f in functions(tree_of(path))}:
                    wrong.append(f"{title} {number}: {place}: {function or 'no function'}")
            if not named:
                wrong.append(f"{title} {number}: no function")
    assert not wrong, wrong


def test_a_journey_crosses_at_most_40_files() -> None:
    """A reader can follow a publish, a pull, a catch-up and the creation of a stream in a day."""
    for title, steps in journeys().items():
        files = set(re.findall(r"`([\w/]+\.py)", "\n".join(steps)))
        assert len(files) <= 40, f"{title}: {len(files)} files"


def test_the_operating_page_quotes_lines_that_are_logged() -> None:
    """Each line in "What the log says" is a text of the source: an operator searches for it."""
    texts = []
    for path in sources():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.JoinedStr):
                parts = (v.value if isinstance(v, ast.Constant) else "\0" for v in node.values)
                texts.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    known = "\0".join(texts)
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    table = page.split("\n## What the log says\n")[1].split("\n## ")[0]
    lines = re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^\| (`.+?) \| ", table, re.MULTILINE)))
    assert len(lines) > 40
    wanted = {part.strip(" :") for line in lines for part in line.split("...")}
    assert not (gone := {part for part in wanted if part not in known}), gone


def test_the_compatibility_page_is_what_the_tables_give() -> None:
    """Nothing of nats-server's is missing, ignored or refused without a reason, and no reason is
    left of what is there by now. `python -m tests.parity.compatibility` writes the page anew."""
    subjects = {*peer.REQUESTS, *peer.SYSTEM_SUBJECTS, *peer.HEADERS}
    missing = subjects - own.requests() - own.system_subjects() - own.headers()
    assert missing == set(peer.UNSERVED)
    ignored = {key.path for key in own.config_keys() if key.service != "served"}
    assert ignored == set(peer.UNSERVED_KEYS)
    assert {status for status in peer.STATUSES if not own.sends(status)} == set(peer.NEVER_SENT)
    never = set(own.error_kinds().values()) - own.returned_errors()
    assert never == set(peer.NEVER_RETURNED)
    is_same = PAGE.read_text(encoding="utf-8") == render(load())
    assert is_same, "run python -m tests.parity.compatibility, and look at what it changes"
