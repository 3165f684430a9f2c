"""The commands `warmdesk pml ...`, and their output for people from the JSON documents of `app.pml`."""

from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.options import Common, open_reader, open_service, takes


def print_facts(found: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("ids", "kind", "path", box=None, pad_edge=False)
    for item in sorted(found["layout"], key=lambda item: (item["start"], item["path"].count("/"), -item["length"])):
        ids = f"{item['start']}-{item['start'] + item['length'] - 1}" if item["length"] else "none"
        table.add_row(ids, item["kind"], item["path"] or "(root)")
    Console().print(table)
    print(f"schema {found['schema']}: {found['length']} position ids")
    if "fed" in found:
        print(f"from the cache: {ranges(found['cached'])}")
        print(f"computed:       {ranges(found['fed'])}")
        print(f"the answer begins at {found['first_generated']}")


def ranges(ids: list[int]) -> str:
    runs = [[at for _, at in run] for _, run in groupby(enumerate(ids), lambda pair: pair[1] - pair[0])]
    shown = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"{shown} ({len(ids)} tokens)" if ids else "nothing"


def print_completion(result: dict[str, Any]) -> None:
    print(result["text"])
    usage, timings = result["usage"], result["timings_ms"]
    print(
        f"\n{usage['prompt_tokens']} prompt tokens, {usage['computed_tokens']} computed; "
        f"first token after {timings['ttft']:.0f} ms; {'exact' if result['exact'] else 'approximate'}"
    )
    for use in result["modules"]:
        why = f" ({use['miss_reason']})" if use["miss_reason"] else ""
        print(f"{use['tokens']:6d} tokens at {use['position']:6d}  {use['source']}{why}  {use['name']}")


def print_advice(advice: dict[str, Any]) -> None:
    for finding in advice["findings"]:
        place = f"line {finding['line']}: " if finding["line"] else ""
        print(f"{place}{finding['what']}\n    {finding['tokens']} tokens; {finding['cure']}")
    if not advice["findings"]:
        print("nothing prevents reuse")
    if advice["kind"] == "prompt" and advice["schema"] is None:
        print(f"new text and arguments: {advice['tokens']} tokens, computed in every request")
    else:
        print(f"{advice['reusable']} of {advice['tokens']} tokens can be reused")


commands = typer.Typer()
pml = typer.Typer(no_args_is_help=True, help="Prompts written in PML: check, run, export, advise.")
commands.add_typer(pml, name="pml")

SchemaFile = Annotated[Path, typer.Argument(help="File with a <schema>.")]
TokenizerName = Annotated[
    str | None, typer.Option(help="words (no model), or a model folder, .gguf file or name. Default: --model.")
]
TemplateName = Annotated[
    str | None, typer.Option(help="Chat template: llama2, chatml or falcon; default: the model's.")
]


@pml.command()
@takes("data_dir", "model", "as_json")
def check(
    common: Common,
    schema: SchemaFile,
    prompt: Annotated[Path | None, typer.Argument(help="File with a <prompt> for the schema.")] = None,
    tokenizer: TokenizerName = None,
    template: TemplateName = None,
    max_positions: Annotated[int | None, typer.Option(help="Usable position ids; default: the model's.", min=1)] = None,
    baseline: Annotated[bool, typer.Option("--baseline", help="Show what is computed without reuse.")] = False,
    add: Annotated[list[Path] | None, typer.Option(help="File of another schema; may be repeated.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="Remove a schema by name.")] = None,
) -> None:
    """Check a schema, and a prompt for it; show their position ids. The model computes nothing."""
    from app.pml import facts, registry_for

    registry = registry_for(common.settings, tokenizer=tokenizer, template=template, max_positions=max_positions)
    found = facts(registry, schema, prompt, baseline=baseline, add=add or (), remove=remove or ())
    common.show(found, lambda: print_facts(found))


@pml.command()
@takes("data_dir", "model", "device", "memory", "as_json")
def run(
    common: Common,
    schema: SchemaFile,
    prompt: Annotated[Path, typer.Argument(help="File with a <prompt> for the schema.")],
    max_tokens: Annotated[int, typer.Option(help="Maximum tokens of the answer.", min=1)] = 128,
    reuse: Annotated[str, typer.Option(help="Reuse: on, prefix (exact prefixes only) or off.")] = "on",
) -> None:
    """Run a prompt on the configured model. Encoded modules are stored for the next run."""
    from app.pml import run_prompt
    from cache.decoding.sampling import Sampling

    settings = common.settings
    sampling = Sampling(
        max_tokens=max_tokens, temperature=settings.temperature, repetition_penalty=settings.repetition_penalty
    )
    with open_service(settings, "warmdesk pml run") as service:
        result = run_prompt(service.engine, schema, prompt, sampling, reuse)
    common.show(result, lambda: print_completion(result))


@pml.command()
@takes("data_dir", "as_json")
def export(
    common: Common,
    output: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
    slots: Annotated[
        int | None, typer.Option(help="Maximum passages of a prompt; default: the setting passages.", min=1)
    ] = None,
) -> None:
    """Write the documents as a PML schema: slots are unions over documents, documents unions over their passages."""
    from app.pml import export_schema

    slots = slots or common.settings.passages
    with open_reader(common.settings) as service:
        text, documents, passages = export_schema(service.library, common.settings.system_text, slots)
    found = {"documents": documents, "passages": passages, "slots": slots}
    if output is None:
        common.show({**found, "schema": text}, lambda: print(text, end=""))
        return
    output.write_text(text, encoding="utf-8")
    line = f"{documents} documents, {passages} passages: {output}"
    common.show({**found, "output": str(output)}, lambda: print(line))


@pml.command()
@takes("data_dir", "model", "as_json")
def advise(
    common: Common,
    file: Annotated[
        Path, typer.Argument(help="A PML schema or prompt, a text file, or JSON lines of prompts or chat messages.")
    ],
    schema: Annotated[Path | None, typer.Option(help="The schema of a PML prompt, to count what it reuses.")] = None,
    tokenizer: TokenizerName = None,
    template: TemplateName = None,
) -> None:
    """Show the parts of a prompt that prevent its reuse, and their cost in tokens."""
    from app.pml import advice_for, registry_for

    advice = advice_for(file, registry_for(common.settings, tokenizer=tokenizer, template=template), schema)
    common.show(advice, lambda: print_advice(advice))
