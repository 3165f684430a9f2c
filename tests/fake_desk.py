"""A desk (`Service`) without model, database or clock: fixed answers chosen by words in the question. For tests and
screenshots.

Words that matter, besides those of `fake_answers`: "crash" fails before the answer, "break" in the middle.

Documents whose names have "crash" in them fail when they are taken in or forgotten, "unreadable" ones are refused.
"""

import threading
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

from fake_answers import CITATIONS, CONTACTS, HOSTILE, make_answer
from fake_overview import make_memory_plan, make_overview, make_savings, make_usage, make_usage_within
from fake_quality import FakeQuality
from fake_sync import FakeSync

from app.domain.answers import ConversationSummary, Handoff, ModelNames, Overview, Turn
from app.domain.callers import OPERATOR
from app.domain.documents import CollectionSize, PassageState, StoredDocument, StoredPassage, UnreadFile
from app.domain.errors import DeskError
from app.domain.progress import ReadingCost, no_progress
from app.domain.settings import Settings
from app.domain.statistics import Load, MemoryPlan, Savings, UsageSpan
from app.knowledge.forget import CollectionForgotten, Footprint, Forgotten
from app.knowledge.ingest import IngestReport
from app.knowledge.uploads import safe_name
from app.lookups.definitions import load
from app.storage.conversation_care import Erased
from app.storage.lookups import Figures
from cache.memory.keys import ModuleCheck

ORDER_SYSTEM = Path(__file__).parents[1] / "examples" / "order-system" / "lookups.toml"

NOW = datetime(2026, 3, 12, 10, 42, tzinfo=UTC)
MAX_QUESTION = 4000
DRAWN_S = 0.05  # longer than the page waits at least from one drawing of an answer to the next


class FakeStream:
    """Gives the text word by word, then stores the turn."""

    def __init__(self, desk, conversation_id, question, owner, replaces=""):
        self._desk, self._conversation_id, self._question, self._owner = desk, conversation_id, question, owner
        self._replaces = replaces
        self.cancelled = threading.Event()
        self._answer = None

    def __iter__(self):
        answer = make_answer(self._conversation_id, self._desk.new_id(), self._question)
        words = answer.answer.split(" ")
        self.cancelled.wait(self._desk.wait_s)
        said = ""
        for i, word in enumerate(words):
            if i == self._desk.held_at:
                self.cancelled.wait(DRAWN_S)
            if self.cancelled.is_set():
                break
            if "break" in self._question and i == 5:
                raise DeskError("The model ran out of memory: restart with a smaller --memory.", code="out-of-memory")
            piece = word if i == 0 else " " + word
            said += piece
            yield piece
            while i == self._desk.held_at and not self.cancelled.wait(0.01):
                pass
            if self._desk.piece_s:
                time.sleep(self._desk.piece_s)
        if said != answer.answer:
            if not said:
                raise DeskError("the answer was stopped before it began", code="no-answer")
            answer = replace(answer, answer=said, notice="Stopped before the end.")
        self._desk.store(self._question, answer, owner=self._owner, replaces=self._replaces)
        self._answer = answer

    @property
    def answer(self):
        if self._answer is None:
            raise DeskError("There is no answer.", code="no-answer")
        return self._answer

    def cancel(self):
        self.cancelled.set()


def fake_document(path, title, *, collection="", loaded_at=NOW, number=1):
    """A document as it is listed."""
    of = {"id": number, "path": path, "title": title, "collection": collection}
    return StoredDocument(**of, content_hash="b2:1/400", loaded_at=loaded_at, num_passages=3)


def crash_at(text):
    if "crash" in text:
        raise RuntimeError("an internal path /secret/place")


def no_conversation():
    return DeskError("there is no such conversation", code="no-such-conversation")


