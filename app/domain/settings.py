"""Settings: one frozen value, from the settings file, the environment and command-line flags; later wins.

Every field of `Settings` is a key of `<data_dir>/warmdesk.toml` (except data_dir, which says where that file is), an
environment variable WARMDESK_<KEY> and, where the command line offers it, a flag. A wrong type, a value out of range
and an unknown key are errors that name the key, the value and where it came from. An empty variable counts as unset.

Not covered: whether a model, device or database exists (whoever opens it says so), changes at run time.
"""

import difflib
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import quote

import platformdirs
from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, TypeAdapter, ValidationError
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from app.domain.errors import DeskError
from app.domain.lengths import LONGEST_TEXT
from app.domain.policies import AnswerMode, Policy
from app.domain.setting_values import (
    NO_SETTINGS,
    SHIPPED_DATA,
    ModelServer,
    lines_of,
    model_server,
    office_hours,
    table_of,
)
from cache.engine.log_lines import LogFormat, LogLevel
from cache.prompt.plan import Placement

PREFIX = "WARMDESK_"
SHIPPED_ADAPTER = SHIPPED_DATA / "adapters" / "smollm2-135m-instruct"
"""What comes with the bundled model."""
SETTINGS_FILE = "warmdesk.toml"
FAQ_FILE = "FAQ.jsonl"
"""Name of the desk's own document of questions that agents answered."""
MIB = 1024**2
GIB = 1024**3

OLD_NAMES: dict[str, str | None] = {"wording": "answer_mode", "order_margin": None, "memory": "device_memory"}
"""Former names of settings that are still accepted, and their names now. None: does nothing any more."""

_MOST_BYTES = 2**53
_ORIGIN = re.compile(r"https?://([a-z0-9.-]+|\[[0-9a-f:]+\])(:\d{1,5})?")


def parse_size(text: object) -> object:
    """Bytes of "512 MiB", "4 GB" or "1048576": KiB is 1024 bytes, kB is 1000. What is no text stays as it is. Raises
    ValueError. Stricter than pydantic's ByteSize, which takes "1,5 GB" for one byte.
    """
    if not isinstance(text, str):
        return text
    text = text.strip()
    if re.fullmatch(r"\d{1,15}(\.\d{1,9})?\s*([kmgt]?i?b)?", text, re.ASCII | re.IGNORECASE) is None:
        raise ValueError(f"{text!r} is not a size")
    return int(TypeAdapter(ByteSize).validate_python(text))


def _folder(raw: object) -> Path:
    if not isinstance(raw, str | Path) or not str(raw).strip() or "\0" in str(raw):
        raise ValueError
    try:
        return Path(raw).expanduser().absolute()
    except (RuntimeError, OSError) as error:  # "~" without a home, no current folder
        raise ValueError from error


def _listed(raw: object, also: str = "\n") -> tuple[object, ...]:
    """Entries of a list, or of a text; see `lines_of`."""
    entries = lines_of(raw, also) if isinstance(raw, str) else raw
    if not isinstance(entries, list | tuple):
        raise ValueError
    return tuple(entries)


def _table(raw: object) -> object:
    return table_of(raw) if isinstance(raw, str) else raw


def _addresses(raw: object) -> tuple[str, ...]:
    """Addresses and networks of a list, or of a text with commas or lines."""
    return tuple(str(ip_network(str(text).strip())) for text in _listed(raw, ","))


def _hours(text: str | None) -> str | None:
    if text is not None:
        office_hours(text)  # raises ValueError
    return text


def _model(text: str | None) -> str | None:
    model_server(text)  # raises ValueError
    return text


def _origins(raw: object) -> tuple[str, ...]:
    """Origins of a list, or of a text with commas or lines, as browsers write them."""
    origins = tuple(str(text).strip().lower().rstrip("/") for text in _listed(raw, ","))
    if not all(_ORIGIN.fullmatch(origin) for origin in origins):
        raise ValueError
    return origins


def _is_gpu(device: str) -> bool:
    return device.startswith("cuda")


def _needs(words: str, **limits: Any) -> Any:
    """Limits of a setting, with what a message says of them."""
    return Field(json_schema_extra={"needs": words}, **limits)


