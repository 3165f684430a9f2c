"""Settings of the help desk: pages, answers, search, agents, privacy and limits.

A setting is an annotated attribute with its default. The text below it is its meaning on the Settings page and in
docs/configuration.md: what it does, its unit, and its special values.
"""

from typing import Annotated, Literal

from pydantic import Field

from app.domain import setting_types as types
from app.domain.lengths import LONGEST_TEXT
from app.domain.policies import AnswerMode, Policy
from app.domain.setting_types import SettingGroup, between
from app.domain.words import translatable


class PageSettings(SettingGroup):
    """The customers' pages."""

    title = translatable("Chat page")

    desk_name: types.TextLine = "Warmdesk"
    """Name of the help desk on the customers' pages."""
    desk_colour: types.Colour = None
    """Colour of buttons and links on the customers' pages, for example "#a84a24". Choose one that is readable on
    white."""
    desk_logo: types.Image = None
    """Square image file (.svg or .png) next to the name."""
    greeting: types.OptionalLine = None
    """Text above the example questions of an empty conversation. Unset: "How can we help?"."""
    example_questions: types.Questions = ()
    """Questions that an empty conversation offers. None: Warmdesk takes some from the documents and checks that it can
    answer them."""
    page_urls: types.PageUrls = Field(default_factory=dict)
    """Web addresses of the documents, one for each collection ("" for documents without a collection), with {name} for
    the file name without its extension: "" = "https://help.example.com/{name}". A document that names its own address
    keeps it."""
    show_technical: bool = False
    """Show customers the number of reused prompt tokens and the time to the first token below each answer. The
    dashboard always shows them."""
    widget_origins: types.Origins = ()
    """Addresses of your own sites that may embed the chat widget, for example ["https://www.example.com"]
    (docs/widget.md). None: the widget is off."""


class AnswerSettings(SettingGroup):
    """Wording of answers, and when the desk answers."""

    title = translatable("Answers")

    answer_mode: Literal["auto"] | AnswerMode = "auto"
    """free: the model's own words, unchanged. checked: sentences that the passages do not support are replaced by
    quotations. quote: only quotations from the passages. auto: the result of `warmdesk calibrate`, or checked if there
    is no result yet."""
    policy: Literal["auto"] | Policy = "auto"
    """How encoded passages are linked to each other: fast, balanced or exact (docs/evidence.md). auto: the result of
    `warmdesk calibrate` for the model, or fast if there is no result yet."""
    refuse_below: types.Probability = None
    """Lowest probability (0 to 1) that the documents answer a question. Below it, Warmdesk says that it found nothing.
    -1: it always shows something. Unset: the value fitted by `warmdesk calibrate-search`."""
    answer_above: types.Probability = None
    """Probability (0 to 1) from which Warmdesk answers. From refuse_below up to this value, it says that it is not
    certain, quotes at most two statements and names the closest pages. Unset: the value fitted by
    `warmdesk calibrate-search`."""
    answer_tokens: Annotated[int, between(1, 100_000)] = 160
    """Maximum length of an answer in the model's own words, in tokens."""
    temperature: Annotated[float, between(0, 5, "a number")] = 0.0
    """Randomness of the model's words. 0: always the most likely token. With higher values, answers vary."""
    repetition_penalty: Annotated[float, between(1, 2, "a number")] = 1.0
    """Penalty for tokens that the answer already contains. 1: none. Higher values keep small models from repeating
    themselves."""
    system_text: types.Text = (
        "You are a friendly customer service assistant. Answer the customer's question in one to three short "
        "sentences. Use only the help pages you are given, and copy numbers and conditions exactly."
    )
    """Instructions for the model, before the passages. A change re-encodes every passage."""
    refusal_text: types.Text = (
        "I could not find an answer to this in our help pages. Please contact our customer service team, who "
        "will be glad to help."
    )
    """Answer if the documents do not answer the question. Unset: this text in the customer's language (English, German,
    French, Spanish, Chinese). The contacts are added below it."""
    faq_answers: bool = True
    """Answer a question that is nearly the same as an FAQ question with the FAQ's answer, without search and model."""
    faq_threshold: Annotated[float | None, between(0, 1, "a number")] = None
    """Lowest similarity (0 to 1) of the two questions for that. Raise it if FAQ answers appear for other questions. The
    words that name the subject must be equal in any case. Unset: 0.85."""
    savings_sample: Annotated[float, between(0, 1, "a number")] = 0.05
    """Share of the answers (0 to 1) that the idle server computes a second time without reuse. The dashboard then shows
    what reuse saves and whether it changes answers. 0: none."""


