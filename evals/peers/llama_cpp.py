"""llama.cpp as a peer: its server in its own process on this machine, on the same GGUF file, asked over HTTP.

The server is from the package xllamacpp (`evals.peers.llama_cpp_server`), or a given `llama-server`. The package is
built for AVX2. If the CPU has more, a `llama-server` built for it is faster. The server caches a prefix for each slot
and reuses moved chunks (`cache_reuse`) if possible.
"""

import http.client
import importlib.metadata
import importlib.util
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import psutil

from app.domain.errors import DeskError
from cache.model.source import bundled_gguf
from evals.peers.random_prompts import TEMPERATURE, TOP_K

CACHE_REUSE = 64  # tokens of the shortest chunk that may be moved
START_S = 120
SAME_FILE = "llama.cpp same file"
NO_CACHE = "llama.cpp without cache"
SAMPLING = {"samplers": ["top_k", "temperature"], "temperature": TEMPERATURE, "top_k": TOP_K, "ignore_eos": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedAnswer:
    """One answer. ttft_s, total_s: seconds from the question, at the client. cached_tokens: tokens of the
    prompt that were not computed.
    """

    ttft_s: float
    total_s: float
    cached_tokens: int


class LlamaServer(AbstractContextManager["LlamaServer"]):
    """A running server; a context manager. program: see `LlamaCpp`. threads: CPU threads. slots: concurrent answers.
    context: tokens of prompt and answer in each slot. Raises DeskError if it does not start.
    """

    def __init__(self, program: Sequence[str], file: Path, *, threads: int, slots: int, context: int) -> None:
        self._port = free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 closed by `close`
        options = {
            "--model": file,
            "--port": self._port,
            "--threads": threads,
            "--parallel": slots,
            "--ctx-size": slots * context,
            "--cache-reuse": CACHE_REUSE,
        }
        command = [*program, *(str(part) for option in options.items() for part in option)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self._log, stderr=self._log)
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._log.close()

    def answer(self, prompt: Sequence[int], new_tokens: int, slot: int = -1, *, is_cached: bool = True) -> ServedAnswer:
        """Ask for `new_tokens` tokens. slot: -1 for any. is_cached: reuse cached tokens. Raises DeskError."""
        body = {"prompt": prompt, "n_predict": new_tokens, "id_slot": slot, "stream": True, "cache_prompt": is_cached}
        body |= SAMPLING
        connection = http.client.HTTPConnection("127.0.0.1", self._port)
        started = time.perf_counter()
        try:
            connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            first = response.readline()
            ttft = time.perf_counter() - started
            lines = (first + response.read()).splitlines()  # at once, to leave the CPU to the server
        finally:
            connection.close()
        total = time.perf_counter() - started
        if response.status != http.client.OK:
            raise DeskError(f"llama.cpp refused a request: {lines[0].decode()}", code="peer")
        last = [line for line in lines if line.startswith(b"data: {")][-1]
        timings = json.loads(last.removeprefix(b"data: "))["timings"]
        return ServedAnswer(ttft_s=ttft, total_s=total, cached_tokens=timings["cache_n"])

    @property
    def resident_bytes(self) -> int:
        return resident_bytes(self._process.pid)

    def _wait(self) -> None:
        end = time.monotonic() + START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self._log.seek(0)
                said = self._log.read().decode(errors="replace").split("\n")
                raise DeskError(f"llama.cpp did not start: {[line for line in said if line][-1:]}", code="peer")
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False
        finally:
            connection.close()


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    """llama.cpp for one model. program: command of the server. file: the model's GGUF file. version: for reports."""

    program: tuple[str, ...]
    file: Path
    version: str

    @classmethod
    def find(cls, model: str | None, llama_server: Path | None) -> "LlamaCpp":
        """Find llama.cpp for a model. llama_server: path of llama.cpp's own program, None for the package xllamacpp.
        Raises DeskError, and ModelError if the bundled model is requested and missing.
        """
        file = bundled_gguf() if model is None else Path(model).expanduser()
        if file.suffix != ".gguf":
            raise DeskError(f"llama.cpp reads only .gguf files, but the model is {model!r}", code="peer")
        if llama_server is not None:
            if not llama_server.is_file():
                raise DeskError(f"there is no program {str(llama_server)!r}: give a llama-server", code="peer")
            return cls((str(llama_server),), file, "llama-server, built for the CPU")
        if importlib.util.find_spec("xllamacpp") is None:
            raise DeskError("llama.cpp is missing: pip install xllamacpp, or give --llama-server", code="peer")
        program = (sys.executable, "-P", str(Path(__file__).with_name("llama_cpp_server.py")))
        return cls(program, file, f"xllamacpp {importlib.metadata.version('xllamacpp')}")

    def serve(self, *, threads: int, slots: int, context: int) -> LlamaServer:
        return LlamaServer(self.program, self.file, threads=threads, slots=slots, context=context)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def resident_bytes(process: int | None = None) -> int:
    """Return the memory of a process (default: this one), including the pages of mapped files that it has read."""
    return int(psutil.Process(process).memory_info().rss)
