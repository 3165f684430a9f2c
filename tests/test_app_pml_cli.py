"""`warmdesk pml`: the acceptance cases and the errors through the command line, in one process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "pml_cases.json").read_text("utf-8"))["cases"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, warmdesk: Callable[..., tuple[int, str, str]]) -> Run:
    """Run `warmdesk pml ARGS`: status, stdout, stderr."""
    return lambda *words: warmdesk("pml", *words, "--data-dir", tmp_path / "desk")


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def flags_of(case: dict[str, Any], folder: Path) -> list[str]:
    """A case as arguments of `pml check`."""
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
def test_acceptance_case(case: dict[str, Any], run: Run, tmp_path: Path) -> None:
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


def test_a_check_for_people_shows_ids_and_sums(run: Run, tmp_path: Path) -> None:
    schema = write(tmp_path, "s.pml", '<schema name="s">one two<module name="a">a1 a2</module></schema>')
    prompt = write(tmp_path, "p.pml", '<prompt schema="s">why so</prompt>')
    status, out, _ = run("check", schema, prompt, "--tokenizer", "words")
    assert status == 0
    assert "2-3  module  a" in out
    assert "schema s: 4 position ids" in out
    assert "from the cache: 0-1 (2 tokens)" in out
    assert "computed:       4-5 (2 tokens)" in out
    assert "the answer begins at 6" in out


def test_a_mistake_names_file_and_line(run: Run, tmp_path: Path) -> None:
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
def test_what_cannot_be_done_is_one_line(arguments: tuple[str, ...], message: str, run: Run) -> None:
    status, out, err = run(*arguments)
    assert status != 0
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_advice_fits_the_kind_of_file(run: Run, tmp_path: Path) -> None:
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


def test_advice_for_people(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, "t.txt", "It is 2026-11-21.\nAlways the same.")
    _, out, _ = run("advise", file, "--tokenizer", "words")
    assert "line 1: a date ('2026-11-21') probably changes\n    4 tokens; move it after" in out
    assert "2 of 6 tokens can be reused" in out


def test_a_bad_line_of_prompts_is_named(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, "l.jsonl", '"one"\n{"text": "two"}')
    status, _, err = run("advise", file, "--tokenizer", "words")
    assert status == 1
    assert "line 2: each line is" in err


@pytest.mark.parametrize("name", ["trip", "code", "persona"])
def test_the_sample_schemas_and_prompts_can_be_advised_on(name: str, run: Run) -> None:
    folder = Path(__file__).parent.parent / "data" / "schemas"
    for file in (f"{name}.pml", f"{name}-prompt.pml"):
        status, out, err = run("advise", str(folder / file), "--tokenizer", "words", "--template", "chatml", "--json")
        assert (status, err) == (0, "")
        assert json.loads(out)["tokens"] > 0
    flags = ("--schema", str(folder / f"{name}.pml"), "--tokenizer", "words", "--template", "chatml", "--json")
    bound = json.loads(run("advise", str(folder / f"{name}-prompt.pml"), *flags)[1])
    assert 0 < bound["reusable"] < bound["tokens"]


def test_advice_on_a_prompt_with_and_without_its_schema(run: Run, tmp_path: Path) -> None:
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


def test_lines_of_prompts_end_where_json_lines_end(run: Run, tmp_path: Path) -> None:
    file = write(tmp_path, "l.jsonl", '"one\u2028two"\n"three\u0085four"\n' + "<!--" * 10_000 + "\n")
    status, _, err = run("advise", file, "--tokenizer", "words")
    assert (status, "line 3: each line is" in err) == (1, True)
    for beginning in ("<!--" * 50_000, "<!-- -->\n" * 30_000):
        file = write(tmp_path, "t.txt", beginning)
        assert run("advise", file, "--tokenizer", "words")[0] == 0
