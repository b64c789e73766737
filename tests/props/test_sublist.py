"""The subscription index and the route cache against asking every subscription in turn."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streamd.net.pubsub.subject_routes import RouteTable
from streamd.net.pubsub.sublist import Sublist, Subscription
from streamd.subjects import Matcher, collides, is_subset, is_valid, matches

_token = st.sampled_from([b"a", b"b", b"_INBOX"])
_literal = st.lists(_token, min_size=1, max_size=4).map(b".".join)
_pattern = st.builds(
    lambda tokens, tail: b".".join(tokens + tail),
    st.lists(st.one_of(_token, st.just(b"*")), min_size=1, max_size=3),
    st.sampled_from([[], [b">"]]),
)


@given(_pattern, _pattern, _literal)
def test_pattern_relations_agree_with_matching(a, b, subject):
    assert is_valid(a) and is_valid(b) and is_valid(subject)
    if matches(a, subject) and matches(b, subject):
        assert collides(a, b)
    if is_subset(a, b) and matches(a, subject):
        assert matches(b, subject)
    assert Matcher([a, b]).matches(subject) == (matches(a, subject) or matches(b, subject))


class Registry(RuleBasedStateMachine):
    """Subscriptions come and go; looked-up subjects stay in the cache meanwhile."""

    def __init__(self):
        super().__init__()
        self.sublist = Sublist()
        self.table = RouteTable(self.sublist)
        self.subs = []
        self.asked = set()
        self.streams = []  # patterns: each is a stream of its own

    @rule(pattern=_pattern, queue=st.sampled_from([b"", b"", b"q", b"r"]))
    def subscribe(self, pattern, queue):
        sub = Subscription(pattern, queue, callback=lambda *_: None)
        self.subs.append(sub)
        self.sublist.insert(sub)
        self.table.on_interest_changed(pattern)

    @rule(pattern=_pattern)
    def add_stream(self, pattern):
        self.streams.append(pattern)
        self.table.set_streams(self.streams_for, self.streams_under)

    @rule(pick=st.integers(0, 10**6))
    def remove_stream(self, pick):
        if self.streams:
            del self.streams[pick % len(self.streams)]
            self.table.set_streams(self.streams_for, self.streams_under)

    def streams_for(self, subject):
        return tuple(pattern for pattern in self.streams if matches(pattern, subject))

    def streams_under(self, prefix):
        under = prefix + b"*"
        found = tuple(pattern for pattern in self.streams if is_subset(under, pattern))
        partly = [pattern for pattern in self.streams if collides(under, pattern)]
        return found if len(found) == len(partly) else None

    @rule(pick=st.integers(0, 10**6))
    def unsubscribe(self, pick):
        if self.subs:
            sub = self.subs.pop(pick % len(self.subs))
            self.sublist.remove(sub)
            self.table.on_interest_changed(sub.pattern)

    @rule(subject=_literal)
    def look_up(self, subject):
        self.asked.add(subject)
        self.check(subject)

    def check(self, subject):
        wanted = [sub for sub in self.subs if matches(sub.pattern, subject)]
        route = self.table.find(subject)
        assert route.streams == self.streams_for(subject)
        assert sorted(map(id, route.plain)) == sorted(id(s) for s in wanted if not s.queue)
        groups = {}
        for sub in wanted:
            if sub.queue:
                groups.setdefault(sub.queue, set()).add(id(sub))
        found = [set(map(id, members)) for members in route.queues]
        assert sorted(map(sorted, found)) == sorted(map(sorted, groups.values()))
        prefix = subject[: subject.rfind(b".") + 1]
        if prefix:
            shared = self.table.find_under(prefix)
            if shared is not None:
                assert sorted(map(id, shared.plain)) == sorted(map(id, route.plain))

    @invariant()
    def the_cache_is_never_stale(self):
        for subject in self.asked:
            self.check(subject)
        assert self.sublist.count == len(self.subs)
        assert len(list(self.sublist.all())) == len(self.subs)


Registry.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestRegistry = Registry.TestCase