def _between(least: int, most: int, kind: str = "a whole number") -> Any:
    return _needs(f"{kind} from {least} to {most}", ge=least, le=most)


def _bytes(least: int) -> Any:
    words = f'a size such as "512 MiB" or "4 GB", or a number of bytes, {least} or more'
    return _needs(words, ge=least, le=_MOST_BYTES)


_TEXT = _needs("text, not empty", pattern=r"^[^\x00]*[^\s\x00][^\x00]*$")
NonEmpty = Annotated[str, _TEXT]
OptionalNonEmpty = Annotated[str | None, _TEXT]
_LINE = r"[^\x00-\x1f\x7f]"
Line = Annotated[str | None, _needs("one line of text, not empty", pattern=rf"^{_LINE}*[^\s\x00-\x1f\x7f]{_LINE}*$")]
NonEmptyLine = Annotated[str, _needs("one line of text, not empty", pattern=rf"^{_LINE}*[^\s\x00-\x1f\x7f]{_LINE}*$")]
Model = Annotated[
    str | None,
    _needs(
        "a folder, a .gguf file, a hub name, or openai:URL#NAME as openai:http://127.0.0.1:8000/v1#Qwen/Qwen3-4B",
        pattern=r"^[^\x00]*[^\s\x00][^\x00]*$",
    ),
    AfterValidator(_model),
]
Headers = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")], ...],
    BeforeValidator(_listed),
    _needs('a list of names of headers, as ["x-session-id"]'),
]
Email = Annotated[str | None, _needs("an e-mail address", pattern=r"^[^\s@<>\"'&?%]+@[^\s@<>\"'&?%]+$")]
Phone = Annotated[str | None, _needs("a phone number", pattern=r"^\+?[0-9][0-9 ()/.-]{2,30}$")]
Url = Annotated[
    str | None,
    _needs("an address that begins with https://, http:// or mailto:", pattern=r"^(https?://|mailto:)[^\s<>\"'`\\]+$"),
]
PublicUrl = Annotated[
    str | None, _needs("an address such as https://help.example.com, without a path", pattern=r"^https?://[^\s/?#]+/?$")
]
Secret = Annotated[str | None, _needs("at least 32 characters", min_length=32, max_length=1024)]
Colour = Annotated[str | None, _needs('a colour such as "#a84a24"', pattern=r"^#[0-9a-fA-F]{6}$")]
Image = Annotated[str | None, _needs("the path of an .svg or .png file", pattern=r"(?i)^[^\x00]+\.(svg|png)$")]
Questions = Annotated[tuple[NonEmpty, ...], BeforeValidator(_listed), _needs("a list of questions, none of them empty")]
PageUrls = Annotated[
    dict[str, Annotated[str, Field(pattern=r"^https?://[^\s<>\"'`\\]+$")]],
    BeforeValidator(_table),
    _needs('a table of addresses by collection, each once, as {"" = "https://help.example.com/{name}"}'),
]
Addresses = Annotated[
    tuple[str, ...], BeforeValidator(_addresses), _needs('a list of addresses or networks, as ["127.0.0.1"]')
]
Hours = Annotated[
    str | None, AfterValidator(_hours), _needs('hours with a time zone, as "Mon-Fri 9:00-17:00 Europe/Dublin"')
]
Webhook = Annotated[
    str | None, _needs("an address that begins with https:// or http://", pattern=r"^https?://[^\s/]\S*$")
]
Origins = Annotated[
    tuple[str, ...],
    BeforeValidator(_origins),
    _needs('a list of addresses without a path, as ["https://www.example.com"]'),
]
Folder = Annotated[Path, BeforeValidator(_folder), _needs("the path of a folder")]
Size = Annotated[int, BeforeValidator(parse_size)]
Memory = Annotated[
    Annotated[Size, Field(ge=MIB, le=_MOST_BYTES)] | Literal["auto"],
    _needs(f'a size such as "512 MiB" or "4 GB", or a number of bytes, {MIB} or more, or auto'),
]
Floor = Annotated[
    Annotated[Size, Field(ge=0, le=_MOST_BYTES)] | Literal["auto"],
    _needs('a size such as "512 MiB" or "4 GB", or a number of bytes, 0 or more, or auto'),
]


