"""What subscribing and leaving costs when there are many: counted in comparisons, not in time."""

import pytest

from streamd.net.pubsub.subject_routes import RouteTable
from streamd.net.pubsub.sublist import Sublist, Subscription


class Counted:
    """How often subscriptions and subjects were compared."""

    def __init__(self):
        self.count = 0

    def subscription(self, pattern, queue=b""):
        outer = self

        class Sub(Subscription):
            __slots__ = ()
            __hash__ = Subscription.__hash__

            def __eq__(self, other):
                outer.count += 1
                return self is other

        return Sub(pattern, queue, callback=_ignore)

    def subject(self, text):
        outer = self

        class Subject(bytes):
            __slots__ = ()

            def __lt__(self, other):
                outer.count += 1
                return bytes.__lt__(self, other)

            def startswith(self, *args):
                outer.count += 1
                return bytes.startswith(self, *args)

        return Subject(text)


def _ignore(*_args):
    """A subscription of the server itself."""


@pytest.mark.parametrize("pattern", [b"news", b"news.*"])
@pytest.mark.parametrize("queue", [b"", b"q"])
def test_leaving_a_crowd_compares_no_subscriptions(pattern, queue):
    counted, sublist = Counted(), Sublist()
    subs = [counted.subscription(pattern, queue) for _ in range(500)]
    for sub in subs:
        sublist.insert(sub)
    for sub in reversed(subs):
        sublist.remove(sub)
    assert counted.count == 0 and sublist.count == 0
    assert not sublist.match(b"news").plain


def test_members_keep_the_order_in_which_they_came():
    sublist = Sublist()
    subs = [Subscription(b"a", b"", b"%d" % at) for at in range(5)]
    for sub in subs:
        sublist.insert(sub)
    sublist.remove(subs[1])
    assert sublist.match(b"a").plain == [subs[0], *subs[2:]]


def test_groups_of_one_subject_are_not_compared_with_each_other():
    """A group of many patterns is found by its name."""
    count = 0

    class Name(bytes):
        def __eq__(self, other):
            nonlocal count
            count += 1
            return bytes.__eq__(self, other)

        __hash__ = bytes.__hash__

    sublist = Sublist()
    for pattern in (b"a", b"*"):
        for at in range(1000):
            sublist.insert(Subscription(pattern, Name(b"q%d" % at), callback=_ignore))
    count = 0
    found = sublist.match(b"a").queues
    assert len(found) == 1000 and {len(members) for members in found} == {2}
    assert count < 5000


def test_a_wildcard_subscription_does_not_go_through_all_known_subjects():
    """Thousands of connections come or go at once, and each has one for its inbox."""
    counted = Counted()
    table = RouteTable(Sublist())
    for at in range(2000):
        table.find(counted.subject(b"orders.%d.new" % at))
    table.on_interest_changed(b"_INBOX.first.*")  # puts them in order
    counted.count = 0
    for at in range(200):
        table.on_interest_changed(b"_INBOX.%d.*" % at)
        table.find(counted.subject(b"more.%d.new" % at))
    assert len(table.routes) == 2200
    assert counted.count < 100 * 200


def test_subjects_that_begin_alike_and_no_others_are_forgotten():
    table = RouteTable(Sublist())
    subjects = [b"a", b"a.b", b"a.b.c", b"a.bc", b"a-b.c", b"a/b", b"b.a"]
    for subject in subjects:
        table.find(subject)
    table.on_interest_changed(b"a.b.>")
    assert set(table.routes) == set(subjects) - {b"a.b.c"}
    table.find(b"a.b.c")
    table.on_interest_changed(b"a.*")
    assert set(table.routes) == {b"a", b"a-b.c", b"a/b", b"b.a"}


def test_subjects_that_come_and_go_leave_nothing_behind(monkeypatch):
    """Each literal subscription takes a subject out that the next publish brings back."""
    monkeypatch.setattr("streamd.net.pubsub.subject_cache.NET_ROUTE_CACHE_MAX", 50)
    table = RouteTable(Sublist())
    for _ in range(200):
        table.find(b"a.b")
        table.on_interest_changed(b"a.b")
    known = table.routes
    assert len(known._added) + len(known._ordered) <= 100
    table.find(b"a.b")
    table.on_interest_changed(b"a.>")
    assert not table.routes
