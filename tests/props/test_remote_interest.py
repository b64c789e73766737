"""Clients at three servers, links that break and heal, against asking every subscription in turn.

The model knows who subscribes to what and where. A message reaches each plain subscription whose
server is linked with the publisher's, and one member of each queue group, from the publisher's own
server if it has one.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from streamd.subjects import matches
from tests.unit.net.mesh import Mesh

_subject = st.sampled_from([b"a", b"a.b", b"b", b"_INBOX.a", b"_INBOX.a.b"])
_pattern = st.sampled_from(
    [b"a", b"a", b"a.b", b"a.*", b"*", b"*.b", b">", b"_INBOX.a", b"_INBOX.*", b"_INBOX.a.*"]
)
_queue = st.sampled_from([b"", b"", b"q", b"r"])
_server = st.sampled_from(["a", "b", "c"])
_sub = st.tuples(_server, st.integers(0, 1), _pattern, _queue)


class Cluster(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.mesh = Mesh(3)
        self.clients = {name: [self.mesh.peer(name), self.mesh.peer(name)] for name in "abc"}
        self.publishers = {name: self.mesh.peer(name) for name in "abc"}
        self.subs = {}  # sid -> (server, client, pattern, queue)
        self.broken = set()  # links
        self.sid = 0
        self.published = 0

    @initialize(subs=st.lists(_sub, min_size=8, max_size=12))
    def start(self, subs):
        self.subscribe(subs)

    @rule(subs=st.lists(_sub, min_size=2, max_size=5))
    def subscribe(self, subs):
        for sub in subs:
            self.sid += 1
            self.subs[self.sid] = sub
            server, client, pattern, queue = sub
            self.clients[server][client].send(b"SUB %b %b %d\r\n" % (pattern, queue, self.sid))

    @rule(pick=st.integers(0, 10**6))
    def unsubscribe(self, pick):
        if self.subs:
            sid = sorted(self.subs)[pick % len(self.subs)]
            server, client, _, _ = self.subs.pop(sid)
            self.clients[server][client].send(b"UNSUB %d\r\n" % sid)

    @rule(server=_server, client=st.integers(0, 1))
    def reconnect(self, server, client):
        self.clients[server][client].leave()
        self.clients[server][client] = self.mesh.peer(server)
        for sid, (at, who, _, _) in list(self.subs.items()):
            if (at, who) == (server, client):
                del self.subs[sid]

    @rule(ends=st.sampled_from(["ab", "ac", "bc"]))
    def flip_link(self, ends):
        if ends in self.broken:
            self.broken.discard(ends)
            self.mesh.join(*ends)
        else:
            self.broken.add(ends)
            self.mesh.part(*ends)

    @rule(
        server=_server, subjects=st.lists(_subject, min_size=2, max_size=3), count=st.integers(1, 4)
    )
    def publish(self, server, subjects, count):
        self.mesh.settle()
        self.take()
        lines, expected = [], []
        for subject in subjects:
            for _ in range(count):
                self.published += 1
                payload = b"%08d" % self.published
                lines.append(b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload))
                expected.append((subject, payload))
        self.publishers[server].send(b"".join(lines))
        self.mesh.settle()
        got = self.take()
        for subject, payload in expected:
            self.check(server, subject, {sid for sid, which in got if which == payload})
        assert len(got) == len(set(got))

    def take(self):
        """(sid, payload) of each message that clients got."""
        found = []
        for clients in self.clients.values():
            for client in clients:
                lines = client.take().split(b"\r\n")
                for head, payload in zip(lines[0:-1:2], lines[1::2], strict=True):
                    found.append((int(head.split()[2]), payload))
        return found

    def check(self, origin, subject, got):
        reachable = {name for name in "abc" if "".join(sorted((origin, name))) not in self.broken}
        wanted = {
            sid: (server, queue)
            for sid, (server, _, pattern, queue) in self.subs.items()
            if server in reachable and matches(pattern, subject)
        }
        assert got <= set(wanted)
        assert {sid for sid in got if not wanted[sid][1]} == {
            sid for sid, (_, queue) in wanted.items() if not queue
        }
        for name in (b"q", b"r"):
            members = {sid for sid, (_, queue) in wanted.items() if queue == name}
            chosen = got & members
            assert len(chosen) == (1 if members else 0)
            here = {sid for sid in members if wanted[sid][0] == origin}
            assert chosen <= (here or members)

    @invariant()
    def interest_is_what_others_want(self):
        self.mesh.settle()
        for server in "abc":
            interest = self.mesh.beds[server].subscriptions.remote_interest
            for node in self.mesh.remotes[server].nodes():
                wanted = {
                    (pattern, queue)
                    for at, _, pattern, queue in self.subs.values()
                    if at == node.node_id
                }
                found = [(one.pattern, one.queue) for one in interest.of_node(node.node_id)]
                assert len(found) == len(wanted) and set(found) == wanted


Cluster.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestCluster = Cluster.TestCase