class FakeDesk:
    """Has the methods of `Service` that pages call.

    wait_s: before the first word; piece_s: after each word. held_at: the word behind which answers
    stop, for as long as this stays as it is.
    """

    def __init__(self, *, seeded=True, wait_s=0.0, piece_s=0.0, now=NOW):
        self.wait_s, self.piece_s, self.now = wait_s, piece_s, now
        self.held_at = None
        self.seeded, self.ready = seeded, True
        self.reading = self.read = None
        self.typed = []
        self.said = []
        self.streams = []
        self.ingested = []
        self.uploads = {}
        self.cared = []
        self.listed = {}
        if seeded:
            for number, one in enumerate(CITATIONS, start=1):
                path = f"/help/{one.document}"
                self.listed[path] = fake_document(path, one.title, loaded_at=now - timedelta(days=3), number=number)
        self._turns = {}
        self._titles = {}
        self._hidden = {}
        self._owners = {}
        self.synced = FakeSync(now)
        shop = Settings(private_hosts=("127.0.0.1:8099",))
        figures = Figures(by_event={"asked": 41, "found": 30, "not_found": 6, "failed": 1, "cancelled": 4}, ms=182.0)
        self.lookups = SimpleNamespace(all=lambda: load(ORDER_SYSTEM, shop), figures=lambda _: figures)
        self.quality = FakeQuality(now, make_answer("", "", "returns"))
        self.file = None  # of the first citation of every answer
        self.handed = {}
        self.first = ""  # the first who looks owns what was there
        self._updated = {}
        self._ids = 0
        self._lock = threading.Lock()
        if seeded:
            for hours, question in (
                (400, "How do I descale the KM-450 coffee machine?"),
                (80, "Is the cast-iron pan covered by the warranty, and what about rust on the lid?"),
                (26, "weather in Galway tomorrow"),
                (2, "Can I return a duvet I have unpacked?"),
            ):
                identity = self.new_id()
                self.store(question, make_answer(identity, self.new_id(), question), now - timedelta(hours=hours))

    def new_id(self):
        with self._lock:
            self._ids += 1
            return f"{self._ids:032x}"

    def store(self, question, answer, when=None, owner="", replaces=""):
        when = when or self.now
        with self._lock:
            self._ids += 1
            self._owners.setdefault(answer.conversation_id, owner)
            turns = self._turns.setdefault(answer.conversation_id, [])
            del turns[next((at for at, turn in enumerate(turns) if turn.message_id == replaces), len(turns)) :]
            turns.append(Turn(message_id=f"q{self._ids}", role="user", text=question, created=when))
            said = {"message_id": answer.message_id, "text": answer.answer, "answer": answer}
            turns.append(Turn(**said, role="assistant", created=when))
            self._updated[answer.conversation_id] = when + timedelta(microseconds=self._ids)

    def belongs(self, conversation_id, owner):
        self.first = self.first or owner
        return (self._owners.get(conversation_id) or self.first) == owner

    def ask(
        self,
        question,
        *,
        owner=OPERATOR,
        conversation_id=None,
        reuse="on",
        earlier=(),
        replaces="",
        user="",
        address="",
    ):
        if conversation_id is not None and not self.belongs(conversation_id, owner):
            raise DeskError("there is no such conversation", code="conversation-unknown")
        if len(question) > MAX_QUESTION:
            raise DeskError(f"at most {MAX_QUESTION:,} characters are possible", code="question-too-long")
        crash_at(question)
        stream = FakeStream(self, conversation_id or self.new_id(), question, owner, replaces)
        self.streams.append(stream)
        return stream

    def prefetch(self, text, *, owner, conversation_id=None):
        self.typed.append((text, conversation_id))

    def conversations(self, owner=OPERATOR, limit=50, query=""):
        latest = sorted(self._updated.items(), key=lambda item: item[1], reverse=True)
        found = [
            ConversationSummary(id=key, title=self._title(key), updated=when, turns=len(self._turns[key]))
            for key, when in latest
            if self.belongs(key, owner) and self._turns[key] and self._holds(key, query.casefold().split())
        ]
        return found[:limit]

    def _title(self, conversation_id):
        return self._titles.get(conversation_id) or self._turns[conversation_id][0].text[:80]

    def _holds(self, conversation_id, words):
        texts = [self._title(conversation_id), *(turn.text for turn in self._turns[conversation_id])]
        text = "\n".join(texts).casefold()
        return all(word in text for word in words)

    def turns(self, conversation_id, owner=OPERATOR, last=None):
        turns = self._turns.get(conversation_id, []) if self.belongs(conversation_id, owner) else []
        return turns[-last if last else 0 :]

    def rename_conversation(self, conversation_id, title, owner=OPERATOR):
        if not self.turns(conversation_id, owner):
            raise no_conversation()
        self._titles[conversation_id] = " ".join(title.split())[:80]

    def conversation(self, conversation_id, owner=OPERATOR):
        return next((one for one in self.conversations(owner, 1000) if one.id == conversation_id), None)

    def erase(self, owner=OPERATOR):
        its = [key for key in self._updated if self.belongs(key, owner)]
        messages = sum(len(self._turns[key]) for key in its)
        for key in its:
            del self._turns[key], self._updated[key]
        return Erased(conversations=len(its), messages=messages, feedback=0)

    def restore_conversation(self, conversation_id, owner=OPERATOR):
        if conversation_id not in self._hidden or not self.belongs(conversation_id, owner):
            raise no_conversation()
        self._turns[conversation_id], self._updated[conversation_id] = self._hidden.pop(conversation_id)

    def last_question(self, conversation_id, owner=OPERATOR):
        turns = self.turns(conversation_id, owner)
        if not turns:
            raise no_conversation()
        return [turn.message_id for turn in turns if turn.role == "user"][-1]

    def feedback(self, message_id, value, reason="", *, owner=OPERATOR):
        self.said.append((message_id, value, reason))
        for turns in self._turns.values():
            turns[:] = [replace(turn, feedback=value) if turn.message_id == message_id else turn for turn in turns]

    def delete_conversation(self, conversation_id, owner=OPERATOR):
        if self.belongs(conversation_id, owner) and conversation_id in self._turns:
            self._hidden[conversation_id] = self._turns.pop(conversation_id), self._updated.pop(conversation_id)

    def handoff(self, conversation_id, owner):
        found = self.handed.get(conversation_id) if self.belongs(conversation_id, owner) else None
        return None if found is None else replace(found, messages=len(self._turns.get(conversation_id, ())))

    def handoffs(self, owner):
        return [one for key, one in self.handed.items() if self.belongs(key, owner)]

    def hand_off(self, reason, *, owner, conversation_id=None, text="", email=""):
        conversation_id = conversation_id or self.new_id()
        if text:
            self.say(text, conversation_id, owner)
        of = {"conversation_id": conversation_id, "state": "left" if email else "waiting", "reason": reason}
        self.handed[conversation_id] = Handoff(**of, id=len(self.handed) + 1, requested=self.now, email=email, place=2)
        return self.handed[conversation_id]

    def say(self, text, conversation_id, owner, role="user", author=""):
        self._owners.setdefault(conversation_id, owner)
        turn = Turn(message_id=self.new_id(), role=role, text=text, created=self.now, author=author)
        self._turns.setdefault(conversation_id, []).append(turn)
        self._updated[conversation_id] = self.now + timedelta(microseconds=self._ids)

    def to_person(self, text, conversation_id, owner):
        found = self.handoff(conversation_id or "", owner)
        if found is not None and found.is_with_person:
            self.say(text, found.conversation_id, owner)
            return found
        if "a human" in text:
            return self.hand_off("keyword", owner=owner, conversation_id=conversation_id, text=text)
        return None

    def hand_off_by_rule(self, conversation_id, owner):
        answers = [turn.answer for turn in self.turns(conversation_id, owner) if turn.answer is not None]
        refused = len(answers) > 1 and all(answer.refused for answer in answers[-2:])
        return self.hand_off("refused", owner=owner, conversation_id=conversation_id) if refused else None

    def end_handoff(self, conversation_id, owner):
        found = self.handoff(conversation_id, owner)
        if found is not None:
            self.handed[conversation_id] = replace(found, state="closed", fresh=True)

    def documents(self):
        return [self.listed[path] for path in sorted(self.listed)]

    def collections(self):
        names = sorted({one.collection for one in self.listed.values()})
        counts = {name: sum(one.collection == name for one in self.listed.values()) for name in names}
        return [CollectionSize(name=name, documents=n, passages=3 * n, tokens=900 * n) for name, n in counts.items()]

    def passages(self, path, first, most):
        document = self.listed[path]
        kept = (("device", self.now - timedelta(hours=2)), ("disk", None), ("none", None))
        of = {"document": path, "title": document.title, "collection": document.collection, "url": document.url}
        found = []
        for ordinal in range(document.num_passages)[first : first + most]:
            tier, last_used = kept[ordinal % 3]
            passage = StoredPassage(
                **of,
                id=ordinal + 1,
                ordinal=ordinal,
                heading_path=(document.title, f"Section {ordinal + 1}"),
                text=HOSTILE if "hostile" in path else CITATIONS[ordinal % 3].quote,
                content_hash=f"b2:{ordinal}",
                num_tokens=300,
                module_key=None if tier == "none" else f"b2:{ordinal}",
            )
            found.append(PassageState(passage=passage, tier=tier, last_used=last_used))
        return found

    def forget_collection(self, name):
        paths = [path for path, one in self.listed.items() if one.collection == name]
        if not paths:
            raise DeskError(f"there are no documents in the collection {name!r}", code="collection-unknown")
        one, *_ = [self.forget(path) for path in paths]
        return CollectionForgotten(collection=name, documents=len(paths), removed=one.removed, left=one.left)

    def ingest(self, paths, progress=no_progress, *, collection="", sync=False, warm=True):
        names = [str(path) for path in paths]
        self.ingested.append((names, {"collection": collection, "sync": sync, "warm": warm}))
        report = IngestReport()
        for done, name in enumerate(names):
            crash_at(name)
            progress("reading", done, len(names))
            if "unreadable" in name:
                report.failed.append(UnreadFile(path=name, reason="no text in it"))
                continue
            report.replaced += name in self.listed
            self.listed[name] = fake_document(name, Path(name).stem, collection=collection)
            report.documents, report.passages = report.documents + 1, report.passages + 3
            report.changes.new, report.modules.encoded = report.changes.new + 3, report.modules.encoded + 3
        for stage in ("reading", "embedding", "encoding"):
            progress(stage, len(names), len(names))
        return report

    def forget(self, name):
        crash_at(name)
        if name not in self.listed:
            raise DeskError(f"there is no document {name!r}", code="document-unknown")
        del self.listed[name]
        removed = Footprint(passages=3, vectors=5, keywords=5, quotes=1, modules=3)
        return Forgotten(document=name, removed=removed, left=Footprint(**dict.fromkeys(asdict(removed), 0)))

    def upload(self, name, data, progress=no_progress, *, collection=""):
        plain = safe_name(name)
        self.uploads[plain] = data
        report = self.ingest([Path("/desk/uploads") / plain], progress, collection=collection, warm=False)
        if report.failed:
            raise DeskError(f"{plain}: {report.failed[0].reason}", code="unreadable")
        return report

    def overview(self):
        none = dict.fromkeys(("documents", "passages", "conversations", "answers", "answered", "unsure", "refusals"), 0)
        none |= dict.fromkeys((f"{source}_tokens" for source in ("computed", "session", "prefix", "module")), 0)
        empty = Overview(**none, smalltalk=0, ttft_ms_median=None, ttft_ms_p95=None)
        return make_overview(self.now) if self.seeded else empty

    def usage_within(self, since, until, step):
        return make_usage_within(since, until, step) if self.seeded else UsageSpan(start=since)

    def usage_over_time(self, since, until, step):
        return make_usage(since, until, step) if self.seeded else []

    def savings(self, since, until):
        return make_savings() if self.seeded else Savings()

    def memory_plan(self):
        return make_memory_plan() if self.seeded else MemoryPlan()

    def reading_cost(self, neighbours):
        return ReadingCost(modules=412, seconds=60.0 * (1 + neighbours))

    @property
    def module_care(self):
        return self

    def warm(self, key):
        self.cared.append(("warm", key))

    def evict(self, key):
        self.cared.append(("evict", key))

    def keep(self, key, *, is_kept):
        self.cared.append(("keep" if is_kept else "release", key))

    def verify(self, key):
        if key not in {row.id for row in self.overview().modules}:
            raise DeskError("this passage no longer exists", code="module-unknown")
        self.cared.append(("verify", key))
        return ModuleCheck(largest_difference=0.0 if key.endswith("0") else 0.5)

    def source_file(self, message_id, rank, owner=OPERATOR):
        cited = [one for key in self._turns for one in self.turns(key, owner) if one.message_id == message_id]
        return self.file if cited and rank == 0 else None

    def examples(self):
        return ["Do you deliver to Northern Ireland?", "Do gift cards expire?"]

    def models(self):
        return ModelNames(language="fake", embedder="fake-embedder", dimension=3)

    def load(self):
        return Load(model="fake", documents=len(self.listed), passages=3 * len(self.listed))

    def listen(self, listener): ...

    def contacts(self):
        return CONTACTS

    def passages_read(self):
        return self.reading

    def documents_read(self):
        return self.read

    def missing(self):
        return () if self.ready else ("model", "engine")

    def is_ready(self):
        return self.ready
