"""The command `plan`: simulate how many machines a load needs (`cache.planning`)."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.options import Common, progress_line, takes, whole_numbers
from app.domain.errors import DeskError
from app.domain.setting_types import parse_size
from app.domain.words import size

if TYPE_CHECKING:
    from cache.planning.costs import PassCosts
    from cache.planning.planning import PlannedRow

commands = typer.Typer()


@commands.command()
@takes("data_dir", "as_json")
def plan(
    common: Common,
    trace: Annotated[
        Path | None, typer.Option(help="JSON lines {t, documents, question_tokens, answer_tokens, session}.")
    ] = None,
    documents: Annotated[int | None, typer.Option(help="Number of documents (popularity follows Zipf).", min=1)] = None,
    requests_per_second: Annotated[float | None, typer.Option(help="Questions per second.", min=1e-6)] = None,
    model: Annotated[
        str, typer.Option(help="bundled, Qwen2.5-0.5B, Qwen3-4B, Llama-3.1-8B, or a GGUF file.")
    ] = "bundled",
    replicas: Annotated[str, typer.Option(help="Numbers of engines to try, 1 to 1000, comma-separated.")] = "1,2,4,8",
    replica_memory: Annotated[str, typer.Option(help="Memory of each engine for encoded documents.")] = "1 GiB",
    disk: Annotated[str, typer.Option(help="Shared disk space for encoded documents.")] = "0",
    per_machine: Annotated[int, typer.Option(help="Number of engines per machine.", min=1)] = 1,
    document_tokens: Annotated[int, typer.Option(help="Number of tokens in a document.", min=1)] = 200,
    per_request: Annotated[int, typer.Option(help="Number of documents per question.", min=1)] = 4,
    related: Annotated[float, typer.Option(help="Probability that they have one topic.", min=0, max=1)] = 0.8,
    zipf: Annotated[float, typer.Option(help="Zipf exponent: higher means more skewed.", min=0, max=4)] = 1.0,
    question_tokens: Annotated[int, typer.Option(help="Number of tokens in a question.", min=1)] = 24,
    answer_tokens: Annotated[int, typer.Option(help="Mean number of tokens in an answer.", min=1)] = 48,
    requests: Annotated[
        int | None,
        typer.Option(help="Number of questions to simulate.", min=100, show_default="4000, or 20 for each engine"),
    ] = None,
    ttft_target: Annotated[
        float, typer.Option(help="Target for the 95th percentile of the time to the first token, in seconds.", min=0)
    ] = 1.0,
    costs: Annotated[
        Path | None,
        typer.Option(help="File of forward pass costs.", show_default="costs-N.json in the data folder, or measured"),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
) -> None:
    """Simulate a load: hit rate, time to the first token, machines and memory. The simulation uses the real router,
    eviction and scheduler with costs measured here, and compares with routing at random and by the first document.
    """
    from cache.planning.costs import threads_each
    from cache.planning.planning import fewest, plan_fleet
    from cache.planning.simulation import Fleet
    from cache.planning.traffic import ROUTINGS, TrafficShape, read_trace

    if (trace is None) == (documents is None or requests_per_second is None):
        raise DeskError("give --trace FILE, or --documents with --requests-per-second", code="usage")
    counts = whole_numbers(replicas, "--replicas")
    if max(counts) > 1000:
        raise DeskError(f"--replicas is {replicas!r}: write at most 1000", code="usage")
    if trace is not None:
        traffic: Any = read_trace(trace)
    else:
        traffic = TrafficShape(
            documents=documents or 0,
            requests_per_second=requests_per_second or 0.0,
            per_request=per_request,
            related=related,
            zipf=zipf,
            question_tokens=question_tokens,
            answer_tokens=answer_tokens,
        )
    memory, on_disk = bytes_of(replica_memory, "--replica-memory"), bytes_of(disk, "--disk")
    found = find_costs(common, model, costs, threads_each(per_machine))
    rows: list[PlannedRow] = []
    for count in counts:
        for routing in ROUTINGS:
            rows.append(
                plan_fleet(
                    Fleet(replicas=count, memory=memory, per_machine=per_machine),
                    routing,
                    found,
                    traffic,
                    document_tokens=document_tokens,
                    disk=on_disk,
                    requests=requests,
                    seed=seed,
                )
            )
            progress_line(f"{count} engines, {routing}: done")
    best = fewest(rows, ttft_target)
    document = {
        "model": found.model,
        "costs": asdict(found),
        "costs_are": "scaled, not measured" if found.is_scaled else "measured",
        "replica_memory": memory,
        "per_machine": per_machine,
        "ttft_target": ttft_target,
        "rows": [asdict(row) for row in rows],
        "machine_memory": machine_memory(found, memory, per_machine),
        "enough": None if best is None else asdict(best),
    }
    common.show(document, lambda: print_plan(rows, best, found, memory, per_machine, ttft_target))


def bytes_of(text: str, flag: str) -> int:
    try:
        return int(str(parse_size(text)))
    except ValueError as error:
        raise DeskError(f"{flag} is {text!r}: write a size, for example 8 GiB", code="usage") from error


def find_costs(common: Common, model: str, file: Path | None, threads: int) -> "PassCosts":
    """Return the costs of a model: from a file, or measured at first use, with the model itself if it is a GGUF file,
    else with the bundled one.
    """
    from cache.planning.costs import BUNDLED, measure_costs, read_costs, write_costs

    gguf = Path(model) if model.endswith(".gguf") else None
    name = BUNDLED if gguf is None else gguf.stem
    kept = file or common.settings.data_dir / f"costs-{threads if gguf is None else f'{name}-{threads}'}.json"
    is_known = kept.is_file()
    if is_known and file is None and gguf is not None and gguf.is_file():
        is_known = read_costs(kept).weight_bytes == gguf.stat().st_size  # else of another file with this name
    if file is None and not is_known:
        from cache.model.loading import load_model
        from cache.model.source import bundled_gguf

        progress_line("measuring the costs of forward passes, about a minute with a small model")
        language_model = load_model(
            None if gguf is None else str(gguf), device="cpu", converted=common.settings.models_folder
        )
        weight_bytes = (gguf or bundled_gguf()).stat().st_size
        write_costs(measure_costs(language_model, name, weight_bytes, threads), kept)
    return read_costs(kept).scaled_to(model if gguf is None else name)


def machine_memory(costs: "PassCosts", memory: int, per_machine: int) -> int:
    return per_machine * (costs.weight_bytes + memory)


def seconds(value: float, off: float) -> str:
    return f"{value:.2f} ± {off:.2f} s"


def print_plan(
    rows: "list[PlannedRow]",
    best: "PlannedRow | None",
    costs: "PassCosts",
    memory: int,
    per_machine: int,
    target: float,
) -> None:
    print(
        f"{'engines':>7}  {'routing':<17} {'hit rate':>12}  {'first token p50':>16}  {'p95':>16}  {'busy':>5}  refused"
    )
    for row in rows:
        print(
            f"{row.replicas:7d}  {row.routing:<17} {row.hit_rate:6.1%} ± {row.hit_rate_off:3.1%}"
            f"  {seconds(row.ttft_p50, row.ttft_p50_off):>16}  {seconds(row.ttft_p95, row.ttft_p95_off):>16}"
            f"  {row.utilisation:5.0%}  {row.refused:7.1%}"
        )
    note = "scaled, not measured" if costs.is_scaled else "measured"
    print(f"{rows[0].requests} or more questions counted in each line; costs of {costs.model}: {note}.")
    if best is None:
        print(f"None of these keeps 95 % of first tokens below {target:g} s without refusing: try more --replicas.")
        return
    room = size(machine_memory(costs, memory, per_machine))
    print(
        f"{best.machines} machine{'s' * (best.machines != 1)} with {room} of memory for the model and its documents "
        f"({best.replicas} engines) keep 95 % of first tokens below {target:g} s."
    )
