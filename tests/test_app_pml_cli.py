"""`warmdesk pml`: acceptance cases and errors through the command line, in one process, and the exported schema."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from desks import small_desk, write_pages

from app.domain.callers import PML_TENANT
from app.pml import export_schema, module_name, run_prompt
from cache.decoding.sampling import Sampling
from cache.pml.binding import bind
from cache.pml.layout import lay_out
from cache.pml.nodes import NAME
from cache.pml.parser import parse_prompt, parse_schema
from cache.prompt.tokenizer import NAMED, WordTokenizer

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "pml_cases.json").read_text("utf-8"))["cases"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path, warmdesk):
    return lambda *words: warmdesk("pml", *words, "--data-dir", tmp_path / "desk")


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def flags_of(case: dict[str, Any], folder: Path) -> list[str]:
    flags = [write(folder, "schema.pml", case["schema"])]
    if case["prompt"]:
        flags.append(write(folder, "prompt.pml", case["prompt"]))
    flags += ["--tokenizer", case["tokenizer"], "--json"]
    for key in ("template", "max_positions"):
        flags += [f"--{key.replace('_', '-')}", str(case[key])] if key in case else []
    flags += ["--baseline"] if case.get("mode") == "baseline" else []
    for number, step in enumerate(case.get("then", ())):
        if "add" in step:
            flags += ["--add", write(folder, f"more-{number}.pml", step["add"])]
        else:
            flags += ["--remove", step["remove"]]
    return flags


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_acceptance_case(case, run, tmp_path):
    status, out, err = run("check", *flags_of(case, tmp_path))
    document, expected = json.loads(out), case["expect"]
    if expected.get("error"):
        error = document["error"]
        assert status == 1
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert (expected["contains"] or "").lower() in error["message"].lower()
        assert expected["line"] in (None, error["line"])
        assert error["where"] == expected["where"]
        return
    assert (status, err) == (0, "")
    for key, value in expected.items():
        if key == "layout":
            assert sorted(document[key], key=repr) == sorted(value, key=repr)
        else:
            assert document[key] == value, key


def test_a_check_for_people_shows_ids_and_sums(run, tmp_path):
    schema = write(tmp_path, "s.pml", '<schema name="s">one two<module name="a">a1 a2</module></schema>')
    prompt = write(tmp_path, "p.pml", '<prompt schema="s">why so</prompt>')
    status, out, _ = run("check", schema, prompt, "--tokenizer", "words")
    assert status == 0
    assert "2-3  module  a" in out
    assert "schema s: 4 position ids" in out
    assert "from the cache: 0-1 (2 tokens)" in out
    assert "computed:       4-5 (2 tokens)" in out
    assert "the answer begins at 6" in out


def test_a_mistake_names_file_and_line(run, tmp_path):
    schema = write(tmp_path, "s.pml", '<schema name="s">\n<modul name="a"/></schema>')
    status, out, err = run("check", schema, "--tokenizer", "words")
    assert (status, out) == (1, "")
    assert err.startswith(f"error: {schema}:2: <modul>: unknown element")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("check", "nowhere.pml", "--tokenizer", "words"), "nowhere.pml: No such file"),
        (("check", "s.pml", "--tokenizer", "words", "--template", "x"), "must be llama2, chatml, falcon"),
        (("check", "s.pml", "--tokenizer", "/nowhere/model.gguf"), "'/nowhere/model.gguf' does not exist"),
        (("check",), "Missing argument"),
        (("advise", "nowhere.txt", "--tokenizer", "words"), "nowhere.txt: No such file"),
        (("export",), "there is no Warmdesk data in"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments, message, run):
    status, out, err = run(*arguments)
    assert status != 0
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_advice_fits_the_kind_of_file(run, tmp_path):
    files = {
        "schema": ("s.pml", '<schema name="s"><module name="now" cache="false">a b c</module></schema>'),
        "prompt": ("p.pml", '<!-- a --><prompt schema="s">why</prompt>'),
        "text": ("t.txt", "<|im_start|>system\nIt is 2026-11-21.\nAlways the same."),
        "prompts": ("l.jsonl", '"one"\n{"prompt": "two"}\n\n{"messages": [{"role": "user", "content": "x"}]}'),
    }
    for kind, (name, text) in files.items():
        status, out, err = run("advise", write(tmp_path, name, text), "--tokenizer", "words", "--json")
        assert (status, err) == (0, ""), kind
        assert json.loads(out)["kind"] == kind


@pytest.mark.parametrize("name", ["trip", "code", "persona"])
def test_the_sample_schemas_and_prompts_can_be_advised_on(name, run):
    folder = Path(__file__).parent.parent / "data" / "schemas"
    for file in (f"{name}.pml", f"{name}-prompt.pml"):
        status, out, err = run("advise", str(folder / file), "--tokenizer", "words", "--template", "chatml", "--json")
        assert (status, err) == (0, "")
        assert json.loads(out)["tokens"] > 0
    flags = ("--schema", str(folder / f"{name}.pml"), "--tokenizer", "words", "--template", "chatml", "--json")
    bound = json.loads(run("advise", str(folder / f"{name}-prompt.pml"), *flags)[1])
    assert 0 < bound["reusable"] < bound["tokens"]


def test_advice_on_a_prompt_with_and_without_its_schema(run, tmp_path):
    schema = write(tmp_path, "s.pml", '<schema name="s">r1 r2<module name="a">a1</module></schema>')
    prompt = write(tmp_path, "p.pml", '<prompt schema="s"><a/>why so</prompt>')
    words = ("--tokenizer", "words")
    assert "new text and arguments: 2 tokens, computed in every request" in run("advise", prompt, *words)[1]
    assert "3 of 5 tokens can be reused" in run("advise", prompt, "--schema", schema, *words)[1]
    without = json.loads(run("advise", prompt, *words, "--json")[1])
    found = json.loads(run("advise", prompt, "--schema", schema, *words, "--json")[1])
    assert (without["tokens"], without["reusable"], without["schema"]) == (2, 0, None)
    assert (found["tokens"], found["reusable"], found["schema"]) == (5, 3, schema)
    status, _, err = run("advise", schema, "--schema", schema, *words)
    assert (status != 0, "--schema is for a PML prompt" in err) == (True, True)
    wrong = write(tmp_path, "w.pml", '<prompt schema="s">\n<b/></prompt>')
    status, _, err = run("advise", wrong, "--schema", schema, *words)
    assert (status, err.startswith(f"error: {wrong}:2: <b>: no such module")) == (1, True)


def test_lines_of_prompts_end_where_json_lines_end(run, tmp_path):
    file = write(tmp_path, "l.jsonl", '"one\u2028two"\n"three\u0085four"\n' + "<!--" * 10_000 + "\n")
    status, _, err = run("advise", file, "--tokenizer", "words")
    assert (status, "line 3 is not a prompt: each line is" in err) == (1, True)
    for beginning in ("<!--" * 50_000, "<!-- -->\n" * 30_000):
        file = write(tmp_path, "t.txt", beginning)
        assert run("advise", file, "--tokenizer", "words")[0] == 0


def test_the_knowledge_base_is_a_schema_as_long_as_its_longest_passages(tmp_path, pages):
    (pages / "odd.txt").write_text("Odd\n\nA <module name='x'/> & \x0b more </schema>\n")
    with small_desk(tmp_path / "desk", pages=pages) as desk:
        text, documents, passages = export_schema(desk.library, "Be kind & brief.", 2)
    assert (documents, passages) == (5, 5)
    layout = lay_out(parse_schema(text), WordTokenizer(), roles=NAMED["chatml"])
    assert list(layout.root.children) == ["slot-1", "slot-2"]
    slot = layout.root.children["slot-1"]
    assert set(slot.children) == {"returns.md", "gift-cards.md", "shipping.html", "stores.txt", "odd.txt"}
    assert slot.end - slot.start == max(child.end - child.start for child in slot.children.values())
    odd = slot.children["odd.txt"].children["p1"]
    assert "<module name='x'/>" in "".join(piece.text for piece in odd.node.children if hasattr(piece, "text"))
    prompt = '<prompt schema="desk"><slot-1><returns.md><p1/></returns.md></slot-1><user>Why?</user></prompt>'
    assert bind(parse_prompt(prompt), layout).plan.num_tokens > 5


def test_names_are_names_and_differ():
    taken = {"module"}
    names = [module_name(path, taken) for path in ("/a/1 page.md", "b/1 page.md", "x/module", "c\\d é.md", "/", "--")]
    assert names == ["_1-page.md", "_1-page.md-2", "module-2", "d-é.md", "document", "_--"]
    assert all(NAME.fullmatch(name) for name in names)


def test_a_prompt_runs_from_files_and_finds_its_modules_again(tmp_path):
    schema, prompt = tmp_path / "s.pml", tmp_path / "p.pml"
    schema.write_text('<schema name="s">You help.<module name="a">Gift cards stay.</module></schema>')
    prompt.write_text('<prompt schema="s"><a/>Why?</prompt>')
    with small_desk(tmp_path / "desk") as desk:
        first = run_prompt(desk.engine, schema, prompt, Sampling(max_tokens=4), "on")
        second = run_prompt(desk.engine, schema, prompt, Sampling(max_tokens=4), "on")
        baseline = run_prompt(desk.engine, schema, prompt, Sampling(max_tokens=4), "off")
    assert first["usage"]["computed_tokens"] == first["usage"]["prompt_tokens"] == len("You help.Gift cards stay.Why?")
    assert second["usage"]["prompt_tokens_details"]["module"] == len("You help.Gift cards stay.")
    assert baseline["usage"]["computed_tokens"] == first["usage"]["prompt_tokens"]
    assert first["tokens"] == second["tokens"]
    assert [module["name"] for module in second["modules"]] == ["s", "s/a"]
    assert {module["source"] for module in second["modules"]} == {"device"}


def test_forgetting_a_document_drops_what_was_encoded_of_it_through_pml(tmp_path):
    schema, prompt = tmp_path / "kb.pml", tmp_path / "p.pml"
    with small_desk(tmp_path / "desk", pages=write_pages(tmp_path / "pages")) as desk:
        before = len(desk.overview().modules)
        schema.write_text(
            '<schema name="s">Gift cards cannot be returned. <module name="a">They stay.</module></schema>'
        )
        prompt.write_text('<prompt schema="s"><a/>Why?</prompt>')
        run_prompt(desk.engine, schema, prompt, Sampling(max_tokens=2), "on")
        desk.engine.store.flush()
        assert len(desk.engine.call(lambda store: store.keys_of(PML_TENANT))) == 2
        assert len(desk.overview().modules) == before, "they are no passages"
        desk.forget("gift-cards.md")
        assert desk.engine.call(lambda store: store.keys_of(PML_TENANT)) == frozenset()
        assert len(desk.overview().modules) == before - 1