class Settings(BaseSettings):
    """Everything that can be set, and the paths that follow from it. Nothing is created on disk here.

    A value like any other: made directly, it holds what it is given and the defaults. `load_settings` is what reads
    the environment and the settings file. Raises pydantic's ValidationError for a wrong value.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    data_dir: Folder = Field(default_factory=lambda: platformdirs.user_data_path("warmdesk", appauthor=False))
    """Folder that holds everything the program writes. Flag or environment only."""
    model: Model = None
    """Language model: a folder, a .gguf file, a hub name, or openai:URL#NAME for one behind a server with OpenAI's API
    (docs/scale.md). Unset: the bundled model."""
    context_tokens: Annotated[int | None, _between(512, 100_000_000)] = None
    """Of a model that runs elsewhere, the most tokens of prompt and answer together. Unset: what its server says, 4096
    if it says nothing."""
    first_token_seconds: Annotated[int, _between(1, 3600)] = 120
    """How long the server of a model that runs elsewhere may take to say the first word."""
    session_headers: Headers = ("x-session-id", "X-SMG-Routing-Key")
    """Headers that tell the routers before such servers which requests belong together: a name made of the
    conversation's, which says nothing of it."""
    send_cache_salt: bool = Field(default=True, json_schema_extra={"needs": "true or false"})
    """Whether such a server is sent `cache_salt` (vLLM, TensorRT-LLM), another one for each customer: then no customer
    can tell from response times what another one has asked, and none shares the beginning of a prompt."""
    send_prompt_cache_key: bool = Field(default=False, json_schema_extra={"needs": "true or false"})
    """Whether it is sent `prompt_cache_key` (OpenAI), the same for all questions of a conversation."""
    adapter: OptionalNonEmpty = None
    """Folder of a LoRA adapter (see `warmdesk adapt`) that is merged into the model; none for the model as it is.
    Unset: the shipped one with the bundled model, none with another."""
    device: NonEmpty = "cpu"
    """Where the language model runs: cpu, cuda or cuda:N."""
    weights: Literal["model", "int8", "fp8"] = "model"
    """Weights as the model has them, or rounded to 8 bits (int8; fp8 on GPUs of compute capability 8.9 or higher),
    which is a little less exact. On a CPU that is faster and needs the C compiler; on a GPU it saves memory and needs
    torchao. Another value: passages are read again."""
    embedder: OptionalNonEmpty = None
    """sentence-transformers model for search: a folder or a hub name. Unset: the bundled one."""
    reranker: OptionalNonEmpty = None
    """Cross-encoder that puts the best 20 passages in order: a folder or a hub name. Unset: none; on a CPU one costs
    a second or more a question."""
    threads: Annotated[int | None, _between(1, 1024)] = None
    """CPU threads. Unset: PyTorch's own choice; for an engine's own process at most as many as its cgroup (container)
    gives processors."""
    engine_process: bool = Field(default=True, json_schema_extra={"needs": "true or false"})
    """Whether a served desk gives the language model a process of its own, so that pages and search take no steps from
    answers, and a crash of it does not end the desk. `threads` is then for that process, and search has one unless
    there is a reranker."""
    cluster: OptionalNonEmpty = None
    """Several engines with Ray Serve for a served desk (docs/scale.md): local for a cluster of this machine alone, else
    HOST:PORT of the head of a Ray cluster that this machine has joined. Unset: one engine."""
    cluster_engines: Annotated[int, _between(1, 1000)] = 1
    """Engines of the cluster."""
    cluster_engines_most: Annotated[int | None, _between(1, 1000)] = None
    """Up to which number Ray Serve begins more of them while they are busy. Unset: no more than cluster_engines."""
    cluster_engine_load: Annotated[float, _between(0, 10_000, "a number")] = 8.0
    """Questions that each engine of the cluster should have at once: with more, Ray Serve begins another one."""
    shared_modules: OptionalNonEmpty = None
    """Where engines share the files of encoded passages: a folder that all machines see, or a URL that fsspec opens, as
    s3://bucket/folder. `disk` is for all of it. Unset: the data folder with cluster = local; else nothing is shared."""
    host: NonEmpty = "127.0.0.1"
    """Address to listen on; anything but loopback is open to the network."""
    port: Annotated[int, _between(0, 65535)] = 7860
    """Port to listen on; 0 picks a free one."""
    log_format: LogFormat = "text"
    """How the log is written on stderr: as text, or as JSON, one object a line (docs/operations.md)."""
    log_level: LogLevel = "warning"
    """What is logged: debug, info (each request is a line), warning or error. Customers' words are in none of them."""
    public_url: PublicUrl = None
    """The address at which customers reach the desk, as https://help.example.com, where a proxy with TLS stands before
    it. Host and Origin of requests are held against it, cookies are sent over TLS only, and links begin with it."""
    trusted_proxies: Addresses = ()
    """Addresses or networks of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed, as ["127.0.0.1"]; from
    anybody else these headers are ignored."""
    visitor_secret: Secret = Field(default=None, repr=False)
    """Signs visitor tokens (JSON Web Token, HS256, claims sub and exp, in a link also iat) with which your own site
    hands over who the customer is (docs/serving.md, docs/widget.md). Unset: customers are known by a cookie only."""
    widget_origins: Origins = ()
    """Addresses of your own sites that may show the chat in a corner of their pages, as ["https://www.example.com"]
    (docs/widget.md). None: the widget is off."""
    questions_per_minute: Annotated[int, _between(1, 10_000)] = 20
    """The most questions of one visitor in a minute; from one address it is five times as many."""
    answers_at_once: Annotated[int, _between(1, 1000)] = 2
    """The most answers that one visitor may have in progress."""
    conversations_kept: Annotated[int, _between(1, 100_000)] = 500
    """The most conversations of one visitor; after that the visitor deletes some first."""
    desk_name: NonEmptyLine = "Warmdesk"
    """What the desk is called on the customers' pages."""
    desk_colour: Colour = None
    """Colour of buttons and links on the customers' pages, as "#a84a24"; dark enough to be read on white."""
    desk_logo: Image = None
    """An image file (.svg or .png, square) that stands beside the name."""
    greeting: Line = None
    """What an empty conversation says above the example questions. Unset: "How can we help?"."""
    example_questions: Questions = ()
    """Questions that an empty conversation offers. None: the desk takes some from its documents and checks that it
    answers them."""
    page_urls: PageUrls = Field(default_factory=dict)
    """Where customers read the pages, by collection ("" for documents without one), with {name} for the file's name
    without its ending: "" = "https://help.example.com/{name}". A page that names its own address keeps it."""
    show_technical: bool = False
    """Whether customers see, below an answer, how many prompt tokens were reused and when the first token came. The
    dashboard always shows it."""
    keep_days: Annotated[int | None, _between(1, 36_500)] = None
    """Conversations without a message for this many days are removed for good. Unset: they are kept forever."""
    redact: bool = Field(default=False, json_schema_extra={"needs": "true or false"})
    """Replace e-mail addresses, phone and card numbers in questions before anything is stored, searched or given to the
    model. The transcript then shows [e-mail], [phone] or [card] in their place."""
    questions_at_once: Annotated[int, _between(1, 1024)] = 64
    """The most questions that are answered at the same time."""
    questions_waiting: Annotated[int, _between(0, 10_000)] = 64
    """The most questions that may wait for that; one more is told that the desk is busy."""
    answer_seconds: Annotated[int, _between(1, 86_400)] = 300
    """How long a question may take, waiting included; then its answer ends with what there is."""
    device_memory: Memory = Field(default_factory=lambda data: "auto" if _is_gpu(data.get("device", "")) else GIB)
    """Bytes of device memory for attention keys and values, as "1 GiB". auto: on a GPU what is free behind the weights,
    less what the largest pass was measured to need, and less a twentieth of all, at least 512 MiB; on a processor a
    quarter of the free main memory, at most 1 GiB. The default is auto on a GPU, 1 GiB on a processor. Was called
    memory."""
    host_memory: Annotated[Size, _bytes(0)] = 0
    """Bytes of main memory for encoded passages that are dropped from device memory; 0 keeps none. On a GPU all of it
    is taken and locked when the engine starts. On a processor 0 is right where disk is not: the operating system keeps
    the files in memory as far as there is room."""
    kv_storage: Literal["model", "int8"] = "model"
    """Keys and values of encoded passages: as the model has them, or rounded to 8 bits in main memory and on disk,
    which takes half the room and makes answers approximate. Another value: passages are read again."""
    disk: Annotated[Size, _bytes(0)] = 4 * GIB
    """Bytes on disk for encoded passages; 0 keeps none."""
    disk_floor: Floor = "auto"
    """Bytes of the disk that stay free of encoded passages: where there is less, they make room, and none are written.
    auto: 512 MiB, or a twentieth of a smaller disk."""
    passages: Annotated[int, _between(1, 64)] = 5
    """The most passages given to the model for one answer."""
    passage_tokens: Annotated[int, _between(32, 100_000)] = 400
    """The most tokens a passage may have, counted by the model's tokenizer."""
    prefetch: bool = Field(default=True, json_schema_extra={"needs": "true or false"})
    """Whether the desk searches for what a customer types before it is sent, while it has nothing else to do, so that
    the passages are in memory by then. Nothing of that is kept."""
    neighbours: Annotated[int, _between(0, 10)] = 1
    """Number of passages read before each passage while it is encoded. Answers come closer to full attention and take
    no longer; ingestion takes (neighbours + 1) times as long. 0: off."""
    placement: Placement = "contiguous"
    """How passages stand in a prompt: contiguous (measured: closest to full attention), slotted (each at a multiple
    of slot_tokens) or shared (all from the same position on)."""
    slot_tokens: Annotated[int, _between(1, 100_000)] = 256
    """Length of a slot, in positions; for placement = slotted."""
    answer_tokens: Annotated[int, _between(1, 100_000)] = 160
    """The most tokens of an answer in the model's own words."""
    policy: Literal["auto"] | Policy = "auto"
    """How passages are linked: fast, balanced or exact (docs/evidence.md). auto: what `warmdesk calibrate` found for
    the model, fast if there is nothing yet."""
    answer_mode: Literal["auto"] | AnswerMode = "auto"
    """free: the model's own words, as they come. checked: sentences that the passages do not support are replaced by
    quotations. quote: only statements of the passages. auto: what `warmdesk calibrate` found, checked if there is
    nothing yet."""
    temperature: Annotated[float, _between(0, 5, "a number")] = 0.0
    """0 always takes the most likely token; with higher values answers vary."""
    repetition_penalty: Annotated[float, _between(1, 2, "a number")] = 1.0
    """More than 1 keeps small models from repeating themselves; 1 changes nothing."""
    refuse_below: Annotated[float | None, _between(-1, 1, "a number")] = None
    """The desk says that it found nothing when the probability that the documents answer the question is lower than
    this; -1: it always shows something. Unset: the value fitted by `warmdesk calibrate-search`."""
    answer_above: Annotated[float | None, _between(-1, 1, "a number")] = None
    """From this probability on the desk answers; between it and refuse_below it says that it is not certain, quotes at
    most two statements and names the nearest pages. Unset: the value fitted by `warmdesk calibrate-search`."""
    savings_sample: Annotated[float, _between(0, 1, "a number")] = 0.05
    """Share of the answers that are computed a second time without any reuse, while nobody waits, so that the dashboard
    shows what reuse saves and whether it changes answers. 0: none."""
    faq_answers: bool = True
    """Whether a question of the FAQ, asked again in nearly the same words, is answered with the FAQ's answer as it
    stands, without search and model."""
    faq_threshold: Annotated[float | None, _between(0, 1, "a number")] = None
    """How alike the two questions must be for that; words that tell what is asked must be the same in any case. Unset:
    0.85."""
    max_question_chars: Annotated[int, _between(1, LONGEST_TEXT)] = 4000
    """Longest question, in characters."""
    system_text: NonEmpty = (
        "You are a friendly customer service assistant. Answer the customer's question in one to three short "
        "sentences. Use only the help pages you are given, and copy numbers and conditions exactly."
    )
    """What the model is told before the passages. A change means that every passage is encoded again."""
    refusal_text: NonEmpty = (
        "I could not find an answer to this in our help pages. Please contact our customer service team, who "
        "will be glad to help."
    )
    """The answer when the documents do not answer the question. Unset: the same in the customer's language (English,
    German, French, Spanish, Chinese). Contacts that are set stand below it."""
    contact_email: Email = None
    """E-mail address for customers: shown where the documents do not answer, and to those who ask for a person."""
    contact_phone: Phone = None
    """Phone number for customers, shown in the same places."""
    contact_hours: Line = None
    """When somebody can be reached, as "Mon-Fri 9:00-17:00", shown in the same places."""
    contact_url: Url = None
    """Where a person takes over (a form, a chat): an address with https, http or mailto, shown in the same places."""
    handoff: Literal["off", "asked", "rules"] = "rules"
    """When a conversation goes to a person. asked: the customer presses the button or writes that they want a person.
    rules: also after two questions in a row without an answer or with answers that the documents hardly support, and
    after two that were judged bad, while somebody looks at the queue. off: never."""
    handoff_pause: Annotated[int, _between(0, 1000)] = 5
    """As many questions after a person gave a conversation back, the rules look at it again."""
    office_hours: Hours = None
    """When people answer, with a time zone, as "Mon-Fri 9:00-17:00, Sat 10:00-14:00 Europe/Dublin" (the notation of
    OpenStreetMap). Outside of them customers see the contacts and may leave an e-mail address. Unset: always."""
    show_agent_names: bool = Field(default=True, json_schema_extra={"needs": "true or false"})
    """Whether customers see the name of the account that answers them."""
    handoff_webhook: Webhook = None
    """Address that is told by POST when a conversation is handed off, taken and given back (docs/handoff.md)."""
    handoff_webhook_secret: Secret = Field(default=None, repr=False)
    """Signs what is sent to handoff_webhook, which needs it."""
    database_url: NonEmpty = Field(
        # SQLAlchemy (from 2.1) decodes the path of a URL; a folder may be called "a?b" or "100%20".
        default_factory=lambda data: "sqlite:///" + quote(str(data["data_dir"] / "warmdesk.sqlite3")),
        repr=False,
    )
    """SQLAlchemy URL of the database: SQLite, or PostgreSQL (postgresql+psycopg://user:password@host/database), which
    several desks may share (docs/scale.md). Unset: a SQLite file in the data folder."""

    @classmethod
    def settings_customise_sources(
        cls, settings_cls: type[BaseSettings], init_settings: PydanticBaseSettingsSource, *args: Any, **kwargs: Any
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what is given: see `load_settings`."""
        return (init_settings,)

    @property
    def model_server(self) -> ModelServer | None:
        """Where the model runs, if that is elsewhere."""
        return model_server(self.model)

    @property
    def disk_floor_bytes(self) -> int | None:
        """Bytes of the disk that stay free; None: as `cache.memory.free_space` says."""
        return None if self.disk_floor == "auto" else self.disk_floor

    @property
    def foresees(self) -> bool:
        """Whether the desk looks for what customers type. For a model that runs elsewhere nothing could be brought."""
        return self.prefetch and self.model_server is None

    @property
    def adapter_folder(self) -> Path | None:
        """The folder of the adapter in use, if there is one."""
        if self.adapter is None:
            return SHIPPED_ADAPTER if self.model is None and SHIPPED_ADAPTER.is_dir() else None
        return None if self.adapter == "none" else Path(self.adapter).expanduser()

    @property
    def settings_file(self) -> Path:
        """The optional TOML file."""
        return self.data_dir / SETTINGS_FILE

    @property
    def index_path(self) -> Path:
        """The vector index, rebuildable from the database."""
        return self.data_dir / "passages.index"

    @property
    def modules_folder(self) -> Path:
        """Encoded passages, rebuildable from the database."""
        return self.data_dir / "modules"

    @property
    def uploads_folder(self) -> Path:
        """Files that were uploaded on the dashboard."""
        return self.data_dir / "uploads"

    @property
    def faq_file(self) -> Path:
        """The document that is made of the FAQ."""
        return self.data_dir / "faq" / FAQ_FILE

    @property
    def faq_document(self) -> str:
        """The name of that document: its path or, in a database that several desks share, the same for all of them."""
        return str(self.faq_file.resolve()) if self.database_url.startswith("sqlite") else FAQ_FILE

    @property
    def models_folder(self) -> Path:
        """Models unpacked or fetched on request."""
        return self.data_dir / "models"

    @property
    def pages_folder(self) -> Path:
        """Where Gradio would put files that are sent to pages; ours take none."""
        return self.data_dir / "pages"


class _Source(InitSettingsSource):
    """Values by key, and the place of each in words."""

    def __init__(self, values: Mapping[str, object], place: Callable[[str], str]) -> None:
        super().__init__(Settings, _renamed(values, place))
        self.place = place


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str]) -> Settings:
    """Defaults, then the settings file, then WARMDESK_* variables, then flags. Notes about old names go to stderr.

    flags: values by key, with `_` for `-`; None means not given. Raises DeskError (code "settings").
    """
    given = {key: value for key, value in flags.items() if value is not None}
    variables = {
        name.removeprefix(PREFIX).lower(): text
        for name, text in environ.items()
        if name.startswith(PREFIX) and name not in NO_SETTINGS and text.strip()
    }
    sources = (
        _Source(given, lambda key: f"the flag --{key.replace('_', '-')}"),
        _Source(
            {key: _from_text(key, text) for key, text in variables.items()},
            lambda key: f"the environment variable {PREFIX}{key.upper()}",
        ),
    )
    file = _merged(*sources).settings_file
    in_file = _parse(file)
    if "data_dir" in in_file:
        raise _error(f"data_dir cannot be set in {file}: the file is found through it; use --data-dir")
    return _merged(*sources, _Source(in_file, lambda key: str(file)))


def names_of(key: str) -> list[str]:
    """The name of a setting, and its former ones."""
    return [key, *(old for old, name in OLD_NAMES.items() if name == key)]


def settings_in(values: Mapping[str, object], file: Path) -> Settings:
    """What a settings file with these values gives by itself. Raises DeskError (code "settings")."""
    return _merged(_Source(values, lambda key: str(file)))


def value_in(key: str, text: str) -> Any:
    """What a settings file holds for a value that a person wrote; what does not fit stays text, and is refused then."""
    value = _from_text(key, text)
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _merged(*sources: _Source) -> Settings:
    """Settings from sources, the first wins."""
    try:
        return Settings(_build_sources=(sources, {}))  # type: ignore[call-arg]  # mypy sees the fields only
    except ValidationError as error:
        wrong = error.errors()[0]
    key = str(wrong["loc"][0])
    place = next(source.place(key) for source in sources if key in source.init_kwargs)
    known = Settings.model_fields
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        raise _error(f"unknown setting {_shown(key)} in {place}: {hint}")
    value = _shown(wrong["input"]) if known[key].repr else "not usable"
    extra = known[key].json_schema_extra
    needs = extra["needs"] if isinstance(extra, dict) else wrong["ctx"]["expected"].replace("'", "")
    raise _error(f"{key} is {value} in {place}: it must be {needs}")


def _from_text(key: str, text: str) -> object:
    """A variable's text as a settings file would hold it; what does not fit the setting stays text and is refused."""
    field = Settings.model_fields.get(key)
    try:
        return text if field is None else TypeAdapter(field.rebuild_annotation()).validate_strings(text)
    except ValidationError:
        return text


def _renamed(values: Mapping[str, object], place: Callable[[str], str]) -> dict[str, object]:
    """Values under the names that settings have now."""
    renamed = {key: value for key, value in values.items() if key not in OLD_NAMES}
    for key in values.keys() & OLD_NAMES.keys():
        name = OLD_NAMES[key]
        if name is None:
            note = "does nothing any more: remove it"
        elif name in values:
            raise _error(f"`{key}` in {place(key)} is the old name of `{name}`, which is given too: remove `{key}`")
        else:
            renamed[name] = values[key]
            note = f"is called `{name}` now: rename it"
        print(f"note: setting `{key}` in {place(key)} {note}", file=sys.stderr)
    return renamed


def _parse(settings_file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(settings_file.read_text(encoding="utf-8-sig"))
    except (FileNotFoundError, NotADirectoryError):  # the lock says what is wrong with the folder
        return {}
    except OSError as error:
        raise _error(f"cannot read the settings file {settings_file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _error(f"the settings file {settings_file} is not UTF-8 text: save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _error(f"the settings file {settings_file} is not valid TOML: {error}") from None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _error(message: str) -> DeskError:
    return DeskError(message, code="settings")
