"""All settings, in groups: of the help desk, and of the server with its language model, memory and engines.

A setting is an annotated attribute with its default. The text below it is its meaning on the Settings page and in
docs/configuration.md: what it does, its unit, and its special values.
"""

from typing import Annotated, Literal
from urllib.parse import quote

import platformdirs
from pydantic import Field

from app.domain import setting_types as types
from app.domain.callers import LONGEST_TEXT
from app.domain.setting_types import GIB, AnswerMode, Policy, SettingGroup, between
from app.domain.words import translatable
from cache.engine.log_lines import LogFormat, LogLevel
from cache.prompt.plan import Placement


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
    """Questions that an empty conversation offers. Unset: Warmdesk takes some from the documents and checks that it can
    answer them."""
    page_urls: types.PageUrls = Field(default_factory=dict)
    """Web addresses of the documents, one for each collection ("" for documents without a collection), with {name} for
    the file name without its extension: "" = "https://help.example.com/{name}". A document that names its own address
    keeps it."""
    show_technical: bool = False
    """Show customers the number of reused prompt tokens and the time to the first token below each answer. The
    transcripts of admins always show them."""
    widget_origins: types.Origins = ()
    """Origins of your own sites that may embed the chat widget, for example ["https://www.example.com"]
    (docs/widget.md). Unset: the widget is off."""


class AnswerSettings(SettingGroup):
    """Wording of answers, and when the desk answers."""

    title = translatable("Answers")

    answer_mode: Literal["auto"] | AnswerMode = "auto"
    """free: the model's own words, unchanged. checked: sentences that the passages do not support are replaced by
    quotations. quote: only quotations from the passages. auto: the result of `warmdesk calibrate`. If there is none
    yet, a remote model gets checked and a local one quote."""
    policy: Literal["auto"] | Policy = "auto"
    """How much of the passages is recomputed (docs/evidence.md): fast (nothing), balanced (15 %) or exact (everything).
    auto: the result of `warmdesk calibrate` for the model, or fast if there is no result yet."""
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
    """Text shown if no document answers the question. Unset: this text in the customer's language (English, German,
    French, Spanish, Chinese). The contacts are added below it."""
    faq_answers: bool = True
    """If a question is nearly the same as an FAQ question, give the FAQ's answer, without search or model."""
    faq_threshold: Annotated[float | None, between(0, 1, "a number")] = None
    """Minimum similarity (0 to 1) of the two questions for an FAQ answer. Raise it if FAQ answers appear for other
    questions. The words that name the subject must always be equal. Unset: 0.85."""
    savings_sample: Annotated[float, between(0, 1, "a number")] = 0.05
    """Share of the answers (0 to 1) that the idle server computes a second time without reuse. The page Engine then
    shows what reuse saves and whether it changes answers. 0: none."""


class SearchSettings(SettingGroup):
    """Passages and how they are found."""

    title = translatable("Search")
    is_rare = True

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
    """Number of similar passages that the model reads before it encodes a passage. Answers are closer to full attention
    and take no longer. Ingestion takes (neighbours + 1) times as long. 0: off."""
    prefetch: bool = True
    """Search for the text that a customer is typing while the server is idle. The passages are then in memory when the
    customer sends the question. The text is not stored."""


class WebsiteSettings(SettingGroup):
    """Websites that are read as documents."""

    title = translatable("Websites")

    website_pause: Annotated[float, between(0, 60, "a number")] = 1.0
    """Pause between two requests to a website, in seconds. If its robots.txt asks for more, that is used."""
    website_headers: types.SiteHeaders = Field(default_factory=dict, repr=False)
    """A header for each host, such as the login of a private help centre: "help.example.com" =
    "Authorization: Bearer x". No other host gets it."""
    allow_private_addresses: bool = False
    """Also read websites in private networks. The server then follows links to any address that it can reach. It is
    safer to name single hosts in private_hosts."""
    private_hosts: types.Hosts = ()
    """Hosts in private networks that websites and look-ups may use, as HOST or HOST:PORT."""
    lookups_file: types.OptionalText = None
    """File with the look-ups (docs/lookups.md). Unset: lookups.toml in the data folder."""


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
    agents_read_all: bool = False
    """Let agents read all conversations, on the pages Conversations and Quality, and step into them. Off: they read
    only those that were handed off."""
    show_agent_names: bool = True
    """Show customers the account name of the agent who answers them."""
    handoff_webhook: types.Webhook = None
    """URL that receives the hand-off events requested, left, taken and closed by POST (docs/handoff.md)."""
    handoff_webhook_secret: types.Secret = Field(default=None, repr=False)
    """Key that signs the requests to handoff_webhook, at least 32 characters. The webhook needs it."""


