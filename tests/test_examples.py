"""The examples run as they are, and print what they promise: counts of tokens, never times. Also the PML in data/."""

import importlib
import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from cache.pml.binding import bind
from cache.pml.layout import lay_out
from cache.pml.parser import parse_prompt, parse_schema
from cache.prompt.tokenizer import NAMED, WordTokenizer

Run = Callable[[str], str]
ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
SCHEMAS = ROOT / "data" / "schemas"
LOOKED_AT = {"trip_planner", "code_generation", "persona", "employee_table"}
OTHERS = sorted({path.stem for path in EXAMPLES.glob("*.py")} - LOOKED_AT - {"shared"})


@pytest.fixture(scope="module")
def small_model(bundled_model, tmp_path_factory):
    """The bundled model with its tokenizer and random weights of a few small layers: it counts the same tokens."""
    folder = tmp_path_factory.mktemp("small") / "model"
    shutil.copytree(bundled_model, folder)
    config = AutoConfig.from_pretrained(bundled_model)
    config.update({"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2})
    config.update({"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2})
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


@pytest.fixture
def run(small_model, monkeypatch, capsys):
    monkeypatch.setenv("WARMDESK_MODEL", str(small_model))
    monkeypatch.setenv("WARMDESK_DATA_DIR", str(small_model.parent))
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run_main(name: str) -> str:
        main = importlib.import_module(name).main
        main(**({"max_tokens": 4} if "max_tokens" in inspect.signature(main).parameters else {}))
        return capsys.readouterr().out

    return run_main


def counts(output: str) -> list[tuple[int, int]]:
    found = re.findall(r"(\d+) of (\d+) prompt tokens computed", output)
    return [(int(computed), int(prompt)) for computed, prompt in found]


@pytest.mark.bundled
def test_a_trip_computes_its_arguments_and_its_question(run):
    output = run("trip_planner")
    (lisbon, _), (vienna, same), (everything, prompt) = counts(output)
    assert max(lisbon, vienna) < 50
    assert everything == prompt == same
    assert re.search(r"^17 modules encoded", output)


@pytest.mark.bundled
def test_files_are_computed_when_they_are_first_imported(run):
    (first, prompt), (second, _), (third, _) = counts(run("code_generation"))
    assert first == prompt
    assert second < 50 < third < 300


@pytest.mark.bundled
def test_a_learner_made_of_known_traits_costs_the_question(run):
    (first, prompt), (second, _), (third, _) = counts(run("persona"))
    assert first == prompt
    assert third < 30 < second < first


@pytest.mark.bundled
def test_the_second_question_about_the_table_is_exact_and_costs_itself(run):
    output = run("employee_table")
    (first, prompt), (second, _) = counts(output)
    assert first == prompt > 1200
    assert second < 30
    assert output.count("; exact") == 2


@pytest.mark.bundled
@pytest.mark.parametrize("name", OTHERS)
def test_the_other_examples_run(run, name):
    assert run(name).strip()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_is_short_and_says_what_it_shows(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert len(text.splitlines()) < 60


@pytest.mark.parametrize("prompt", sorted(SCHEMAS.glob("*-prompt.pml")), ids=lambda path: path.stem)
def test_a_sample_prompt_fits_its_schema(prompt):
    schema = prompt.with_name(prompt.name.replace("-prompt", ""))
    parsed = parse_schema(schema.read_bytes(), folder=SCHEMAS)
    layout = lay_out(parsed, WordTokenizer(), roles=NAMED["chatml"], max_positions=8192)
    bound = bind(parse_prompt(prompt.read_bytes()), layout)
    assert bound.plan.num_tokens > len(bound.text)


def test_the_sample_program_runs():
    """What the code schema takes as modules is a working game."""
    game = [sys.executable, "-B", str(SCHEMAS / "harbour" / "game.py")]
    output = subprocess.run(game, capture_output=True, text=True, check=True).stdout
    assert output.endswith("wins\n")
