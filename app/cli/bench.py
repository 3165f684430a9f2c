"""The commands that measure speed and memory with `evals`: `bench ...`."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.options import Common, progress_line, takes, whole_numbers
from app.domain.errors import DeskError
from app.domain.setting_types import SHIPPED_DATA

commands = typer.Typer()
bench = typer.Typer(no_args_is_help=True, help="Measure speed and memory.")
commands.add_typer(bench, name="bench")

Threads = Annotated[str | None, typer.Option(help="Thread counts, comma-separated; default: all.")]
Write = Annotated[Path | None, typer.Option(help="Write the table into this file, between two marker lines.")]
Plot = Annotated[Path | None, typer.Option(help="Draw the result into this .svg file.")]
Arms = Annotated[str, typer.Option(help="Variants, comma-separated. Those with transformers take minutes.")]
LlamaServerPath = Annotated[
    Path | None,
    typer.Option("--llama-server", help="A llama-server built for this CPU, instead of the package xllamacpp."),
]


def thread_counts(threads: str | None) -> tuple[int, ...]:
    import torch

    return whole_numbers(threads, "--threads") if threads else (torch.get_num_threads(),)


def chosen(text: str | None, known: tuple[str, ...], option: str = "--arms") -> tuple[str, ...]:
    """Return the names in a comma-separated option; all known ones for None. Raises DeskError for an unknown name."""
    names = known if text is None else tuple(name.strip() for name in text.split(","))
    if strange := [name for name in names if name not in known]:
        raise DeskError(f"{option} has {strange[0]!r}: choose from {', '.join(known)}", code="usage")
    return names


def find_llama_cpp(common: Common, llama_server: Path | None, arms: tuple[str, ...]) -> Any:
    """Return llama.cpp if a variant needs it. If it is not available, print the reason and return None."""
    from evals.peers.llama_cpp import LlamaCpp

    is_wanted = any(arm.startswith("llama.cpp") for arm in arms)
    if not is_wanted or common.settings.model_server is not None:  # loading a remote model reports the error
        return None
    try:
        return LlamaCpp.find(common.settings.model, llama_server)
    except DeskError as error:
        progress_line(f"note: llama.cpp is skipped: {error}")
        return None


def publish(
    common: Common, result: Any, section: str, markdown: Callable[[Any, str], str], command: str, write: Path | None
) -> None:
    from evals.report import write_section

    if write is not None:
        write_section(write, section, markdown(result, command))
    common.show(result, lambda: None if write else print(markdown(result, command)))


def need(section: str, write: Path | None, plot: Path | None = None) -> None:
    """Raise DeskError before the work starts if its table or plot cannot be written."""
    from evals.report import read_section

    if write is not None:
        read_section(write, section)
    if plot is not None:
        if plot.suffix != ".svg" or not plot.absolute().parent.is_dir():
            raise DeskError(f"--plot {plot}: give an .svg file in a folder that exists", code="usage")
        if find_spec("matplotlib") is None:
            raise DeskError("plots need matplotlib: pip install matplotlib", code="no-matplotlib")


@bench.command()
@takes("data_dir", "model", "as_json")
def latency(
    common: Common,
    documents: Annotated[str, typer.Option(help="Document lengths in tokens, comma-separated.")] = ("512,2048"),
    threads: Threads = None,
    repeats: Annotated[int, typer.Option(help="Runs of each variant.", min=1)] = 3,
    arms: Arms = "no_reuse,reuse,llama.cpp same file,llama.cpp without cache",
    llama_server: LlamaServerPath = None,
    write: Write = None,
    plot: Plot = None,
) -> None:
    """Measure the time to the first token by document length, with and without reuse, compared with transformers and
    llama.cpp: as ratios to full prefill and to the machine's lower bound, and the cost of each document token.
    """
    from evals.report import draw_latency
    from evals.speed.latency import ARMS, markdown, measure

    names = chosen(arms, ARMS)
    need("latency", write, plot)
    result = measure(
        settings=common.settings,
        sizes=whole_numbers(documents, "--documents"),
        threads=thread_counts(threads),
        repeats=repeats,
        arms=names,
        llama_cpp=find_llama_cpp(common, llama_server, names),
        report=progress_line,
    )
    if plot is not None:
        draw_latency(result, plot)
    command = f"warmdesk bench latency --documents {documents}"
    command += f" --threads {threads}" if threads else ""
    command += f" --arms '{arms}'"
    publish(common, result, "latency", markdown, command, write)


@bench.command("desk")
@takes("data_dir", "as_json")
def whole_desk(
    common: Common,
    documents: Annotated[Path, typer.Argument(help="Folder to ingest.")],
    questions: Annotated[Path, typer.Argument(help='Questions, one {"question": text} per line.')],
    limit: Annotated[int, typer.Option(help="Maximum questions.", min=1)] = 40,
    repeats: Annotated[int, typer.Option(help="Runs of each command.", min=1)] = 3,
    write: Write = None,
) -> None:
    """Measure waiting times of operators: commands, indexing, a killed ingest, server start, search; and memory. With
    --data-dir the data stay, and the next run skips indexing.
    """
    from app.desk.batch import read_questions
    from evals.speed.desk import markdown, measure_desk

    need("desk", write)
    asked = [one.question for one in read_questions(questions)][:limit]
    kept = None if common.flags["data_dir"] is None else common.settings.data_dir
    result = measure_desk(documents=documents, questions=asked, repeats=repeats, kept=kept, report=progress_line)
    publish(common, result, "desk", markdown, f"warmdesk bench desk {documents} {questions} --limit {limit}", write)


@bench.command("prompt-cache")
@takes("data_dir", "model", "as_json")
def prompt_cache(
    common: Common,
    threads: Threads = None,
    repeats: Annotated[int, typer.Option(help="Runs of each variant.", min=1)] = 5,
    write: Write = None,
) -> None:
    """Measure the time to the first token in the three use cases of the Prompt Cache paper, with and without reuse."""
    from evals.speed.use_cases import markdown, measure_use_cases

    need("prompt-cache", write)
    result = measure_use_cases(
        settings=common.settings,
        folder=SHIPPED_DATA / "schemas",
        threads=thread_counts(threads),
        repeats=repeats,
        report=progress_line,
    )
    publish(common, result, "prompt-cache", markdown, "warmdesk bench prompt-cache", write)


@bench.command()
@takes("data_dir", "model", "as_json")
def throughput(
    common: Common,
    clients: Annotated[str, typer.Option(help="Numbers of concurrent clients, comma-separated.")] = "1,8",
    documents: Annotated[int, typer.Option(help="Number of passages.", min=1)] = 20,
    zipf: Annotated[float, typer.Option(help="Zipf exponent of the popularity; 0: all equally popular.", min=0)] = 1.0,
    requests: Annotated[
        int | None,
        typer.Option(help="Number of questions per variant.", min=1, show_default="four of each client, at least 8"),
    ] = None,
    arms: Arms = "warmdesk,llama.cpp same file",
    llama_server: LlamaServerPath = None,
    write: Write = None,
    plot: Plot = None,
) -> None:
    """Measure throughput and time to the first token with many clients, compared with llama.cpp and transformers."""
    from evals.report import draw_throughput
    from evals.speed.throughput import ARMS, LoadTest, markdown, measure_throughput

    names = chosen(arms, ARMS)
    need("throughput", write, plot)
    load = LoadTest(documents=documents, zipf=zipf, requests=requests)
    result = measure_throughput(
        settings=common.settings,
        clients=whole_numbers(clients, "--clients"),
        load=load,
        arms=names,
        llama_cpp=find_llama_cpp(common, llama_server, names),
        report=progress_line,
    )
    if plot is not None:
        draw_throughput(result, plot)
    command = f"warmdesk bench throughput --clients {clients} --documents {documents} --zipf {zipf:g}"
    publish(common, result, "throughput", markdown, command, write)


@bench.command()
@takes("data_dir", "model", "as_json")
def decode(
    common: Common,
    documents: Annotated[int, typer.Option(help="Document tokens before the answers.", min=1)] = 1024,
    conversations: Annotated[str, typer.Option(help="Numbers of concurrent answers, comma-separated.")] = "1,8",
    repeats: Annotated[int, typer.Option(help="Runs of each variant.", min=1)] = 3,
    arms: Arms = "warmdesk,llama.cpp same file",
    llama_server: LlamaServerPath = None,
    write: Write = None,
) -> None:
    """Measure tokens per second after the first token, compared with llama.cpp and transformers."""
    from evals.speed.decode import ARMS, markdown, measure_decode

    names = chosen(arms, ARMS)
    need("decode", write)
    result = measure_decode(
        settings=common.settings,
        documents=documents,
        conversations=whole_numbers(conversations, "--conversations"),
        repeats=repeats,
        arms=names,
        llama_cpp=find_llama_cpp(common, llama_server, names),
        report=progress_line,
    )
    command = f"warmdesk bench decode --documents {documents} --conversations {conversations}"
    publish(common, result, "decode", markdown, command, write)


@bench.command()
@takes("data_dir", "model", "as_json")
def floor(
    common: Common,
    documents: Annotated[str, typer.Option(help="Document lengths in tokens, comma-separated.")] = "2048,7000",
    threads: Threads = None,
    write: Write = None,
) -> None:
    """Measure memory bandwidth and matrix products of this machine, and compute the model speed that they allow."""
    from evals.speed.models import markdown, measure_floors

    need("floor", write)
    sizes = whole_numbers(documents, "--documents")
    result = measure_floors(common.settings, thread_counts(threads), sizes, progress_line)
    publish(common, result, "floor", markdown, f"warmdesk bench floor --documents {documents}", write)


@bench.command()
@takes("data_dir", "as_json")
def index(
    common: Common,
    vectors: Annotated[int, typer.Option(help="Number of windows in the vector index.", min=1)] = 1_000_000,
    keywords: Annotated[int, typer.Option(help="Number of windows in the keyword index.", min=1)] = 100_000,
    write: Write = None,
) -> None:
    """Measure memory, file sizes and times of search indexes with made-up passages."""
    from evals.speed.index import markdown, measure_index

    need("index", write)
    result = measure_index(vectors, keywords, searches=20)
    command = f"warmdesk bench index --vectors {vectors} --keywords {keywords}"
    publish(common, result, "index", markdown, command, write)


@bench.command()
@takes("data_dir", "model", "as_json")
def memory(
    common: Common,
    conversations: Annotated[int, typer.Option(help="Number of concurrent answers.", min=1)] = 16,
    modules: Annotated[int, typer.Option(help="Number of modules that all answers share.", min=1)] = 8,
    llama_server: LlamaServerPath = None,
    write: Write = None,
) -> None:
    """Measure the KV memory of conversations that share modules, compared with one copy of the modules plus each
    conversation's own KV; and the resident memory, compared with llama.cpp.
    """
    from evals.speed.memory import markdown, measure_memory

    need("memory", write)
    llama_cpp = find_llama_cpp(common, llama_server, ("llama.cpp",))
    result = measure_memory(common.settings, conversations, modules, llama_cpp, progress_line)
    command = f"warmdesk bench memory --conversations {conversations} --modules {modules}"
    publish(common, result, "memory", markdown, command, write)


@bench.command()
@takes("data_dir", "as_json")
def eviction(
    common: Common,
    budget: Annotated[str, typer.Option(help="Memory sizes in modules, comma-separated.")] = "25,50,100",
    modules: Annotated[int, typer.Option(help="Number of modules.", min=1)] = 500,
    requests: Annotated[int, typer.Option(help="Number of requests.", min=1)] = 2000,
    zipf: Annotated[float, typer.Option(help="Zipf exponent of the popularity; 0: all equally popular.", min=0)] = 1.0,
    changes: Annotated[int, typer.Option(help="Number of times that popularity is shuffled among modules.", min=0)] = 0,
    trace: Annotated[
        Path | None, typer.Option(help='Recorded requests instead, as JSON lines {"modules": [name, ...]}.')
    ] = None,
    write: Write = None,
    plot: Plot = None,
) -> None:
    """Compare the eviction of modules with LRU, LFU, known popularity and the clairvoyant optimum."""
    from evals.report import draw_eviction
    from evals.speed.eviction import PASSAGES, draw_trace, markdown, measure_eviction, read_trace

    need("eviction", write, plot)
    if trace is not None:
        traces, source = [read_trace(trace)], f"recorded in {trace.name}"
    else:
        traces = [draw_trace(modules, requests, zipf, changes=changes, seed=seed) for seed in range(1, 6)]
        source = f"{PASSAGES} each, drawn by Zipf {zipf:g} of {modules}"
        source += f", changes of popularity: {changes}" if changes else ""
    result = measure_eviction(traces, whole_numbers(budget, "--budget"), source)
    if plot is not None:
        draw_eviction(result, plot)
    command = f"warmdesk bench eviction --trace {trace.name}" if trace else f"warmdesk bench eviction --zipf {zipf:g}"
    command += f" --changes {changes}" if changes and not trace else ""
    publish(common, result, "eviction", markdown, f"{command} --budget {budget}", write)


@bench.command()
@takes("data_dir", "device", "as_json")
def gpu(
    common: Common,
    rows: Annotated[str | None, typer.Option(help="Table rows, comma-separated; default: all (docs/gpu.md).")] = None,
    minutes: Annotated[float, typer.Option(help="Maximum minutes for all rows.", min=0.1)] = 10,
    write: Write = None,
    plot: Plot = None,
) -> None:
    """Measure a GPU: correctness, first token by memory tier, decoding, memory. Baselines are transformers and the
    GPU's limits. Models have random weights, and are tiny without a GPU. Default of --device: cuda with a GPU.
    """
    from evals.gpu.plan import PLANS
    from evals.gpu.run import drawing_of, markdown, measure_gpu
    from evals.report import draw_gpu

    names = chosen(rows, tuple(plan.name for plan in PLANS), "--rows")
    device = common.flags["device"] or default_device(common.settings.device)
    need("gpu", write, plot)
    result = measure_gpu(
        device=device,
        size="tiny" if device == "cpu" else "full",
        models=common.settings.models_folder,
        names=names,
        minutes=minutes,
        report=progress_line,
    )
    picture = ""
    if plot is not None and draw_gpu(result, plot):
        picture = drawing_of(plot, write)
    command = f"warmdesk bench gpu --device {device}" + (f" --rows {rows}" if rows else "")
    publish(common, result, "gpu", lambda result, command: markdown(result, command) + picture, command, write)


def default_device(setting: str) -> str:
    import torch

    return "cuda" if setting == "cpu" and torch.cuda.is_available() else setting