class SearchSettings(SettingGroup):
    """Passages and how they are found."""

    title = translatable("Search")

    embedder: types.OptionalText = None
    """sentence-transformers model for search: a folder or a hub name. Unset: the bundled one."""
    reranker: types.OptionalText = None
    """Cross-encoder that reorders the best 20 passages: a folder or a hub name. On a CPU it needs a second or more for
    each question. Unset: none."""
    passages: Annotated[int, between(1, 64)] = 5
    """Maximum number of passages that the model gets for one answer."""
    passage_tokens: Annotated[int, between(32, 100_000)] = 400
    """Maximum length of a passage, in tokens of the model."""
    neighbours: Annotated[int, between(0, 10)] = 1
    """Number of similar passages that the model reads before each passage when it encodes it. Answers are closer to
    full attention and take no longer. Ingestion takes (neighbours + 1) times as long. 0: off."""
    prefetch: bool = True
    """Search for the text that a customer is typing while the server is idle. The passages are then in memory when the
    customer sends the question. The text is not stored."""


class HandoffSettings(SettingGroup):
    """Contacts, and conversations with agents."""

    title = translatable("Contacts and hand-off")

    contact_email: types.Email = None
    """E-mail address for customers. It is shown if the documents do not answer a question, and to customers who ask for
    a person."""
    contact_phone: types.Phone = None
    """Phone number for customers, shown in the same places."""
    contact_hours: types.OptionalLine = None
    """Hours of these contacts, for example "Mon-Fri 9:00-17:00", shown in the same places."""
    contact_url: types.Url = None
    """Address of a form or chat where customers reach a person, shown in the same places. It begins with https, http or
    mailto."""
    handoff: Literal["off", "asked", "rules"] = "rules"
    """When a conversation goes to an agent. off: never. asked: the customer presses the button or writes that they want
    a person. rules: also after two answers in a row that found nothing or have little support in the documents, and
    after two answers that were rated bad, if an agent watches the queue."""
    office_hours: types.Hours = None
    """Hours of the agents with a time zone, for example "Mon-Fri 9:00-17:00, Sat 10:00-14:00 Europe/Dublin"
    (OpenStreetMap notation). At other times customers see the contacts and may leave an e-mail address. Unset:
    always."""
    show_agent_names: bool = True
    """Show customers the account name of the agent who answers them."""
    handoff_webhook: types.Webhook = None
    """URL that receives a POST when a conversation is handed off, taken or handed back (docs/handoff.md)."""
    handoff_webhook_secret: types.Secret = Field(default=None, repr=False)
    """Key that signs the requests to handoff_webhook, at least 32 characters. The webhook needs it."""


class PrivacySettings(SettingGroup):
    """Stored data of customers, and who they are."""

    title = translatable("Privacy")

    keep_days: Annotated[int | None, between(1, 36_500)] = None
    """Days after its last message until a conversation is deleted for good. Unset: never."""
    redact: bool = False
    """Replace e-mail addresses, phone numbers and card numbers in questions with [e-mail], [phone] or [card] before
    anything is stored, searched or given to the model."""
    visitor_secret: types.Secret = Field(default=None, repr=False)
    """Key of visitor tokens, at least 32 characters. With such a token your own site identifies its customer (JSON Web
    Token, HS256, claims sub and exp, in a link also iat; docs/serving.md, docs/widget.md). Unset: customers are
    identified by a cookie only."""


class LimitSettings(SettingGroup):
    """Limits of questions and conversations."""

    title = translatable("Limits")

    questions_per_minute: Annotated[int, between(1, 10_000)] = 20
    """Maximum number of questions per minute from one visitor. One IP address may send five times as many."""
    answers_at_once: Annotated[int, between(1, 1000)] = 2
    """Maximum number of answers in progress for one visitor."""
    conversations_kept: Annotated[int, between(1, 100_000)] = 500
    """Maximum number of conversations of one visitor. At the limit, the visitor must delete some first."""
    questions_at_once: Annotated[int, between(1, 1024)] = 64
    """Maximum number of questions that are answered at the same time."""
    questions_waiting: Annotated[int, between(0, 10_000)] = 64
    """Maximum number of questions that wait for that. Further questions are refused: the desk is busy."""
    answer_seconds: Annotated[int, between(1, 86_400)] = 300
    """Maximum time for a question, waiting included, in seconds. Then the answer ends with the text so far."""
    max_question_chars: Annotated[int, between(1, LONGEST_TEXT)] = 4000
    """Maximum length of a question, in characters."""
