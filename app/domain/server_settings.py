"""Settings of the server: language model, memory, several engines, addresses, log and data.

They are written in the same way as those of `desk_settings`.
"""

from typing import Annotated, Literal
from urllib.parse import quote

import platformdirs
from pydantic import Field

from app.domain import setting_types as types
from app.domain.setting_types import GIB, SettingGroup, between
from app.domain.words import translatable
from cache.engine.log_lines import LogFormat, LogLevel
from cache.prompt.plan import Placement


class ModelSettings(SettingGroup):
    """The language model, on this machine or on another server."""

    title = translatable("Language model")

    model: types.Model = None
    """Language model: a folder, a .gguf file, a hub name, or openai:URL#NAME for a remote model behind a server with
    OpenAI's API (docs/scale.md). Unset: the bundled model."""
    adapter: types.OptionalText = None
    """Folder of a LoRA adapter (see `warmdesk adapt`) that is merged into the model. none: no adapter. Unset: the
    bundled adapter for the bundled model, no adapter for other models."""
    device: types.Text = "cpu"
    """Device of the language model: cpu, cuda or cuda:N."""
    weights: Literal["model", "int8", "fp8"] = "model"
    """Weights of the model: unchanged (model), or rounded to 8 bits (int8, fp8), which is slightly less exact. On a
    CPU, 8 bits are faster and need a C compiler. On a GPU, they save memory and need torchao. fp8 needs a GPU of
    compute capability 8.9 or higher. A change re-encodes every passage."""
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

    device_memory: types.Memory = Field(
        default_factory=lambda data: "auto" if data.get("device", "").startswith("cuda") else GIB
    )
    """Device memory for attention keys and values, in bytes, for example "1 GiB". auto on a GPU: the memory that the
    weights leave free, less the measured need of the largest forward pass and a twentieth of the whole, at least
    512 MiB. auto on a CPU: a quarter of the free main memory, at most 1 GiB. The default is auto on a GPU, 1 GiB on a
    CPU."""
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
    example s3://bucket/folder. `disk` limits all of it. Unset: the data folder with cluster = local, else nothing is
    shared."""


class ServerSettings(SettingGroup):
    """Addresses, log and data."""

    title = translatable("Server and data")

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
    """Lowest level of log lines: debug, info (a line for each request), warning or error. The log never contains
    customers' words."""
    database_url: types.Text = Field(
        # SQLAlchemy (from 2.1) decodes the path of a URL; a folder may be called "a?b" or "100%20".
        default_factory=lambda data: "sqlite:///" + quote(str(data["data_dir"] / "warmdesk.sqlite3")),
        repr=False,
    )
    """SQLAlchemy URL of the database: SQLite, or PostgreSQL (postgresql+psycopg://user:password@host/database), which
    several servers can share (docs/scale.md). Unset: a SQLite file in the data folder."""
