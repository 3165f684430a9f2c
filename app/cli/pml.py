"""The commands `warmdesk pml ...`: check and run schemas and prompts, advise on them, export the documents as PML."""

from pathlib import Path
from typing import Annotated

import typer

from app.cli.options import DataDir, Device, Json, Memory, Model, open_reader, open_service, settings_of, show

commands = typer.Typer()
pml = typer.Typer(no_args_is_help=True, help="Prompts written in PML: check, run, export, advise.")
commands.add_typer(pml, name="pml")

SchemaFile = Annotated[Path, typer.Argument(help="File with a <schema>.")]
TokenizerName = Annotated[
    str | None, typer.Option(help="words, or a model's folder, .gguf file or name; default: the desk's model.")
]
TemplateName = Annotated[
    str | None, typer.Option(help="Chat template: llama2, chatml or falcon; default: the model's.")
]


@pml.command()
def check(
    schema: SchemaFile,
    prompt: Annotated[Path | None, typer.Argument(help="File with a <prompt> for it.")] = None,
    tokenizer: TokenizerName = None,
    template: TemplateName = None,
    max_positions: Annotated[int | None, typer.Option(help="Usable position ids; default: the model's.", min=1)] = None,
    baseline: Annotated[bool, typer.Option("--baseline", help="Show what is computed with nothing reused.")] = False,
    add: Annotated[list[Path] | None, typer.Option(help="One more schema; may be repeated.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="Take a schema out again by name.")] = None,
    data_dir: DataDir = None,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Check a schema, and a prompt for it; show their position ids. Nothing is computed."""
    from app.cli.pml_reports import print_facts
    from app.pml.facts import facts, registry_for

    settings = settings_of(data_dir=data_dir, model=model)
    registry = registry_for(settings, tokenizer=tokenizer, template=template, max_positions=max_positions)
    found = facts(registry, schema, prompt, baseline=baseline, add=add or (), remove=remove or ())
    show(as_json, found, lambda: print_facts(found))


@pml.command()
def run(
    schema: SchemaFile,
    prompt: Annotated[Path, typer.Argument(help="File with a <prompt> for it.")],
    max_tokens: Annotated[int, typer.Option(help="Length of the answer, at most.", min=1)] = 128,
    reuse: Annotated[str, typer.Option(help="on, prefix (exact prefixes only) or off.")] = "on",
    data_dir: DataDir = None,
    model: Model = None,
    device: Device = None,
    memory: Memory = None,
    as_json: Json = False,
) -> None:
    """Run a prompt on the desk's model. Encoded modules are kept: the next run finds them."""
    from app.cli.pml_reports import print_completion
    from app.pml.run import run_prompt
    from cache.engine.sampling import Sampling

    settings = settings_of(data_dir=data_dir, model=model, device=device, memory=memory)
    with open_service(settings, "warmdesk pml run") as service:
        sampling = Sampling(
            max_tokens=max_tokens, temperature=settings.temperature, repetition_penalty=settings.repetition_penalty
        )
        result = run_prompt(service.engine, schema, prompt, sampling, reuse)
    show(as_json, result, lambda: print_completion(result))


@pml.command()
def export(
    output: Annotated[Path | None, typer.Option(help="File to write; default: standard output.")] = None,
    slots: Annotated[
        int | None, typer.Option(help="Passages one prompt can hold; default: the setting.", min=1)
    ] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Write the documents as a PML schema: slots are unions over documents, documents unions over their passages."""
    from app.pml.export import export_schema

    settings = settings_of(data_dir=data_dir)
    slots = slots or settings.passages
    with open_reader(settings) as service:
        text, documents, passages = export_schema(service.library, settings.system_text, slots)
    found = {"documents": documents, "passages": passages, "slots": slots}
    if output is None:
        show(as_json, {**found, "schema": text}, lambda: print(text, end=""))
        return
    output.write_text(text, encoding="utf-8")
    line = f"{documents} documents, {passages} passages: {output}"
    show(as_json, {**found, "output": str(output)}, lambda: print(line))


@pml.command()
def advise(
    file: Annotated[
        Path, typer.Argument(help="A PML schema or prompt, a text file, or JSON lines of prompts or chat messages.")
    ],
    schema: Annotated[Path | None, typer.Option(help="The schema of a PML prompt: count what it reuses.")] = None,
    tokenizer: TokenizerName = None,
    template: TemplateName = None,
    data_dir: DataDir = None,
    model: Model = None,
    as_json: Json = False,
) -> None:
    """Say what in a prompt keeps it from being reused, and how many tokens that costs."""
    from app.cli.pml_reports import print_advice
    from app.pml.advise import advice_for
    from app.pml.facts import registry_for

    settings = settings_of(data_dir=data_dir, model=model)
    advice = advice_for(file, registry_for(settings, tokenizer=tokenizer, template=template), schema)
    show(as_json, advice, lambda: print_advice(advice))