class PrivacySettings(SettingGroup):
    """Stored data of customers, and the identification of customers."""

    title = translatable("Privacy")

    keep_days: Annotated[int | None, between(1, 36_500)] = None
    """Number of days after the last message until a conversation is deleted for good. Unset: never."""
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
    """Maximum number of further questions that wait. More questions are refused as busy."""
    answer_seconds: Annotated[int, between(1, 86_400)] = 300
    """Maximum time for a question, waiting included, in seconds. Then the answer ends with the text so far."""
    max_question_chars: Annotated[int, between(1, LONGEST_TEXT)] = 4000
    """Maximum length of a question, in characters."""


class ModelSettings(SettingGroup):
    """The language model, on this machine or on another server."""

    title = translatable("Language model")
    is_rare = True

    model: types.Model = None
    """Language model: a folder, a .gguf file, a hub name, or openai:URL#NAME for a remote model. URL: its
    OpenAI-compatible base URL (docs/scale.md). Unset: the bundled model."""
    adapter: types.OptionalText = None
    """Folder of a LoRA adapter (see `warmdesk adapt`) that is merged into the model. none: no adapter. Unset: the
    bundled adapter for the bundled model, no adapter for other models."""
    device: types.Text = "cpu"
    """Device of the language model: cpu, cuda or cuda:N."""
    weights: Literal["model", "int8", "fp8"] = "model"
    """Weights of the model: unchanged (model), or rounded to 8 bits (int8, fp8), which is slightly less exact. On a
    CPU, 8 bits are faster and need a C compiler; GGUF files keep their own bits. On a GPU, they save memory and need
    torchao. fp8 needs a GPU of compute capability 8.9 or higher. A change re-encodes every passage."""
    threads: Annotated[int | None, between(1, 1024)] = None
    """Number of CPU threads. Unset: chosen by PyTorch. An engine in its own process uses at most the CPUs of its cgroup
    (container)."""
    engine_process: bool = True
    """Run the language model of a server in its own process, so that it does not slow down web pages and search, and a
    crash of the model does not stop the server. `threads` then applies to this process. Search uses one thread, or more
    with a reranker."""
    placement: Placement = "contiguous"
    """Positions of passages in a prompt: contiguous (measured: closest to full attention), slotted (each at a multiple
    of 256) or shared (all from the same position)."""
    context_tokens: Annotated[int | None, between(512, 100_000_000)] = None
    """Context length of a remote model (prompt and answer together), in tokens. Unset: the value that its server
    reports, else 4096."""
    first_token_seconds: Annotated[int, between(1, 3600)] = 120
    """Maximum time to the first token of a remote model, in seconds."""
    session_headers: types.Headers = ("x-session-id", "X-SMG-Routing-Key")
    """HTTP headers that tell routers which requests to a remote model belong to one conversation. Their value is an id
    that reveals nothing about the conversation."""
    send_cache_salt: bool = True
    """Send a remote model a different `cache_salt` for each customer (vLLM, TensorRT-LLM). Response times then reveal
    nothing about other customers, but customers share no cached prefix."""
    send_prompt_cache_key: bool = False
    """Send a remote model a `prompt_cache_key` (OpenAI) that is the same for all questions of a conversation."""


