"""Subject mappings of a real nats-server, which `streamd.subject_mapping` repeats."""

from __future__ import annotations

import random
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.servers import ServerProcess
from streamd.config.account_options import MappingDestination, SubjectMapping
from streamd.subject_mapping import SubjectTransform, WeightedMappings
from tests.parity.runner import peer_binary
from tests.unit.test_subject_mapping import REFUSED
from tests.wire import Wire

pytestmark = pytest.mark.slow

RULES = 400
TOKENS = ("a", "bb", "ccc", "x-y", "-x", "1234567", "a-b-c", "$1", "täg", "{{x}}")
FUNCTIONS = (
    "$%d", "{{wildcard(%d)}}", "{{ Wildcard( %d ) }}", "{{partition(7,%d)}}", "{{partition(31)}}",
    "{{Partition(100, %d)}}", "{{split(%d,-)}}", "{{splitfromleft(%d,2)}}",
    "{{SplitFromLeft(%d,1)}}", "{{splitFromRight(%d,2)}}", "{{slicefromleft(%d,2)}}",
    "{{SliceFromRight(%d,3)}}", "{{left(%d,2)}}", "{{Right(%d,1)}}", "{{right(%d, 4)}}",
)  # fmt: skip


@pytest.fixture(scope="module")
def peer_path() -> str:
    found = peer_binary()
    if not found:
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    return found


def random_rule(chance: random.Random, number: int) -> tuple[str, str, str]:
    """Return a source that no other rule has, a destination for it and a subject that it maps."""
    source, subject = [f"s{number}"], [f"s{number}"]
    for _ in range(chance.randrange(4)):
        token = chance.choice(TOKENS)
        source.append(chance.choice(("*", "*", token)))
        subject.append(token)
    wildcards = source.count("*")
    has_rest = chance.random() < 0.3
    if has_rest:
        source.append(">")
        subject += chance.choices(TOKENS, k=chance.randrange(1, 4))
    destination = ["d"]
    for _ in range(chance.randrange(5)):
        function = chance.choice(FUNCTIONS)
        if wildcards and chance.random() < 0.8:
            number = chance.randrange(wildcards) + 1
            destination.append(function % number if "%" in function else function)
        else:
            destination.append(chance.choice(("e", "f-g", "$x", "{{}}", "{{random(1)}}")))
    if has_rest:
        destination.append(">")
    return ".".join(source), ".".join(destination), ".".join(subject)


def test_random_subjects_become_the_same(peer_path: str, tmp_path: Path) -> None:
    chance = random.Random(20261126)
    rules = [random_rule(chance, number) for number in range(RULES)]
    lines = [f'"{source}": "{destination}"' for source, destination, _ in rules]
    config = "\n".join(["mappings {", *lines, "}"])
    theirs: dict[str, str] = {}
    with ServerProcess(peer_path, directory=tmp_path, extra=config, is_jetstream=False) as server:
        server.start()
        with Wire(server.port) as wire:
            wire.subscribe(">")
            for _, _, subject in rules:
                wire.publish(subject, subject.encode())
            for frame in wire.fence():
                theirs[frame.payload.decode()] = frame.subject
    ours = {}
    for source, destination, subject in rules:
        mapped = SubjectTransform(source.encode(), destination.encode()).apply(subject.encode())
        assert mapped is not None, (source, subject)
        text = mapped.decode(errors="replace")
        if ".." not in text and not text.endswith("."):  # such a subject reaches nobody
            ours[subject] = text
    assert ours == theirs and len(ours) > RULES * 0.8


@pytest.mark.parametrize("first", range(0, len(REFUSED), 10))
def test_rules_are_refused_in_the_same_words(first: int, peer_path: str, tmp_path: Path) -> None:
    for at, (source, destination, text) in enumerate(REFUSED[first : first + 10]):
        if ".." in source or ">" in source[:-1]:
            continue  # refused before, as no subject
        path = tmp_path / f"{at}.conf"
        path.write_text(f'mappings {{ "{source}": "{destination}" }}\n')
        done = subprocess.run(
            [peer_path, "-c", str(path), "-t"], capture_output=True, text=True, check=False
        )
        assert done.stderr.strip().endswith(f'to "{destination}" : {text}'), (destination, done)


def test_weights_are_the_same_shares(peer_path: str, tmp_path: Path) -> None:
    table = {
        "a": (("b", 20), ("c", 30)),
        "w.*": (("v.$1", 50),),
        "l": (("l", 50), ("m", 25)),
        "o": (("p", 100),),
    }
    count = 4000
    lines = [
        f'"{source}": [{", ".join(f"{{dest: {to}, weight: {weight}}}" for to, weight in each)}]'
        for source, each in table.items()
    ]
    config = "\n".join(["mappings {", *lines, "}"])
    subjects = ("a", "w.x", "l", "o", "z")
    theirs: dict[str, Counter[str]] = {subject: Counter() for subject in subjects}
    with ServerProcess(peer_path, directory=tmp_path, extra=config, is_jetstream=False) as server:
        server.start()
        with Wire(server.port) as wire:
            wire.subscribe(">")
            for subject in subjects:
                for _ in range(count):
                    wire.publish(subject, subject.encode())
                for frame in wire.fence():
                    theirs[subject][frame.subject] += 1
    rules = [
        SubjectMapping(source, tuple(MappingDestination(*to) for to in each))
        for source, each in table.items()
    ]
    mappings = WeightedMappings(rules, random.Random(5).randrange)
    for subject in subjects:
        mapped = (mappings.map(subject.encode()) for _ in range(count))
        ours = Counter(each.decode() for each in mapped if each is not None)
        assert set(ours) == set(theirs[subject])
        for to, number in ours.items():
            assert abs(number - theirs[subject][to]) < 0.05 * count, (subject, to)
