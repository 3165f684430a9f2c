"""Conversations that go to a person: states, rules, who may do what, and what the machine does meanwhile."""

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from desks import finish, small_desk, write_pages
from refusals import one_line
from stored_answers import add_turn

from app.answering.prepare import with_agents
from app.api.wire import told
from app.domain.callers import OPERATOR
from app.domain.errors import DeskError
from app.domain.setting_types import is_open, office_hours
from app.domain.settings import Settings
from app.storage.conversation_care import ConversationCare
from app.storage.database import open_database
from app.storage.handoffs import Judged
from app.storage.history import History, PastMessage
from app.support.handoff import WATCHED_FOR, AgentQueue, HandingOff, due

ANN, BOB = "v-ann", "v-bob"
MONDAY = datetime(2026, 3, 9, 10, 0, tzinfo=UTC)
HOURS = "Mon-Fri 9:00-17:00 Europe/Dublin"
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""Of tests that ask little of the database."""


class People:
    """A database with both sides of a hand-off, and a clock that is set by hand."""

    def __init__(self, folder: Path, database_url: str) -> None:
        self.now = MONDAY
        self.database = open_database(database_url)
        self.history = History(self.database)
        self.settings(Settings(data_dir=folder))

    def settings(self, settings: Settings) -> None:
        self.customers = HandingOff(self.database, self.history, settings, now=lambda: self.now)
        self.agents = AgentQueue(self.database, settings, now=lambda: self.now)

    def conversation(self, owner: str = ANN, refused: int = 0) -> str:
        started = self.history.start_conversation("Where is my parcel?", owner)
        for number in range(max(refused, 1)):
            add_turn(self.history, started, number, refused=bool(refused))
        return started

    def waiting(self, owner: str = ANN) -> tuple[str, int]:
        """A conversation that waits, and the number of its hand-off."""
        started = self.conversation(owner)
        return started, self.customers.hand_off("button", owner=owner, conversation_id=started).id


@pytest.fixture
def people(tmp_path, database_url):
    people = People(tmp_path, database_url)
    with closing(people.database):
        yield people


@ON_SQLITE
def test_the_limit_of_conversations_is_for_customers(people, tmp_path):
    """Was wrong once: a program could hand off 500 conversations, and no more."""
    people.settings(Settings(data_dir=tmp_path, conversations_kept=1))
    for _ in range(2):
        assert people.customers.hand_off("api", owner="k-1", text="Help").state == "waiting"
    people.customers.hand_off("button", owner=ANN, text="Help")
    with pytest.raises(DeskError) as caught:
        people.customers.hand_off("button", owner=ANN, text="Help")
    assert told(caught.value).status == 409, "the API can say it"


def test_from_the_machine_to_a_person_and_back(people):
    conversation, number = people.waiting()
    shown = people.customers.handoff(conversation, ANN)
    assert (shown.state, shown.reason, shown.place, shown.is_with_person) == ("waiting", "button", 1, True)
    people.agents.take(number, "Ann")
    people.agents.answer(number, "Ann", " It left our store today. ")
    shown = people.customers.handoff(conversation, ANN)
    assert (shown.state, shown.agent, shown.is_with_person) == ("taken", "Ann", True)
    last = people.history.turns(conversation, ANN)[-1]
    assert (last.role, last.author, last.text, last.answer) == ("agent", "Ann", "It left our store today.", None)
    people.agents.close(number)
    shown = people.customers.handoff(conversation, ANN)
    assert (shown.state, shown.fresh, shown.is_with_person) == ("closed", True, False)
    add_turn(people.history, conversation)
    shown = people.customers.handoff(conversation, ANN)
    assert not shown.fresh
    assert people.agents.rows() == []


def test_the_queue_is_first_come_first_served(people):
    first, number = people.waiting()
    people.now += timedelta(minutes=1)
    second, _ = people.waiting(BOB)
    places = [people.customers.handoff(one, owner) for one, owner in ((first, ANN), (second, BOB))]
    assert [one.place for one in places if one] == [1, 2]
    people.agents.take(number, "Ann")
    after = people.customers.handoff(second, BOB)
    assert after.place == 1
    assert [one.handoff.conversation_id for one in people.agents.rows()] == [second, first]


def test_who_waits_is_told_how_long_it_usually_takes(people):
    """The median of those that were taken, once there are enough; who was not asked for did not wait."""
    for minutes in (3, 90, 6):
        conversation, number = people.waiting()
        waiting = people.customers.handoff(conversation, ANN)
        assert waiting is not None
        assert waiting.usual_wait is None
        people.now += timedelta(minutes=minutes)
        people.agents.take(number, "ben")
        people.agents.step_in(people.conversation(), ANN, "ben")
    conversation, _ = people.waiting()
    waiting = people.customers.handoff(conversation, ANN)
    assert waiting is not None
    assert (waiting.usual_wait, people.agents.num_waiting()) == (timedelta(minutes=6), 1)


@ON_SQLITE
def test_asking_twice_is_asking_once(people):
    conversation, number = people.waiting()
    people.now += timedelta(minutes=5)
    again = people.customers.hand_off("button", owner=ANN, conversation_id=conversation)
    assert (again.id, again.requested) == (number, MONDAY)
    people.agents.take(number, "Ann")
    assert people.customers.hand_off("button", owner=ANN, conversation_id=conversation).state == "taken"


def test_only_who_took_it_answers(people):
    def refused(code, act, *given):
        with one_line(code):
            act(number, *given)

    _, number = people.waiting()
    refused("not-taken", people.agents.answer, "Ann", "Hello")
    people.agents.take(number, "Ann")
    refused("handoff-taken", people.agents.take, "Ben")
    refused("not-taken", people.agents.answer, "Ben", "Hello")
    for text in ("  \n", "x" * 10_001):
        with one_line("bad-message", "a message has 1 to 10,000"):
            people.agents.answer(number, "Ann", text)
    people.agents.close(number)
    refused("handoff-closed", people.agents.take, "Ben")
    refused("not-taken", people.agents.answer, "Ann", "Hello?")


def test_others_can_do_nothing_with_a_conversation(people):
    conversation, _ = people.waiting()
    assert people.customers.handoff(conversation, BOB) is None
    assert people.customers.to_person("Hello?", conversation, BOB) is None
    people.customers.end_handoff(conversation, BOB)
    with one_line("no-such-conversation"):
        people.customers.hand_off("button", owner=BOB, conversation_id=conversation)
    mine = people.customers.handoff(conversation, ANN)
    assert (mine.state, mine.messages) == ("waiting", 2)


def test_agents_reach_only_what_was_handed_off(people):
    people.conversation(BOB)
    conversation, number = people.waiting()
    assert [one.handoff.conversation_id for one in people.agents.rows()] == [conversation]
    assert [turn.role for turn in people.agents.case(number).turns] == ["user", "assistant"]
    with one_line("no-such-handoff"):
        people.agents.case(number + 1)
    ConversationCare(people.database).delete_conversation(conversation, ANN)
    assert people.agents.rows() == []


def test_customers_write_while_they_wait_and_end_it_themselves(people):
    conversation, number = people.waiting()
    handed = people.customers.to_person("My order is 1234.", conversation, ANN)
    assert handed.messages == 3
    [row] = people.agents.rows()
    assert (row.role, row.text) == ("user", "My order is 1234.")
    with one_line("with-person"):
        people.customers.check_with_machine(conversation, ANN)
    people.customers.end_handoff(conversation, ANN)
    people.customers.check_with_machine(conversation, ANN)
    assert people.customers.to_person("And now?", conversation, ANN) is None
    assert people.agents.case(number).of.handoff.state == "closed"


@ON_SQLITE
def test_settings_hide_names_and_redact(people, tmp_path):
    people.settings(Settings(data_dir=tmp_path, show_agent_names=False, redact=True))
    conversation, number = people.waiting()
    people.customers.to_person("Write to ann@example.com", conversation, ANN)
    assert people.history.turns(conversation, ANN)[-1].text == "Write to [e-mail]"
    people.agents.take(number, "Ann")
    shown = people.customers.handoff(conversation, ANN)
    assert (shown.state, shown.agent) == ("taken", "")
    assert people.agents.case(number).of.handoff.agent == "Ann"


@ON_SQLITE
def test_who_writes_that_they_want_a_person_gets_one(people):
    assert people.customers.to_person("Are you human?", None, ANN) is None
    handed = people.customers.to_person("转人工", None, ANN)
    assert (handed.state, handed.reason) == ("waiting", "keyword")
    assert people.history.turns(handed.conversation_id, ANN)[0].text == "转人工"


NOTHING = Judged(outcome="nothing", grounding=None, feedback=None)
GOOD = Judged(outcome="answered", grounding=0.9, feedback=None)
WEAK, BAD = replace(GOOD, grounding=0.3), replace(GOOD, feedback="down")


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([], None),
        ([NOTHING, NOTHING], "refused"),
        ([NOTHING, GOOD, NOTHING], None),
        ([GOOD, NOTHING, NOTHING], "refused"),
        ([WEAK, WEAK], "support"),
        ([BAD, GOOD, BAD], "thumbs"),
        ([BAD, GOOD], None),
        ([replace(GOOD, grounding=None)] * 2, None),
    ],
)
def test_rules(answers, reason):
    assert due(answers, False) == reason


def test_two_refusals_hand_over_while_somebody_is_there(people):
    conversation = people.conversation(refused=2)
    assert people.customers.hand_off_by_rule(conversation, ANN) is None  # nobody would come
    people.agents.rows()
    people.now += WATCHED_FOR * 2
    assert people.customers.hand_off_by_rule(conversation, ANN) is None
    people.agents.rows()
    handed = people.customers.hand_off_by_rule(conversation, ANN)
    assert (handed.state, handed.reason) == ("waiting", "refused")
    assert people.customers.hand_off_by_rule(conversation, ANN) is None


@ON_SQLITE
def test_there_are_no_loops(people):
    """Back with the machine, the next refusals change nothing until five questions were asked."""
    people.agents.rows()
    conversation = people.conversation(refused=2)
    handed = people.customers.hand_off_by_rule(conversation, ANN)
    people.agents.close(handed.id)
    for number in range(4):
        add_turn(people.history, conversation, number, refused=True)
        assert people.customers.hand_off_by_rule(conversation, ANN) is None
    add_turn(people.history, conversation, 5, refused=True)
    again = people.customers.hand_off_by_rule(conversation, ANN)
    assert again.id != handed.id


def test_rules_look_at_answers_with_their_thumbs(people):
    people.agents.rows()
    conversation = people.conversation()
    second = add_turn(people.history, conversation, 1)
    first = people.history.turns(conversation, ANN)[1]
    people.history.feedback(first.message_id, "down", owner=ANN)
    assert people.customers.hand_off_by_rule(conversation, ANN) is None
    people.history.feedback(second.message_id, "down", owner=ANN)
    handed = people.customers.hand_off_by_rule(conversation, ANN)
    assert handed.reason == "thumbs"


@pytest.mark.parametrize("mode", ["asked", "off"])
@ON_SQLITE
def test_without_rules_nothing_happens_by_itself(people, tmp_path, mode):
    people.settings(Settings.model_validate({"data_dir": tmp_path, "handoff": mode}))
    people.agents.rows()
    conversation = people.conversation(refused=2)
    assert people.customers.hand_off_by_rule(conversation, ANN) is None
    if mode == "off":
        assert people.customers.to_person("I want to talk to a human", None, ANN) is None
        with one_line("handoff-off"):
            people.customers.hand_off("button", owner=ANN, conversation_id=conversation)


@pytest.mark.parametrize(
    ("moment", "answers"),
    [
        (datetime(2026, 3, 9, 9, 0, tzinfo=UTC), True),
        (datetime(2026, 3, 9, 17, 0, tzinfo=UTC), False),
        (datetime(2026, 7, 6, 8, 30, tzinfo=UTC), True),  # summer time
        (datetime(2026, 3, 8, 12, 0, tzinfo=UTC), False),
    ],
)
def test_hours_are_those_of_the_office(moment, answers):
    assert is_open(HOURS, moment) is answers
    assert is_open(None, moment)


@pytest.mark.parametrize("text", ["Mon-Fri 9:00-17:00", "whenever Europe/Dublin", "Mon 9:00-17:00 Mars/Olympus", ""])
def test_hours_that_cannot_be_read_are_refused(text):
    with pytest.raises(ValueError):
        office_hours(text)


@ON_SQLITE
def test_outside_of_hours_an_address_is_left_and_the_machine_goes_on(people, tmp_path):
    people.settings(Settings(data_dir=tmp_path, office_hours=HOURS))
    people.now = MONDAY + timedelta(hours=12)
    conversation = people.conversation()
    assert people.customers.to_person("I want to talk to a human", conversation, ANN) is None
    for email, code in (("", "outside-hours"), ("no address", "bad-email")):
        with one_line(code):
            people.customers.hand_off("button", owner=ANN, conversation_id=conversation, email=email)
    left = people.customers.hand_off("button", owner=ANN, conversation_id=conversation, email="ann@example.com")
    assert (left.state, left.email, left.is_with_person) == ("left", "ann@example.com", False)
    people.customers.check_with_machine(conversation, ANN)
    [row] = people.agents.rows()
    assert row.handoff.email == "ann@example.com"
    people.now = MONDAY + timedelta(days=1)  # back in the morning, the customer waits in person
    waiting = people.customers.hand_off("button", owner=ANN, conversation_id=conversation)
    assert (waiting.id, waiting.state, waiting.email) == (left.id, "waiting", "ann@example.com")


def test_what_agents_wrote_is_the_conversations_past():
    def said(role: str, text: str) -> PastMessage:
        return PastMessage(role=role, text=text)

    stored = [
        *(said("user", "Can I return it?"), said("assistant", "")),  # nothing found
        *(said("user", "Hello?"), said("agent", "Yes, you can."), said("agent", "Bring the receipt.")),
        *(said("user", "Thanks"), said("assistant", "30 days.")),
    ]
    assert [(one.role, one.text) for one in with_agents(stored)] == [
        ("user", "Can I return it?"),
        ("assistant", ""),
        ("user", "Hello?"),
        ("assistant", "Yes, you can.\n\nBring the receipt."),
        ("user", "Thanks"),
        ("assistant", "30 days."),
    ]
    instead = [said("user", "Can I?"), said("assistant", ""), said("agent", "Yes.")]
    assert [(one.role, one.text) for one in with_agents(instead)] == [("user", "Can I?"), ("assistant", "Yes.")]


def test_the_machine_is_silent_while_a_person_answers_and_knows_afterwards(tmp_path):
    with small_desk(tmp_path / "desk") as desk:
        desk.ingest([write_pages(tmp_path / "pages")], warm=False)
        first = finish(desk, "Can gift cards be returned?")
        handed = desk.hand_off("button", owner=OPERATOR, conversation_id=first.conversation_id)
        with one_line("with-person"):
            desk.ask("And lamps?", conversation_id=first.conversation_id)
        assert desk.to_person("And lamps?", first.conversation_id, OPERATOR) is not None
        queue = AgentQueue(desk.database, desk.settings)
        queue.take(handed.id, "Ann")
        queue.answer(handed.id, "Ann", "Lamps can be returned, with their bulbs.")
        queue.close(handed.id)
        finish(desk, "Within how many days?", conversation_id=first.conversation_id)
        roles = [turn.role for turn in desk.turns(first.conversation_id)]
        assert roles == ["user", "assistant", "user", "agent", "user", "assistant"]
        past = with_agents(desk.history.past(first.conversation_id))
        prepared = desk._answering.questions.prepare("Which bulbs?", past)
        tokens = [token for span in prepared.plan.spans for token in span.tokens]
        shown = desk.engine.model.tokenizer.decode(tokens)
        assert "Lamps can be returned, with their bulbs." in shown
