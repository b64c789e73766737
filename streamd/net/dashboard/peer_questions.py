"""Questions that nodes ask each other for their dashboards, and how long they wait for answers.

    dashboard.node                          facts about a node itself
    dashboard.rows     [uid, ...]           rows of streams, of which the node has a replica
    dashboard.consumers [uid, ...]          rows of their consumers
    dashboard.page     name, account, stream, query      a document about one stream
    dashboard.verify                        verify all files from here on

A node that does not answer within a moment is left out: the page says so, and does not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final, Protocol

from streamd.errors import JsError, StreamdError
from streamd.limits import DASHBOARD_ANSWER_S, DASHBOARD_REMOTE_ROWS
from streamd.net.monitoring.query import BadQuery
from streamd.net.monitoring.sliced_pages import Slicer, Steps, whole
from streamd.node.ports import Answer, NodeHandle
from streamd.obs.server_log import Log
from streamd.types import Document, NodeId, Uid

PREFIX: Final = "dashboard."
NODE: Final = "dashboard.node"
ROWS: Final = "dashboard.rows"
CONSUMERS: Final = "dashboard.consumers"
PAGE: Final = "dashboard.page"
VERIFY: Final = "dashboard.verify"


class NotFound(BadQuery):
    """A query for what is not there: answered with 404."""


class Elsewhere(Exception):
    """A document that can't be had at the moment: who could build it does not answer (503)."""


class PageSource(Protocol):
    """Builder of what other nodes may ask for."""

    def node_facts(self) -> Steps[Document]:
        """Build facts about this node."""

    def stream_rows(self, uids: Sequence[Uid]) -> Steps[list[Document | None]]:
        """Build a row for each stream; None: it has no replica here."""

    def consumer_rows(self, uids: Sequence[Uid]) -> Steps[list[Document]]:
        """Build a row for each consumer of these streams, as far as they have a replica here."""

    async def stream_page(
        self, name: str, account: str, stream: str, query: Mapping[str, str]
    ) -> Document:
        """Build a document about one stream. Raises BadQuery."""

    def verify(self) -> bool:
        """Begin to verify all files; False: there are none."""


class PeerAnswers:
    """Answers to other nodes."""

    def __init__(
        self,
        source: PageSource,
        slicer: Slicer,
        create_task: Callable[..., asyncio.Task[None]],
        log: Log,
    ) -> None:
        self._log = log
        self._source = source
        self._slicer = slicer
        self._create_task = create_task

    def serve(self, sender: NodeId, method: str, args: list[object], answer: Answer) -> None:
        """Answer a call of another node."""
        self._create_task(self._answer(method, args, answer), name="dashboard-answer")

    async def _answer(self, method: str, args: list[object], answer: Answer) -> None:
        source, wait = self._source, self._slicer.wait
        try:
            if method == NODE:
                answer(await wait(source.node_facts()))
            elif method == ROWS:
                uids = [uid for uid in args if isinstance(uid, int)]
                answer(whole(await wait(source.stream_rows(uids))))
            elif method == CONSUMERS:
                uids = [uid for uid in args if isinstance(uid, int)]
                answer(await wait(source.consumer_rows(uids)))
            elif method == PAGE:
                name, account, stream, query = args
                assert isinstance(query, dict), query
                found = await source.stream_page(str(name), str(account), str(stream), query)
                answer([200, whole(found)])
            else:
                answer(source.verify())
        except NotFound as err:
            answer([404, str(err)])
        except BadQuery as err:
            answer([400, str(err)])
        except (Elsewhere, StreamdError) as err:
            answer([503, str(err)])
        except Exception as err:  # noqa: BLE001 a page of another node must not end this one
            self._log.error("a dashboard's question failed", method=method, reason=repr(err))
            answer([503, f"{type(err).__name__}: {err}"])


class PeerQuestions:
    """Questions to other nodes."""

    def __init__(self, node: NodeHandle) -> None:
        self._node = node

    async def ask(self, name: NodeId, method: str, args: Sequence[object]) -> object:
        """Return the answer of a node; None: it gave none in time, or knows no such question."""
        peers = self._node.peers
        if peers is None or not peers.is_up(name):
            return None
        told: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def done(found: object) -> None:
            if not told.done():
                told.set_result(None if isinstance(found, JsError) else found)

        peers.call(name, method, args, done, int(DASHBOARD_ANSWER_S * 1000))
        return await told

    async def ask_all(
        self, questions: Mapping[NodeId, Sequence[object]], method: str
    ) -> dict[NodeId, object]:
        """Ask some nodes at once; those that do not answer in time are left out."""
        names = list(questions)
        answers: dict[NodeId, object] = {}

        async def ask(name: NodeId) -> None:
            found = await self.ask(name, method, questions[name])
            if found is not None:
                answers[name] = found

        async with asyncio.TaskGroup() as asking:
            for name in names:
                asking.create_task(ask(name), name=f"dashboard-ask-{name}")
        return answers

    async def ask_about(
        self, streams: Mapping[NodeId, Sequence[Uid]], method: str
    ) -> AsyncIterator[tuple[NodeId, Sequence[Uid], list[object]]]:
        """Ask nodes about streams, so many at a time; iterates over (node, streams, answer).

        Who gives no answer is not asked for the rest: a page would wait for each."""
        while streams:
            asked = {name: uids[:DASHBOARD_REMOTE_ROWS] for name, uids in streams.items()}
            answers = await self.ask_all(asked, method)
            for name, answer in answers.items():
                if isinstance(answer, list):
                    yield name, asked[name], answer
            streams = {
                name: uids[DASHBOARD_REMOTE_ROWS:]
                for name, uids in streams.items()
                if name in answers and len(uids) > DASHBOARD_REMOTE_ROWS
            }

    async def page(
        self, name: NodeId, page: str, account: str, stream: str, query: Mapping[str, str]
    ) -> Document:
        """Return a document about a stream, which another node builds. Raises BadQuery,
        Elsewhere."""
        answer = await self.ask(name, PAGE, [page, account, stream, dict(query)])
        if not isinstance(answer, list) or len(answer) != 2:
            raise Elsewhere(f"{name}, which leads the stream, does not answer")
        status, found = answer
        if status == 200 and isinstance(found, dict):
            return found
        if status == 404:
            raise NotFound(str(found))
        if status == 400:
            raise BadQuery(str(found))
        raise Elsewhere(str(found))