class MemorySettings(SettingGroup):
    """Storage of encoded passages."""

    title = translatable("Memory and disk")
    is_rare = True

    device_memory: types.Memory = "auto"
    """Device memory for attention keys and values, in bytes, for example "1 GiB". auto on a GPU: the memory that the
    weights leave free, less the measured need of the largest forward pass and a twentieth of the whole, at least
    512 MiB. auto on a CPU: a quarter of the free main memory, at most 768 MiB or 32,768 tokens, whichever is more."""
    host_memory: types.Size = 0
    """Main memory for encoded passages that are evicted from device memory, in bytes. 0: none. On a GPU, all of it is
    allocated and pinned when the engine starts. On a CPU, leave it at 0 if disk is not 0: the operating system then
    caches the files."""
    kv_storage: Literal["model", "int8"] = "model"
    """Keys and values of encoded passages in main memory and on disk: unchanged (model), or rounded to 8 bits (int8),
    which halves their size and makes answers approximate. A change re-encodes every passage."""
    disk: types.Size = 4 * GIB
    """Disk space for encoded passages, in bytes. 0: none."""
    disk_floor: types.Floor = "auto"
    """Disk space that encoded passages leave free, in bytes. If less is free, some of them are deleted and no new ones
    are written. auto: 512 MiB, or a twentieth of a smaller disk."""


class ClusterSettings(SettingGroup):
    """Several engines for one server."""

    title = translatable("Several engines")
    is_rare = True

    cluster: types.OptionalText = None
    """Run several engines for a server with Ray Serve (docs/scale.md). local: on this machine only. HOST:PORT: the head
    of a Ray cluster that this machine has joined. Unset: one engine."""
    cluster_engines: Annotated[int, between(1, 1000)] = 1
    """Number of engines in the cluster."""
    cluster_engines_most: Annotated[int | None, between(1, 1000)] = None
    """Maximum number of engines that Ray Serve runs under load. Unset: cluster_engines."""
    cluster_engine_load: Annotated[float, between(0, 10_000, "a number")] = 8.0
    """Number of questions per engine. Above it, Ray Serve starts another engine."""
    shared_modules: types.OptionalText = None
    """Place of the encoded passages that engines share: a folder that all machines see, or a URL that fsspec opens, for
    example s3://bucket/folder. `disk` limits its size. Unset: the data folder with cluster = local, else nothing is
    shared."""


class ServerSettings(SettingGroup):
    """Addresses, log and data."""

    title = translatable("Server and data")
    is_rare = True

    data_dir: types.Folder = Field(default_factory=lambda: platformdirs.user_data_path("warmdesk", appauthor=False))
    """Folder for everything that Warmdesk writes. Flag or environment only."""
    host: types.Text = "127.0.0.1"
    """Address to listen on. Any address but loopback is open to the network."""
    port: Annotated[int, between(0, 65535)] = 7860
    """Port to listen on. 0: any free port."""
    public_url: types.PublicUrl = None
    """Public address of a server behind a TLS proxy, for example https://help.example.com. Host and Origin of requests
    must match it, cookies are sent over TLS only, and links begin with it."""
    trusted_proxies: types.Networks = ()
    """Addresses or networks of trusted proxies, for example ["127.0.0.1"]. X-Forwarded-For and X-Forwarded-Proto from
    other clients are ignored."""
    log_format: LogFormat = "text"
    """Format of the log on stderr: text, or json with one object per line (docs/operations.md)."""
    log_level: LogLevel = "warning"
    """Lowest level of log lines: debug, info (one line per request), warning or error. The log never contains
    customers' words."""
    database_url: types.Text = Field(
        # SQLAlchemy (from 2.1) decodes the path of a URL; a folder may be called "a?b" or "100%20".
        default_factory=lambda data: "sqlite:///" + quote(str(data["data_dir"] / "warmdesk.sqlite3")),
        repr=False,
    )
    """SQLAlchemy URL of the database: SQLite, or PostgreSQL (postgresql+psycopg://user:password@host/database), which
    several servers can share (docs/scale.md). Unset: a SQLite file in the data folder."""
