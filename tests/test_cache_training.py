"""Examples are what a request is at run time; an adapter trained on them is kept, resumed and merged."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny import oracle_logits, stock

from cache.errors import ModelError
from cache.memory.keys import adapter_fingerprint
from cache.model.loading import keep_base, merge_adapter
from cache.prompt.plan import Plan, Segment, Span
from cache.training.examples import TrainingExample, TrainingQuery, pack
from cache.training.trainer import AdapterTraining, Schedule, TrainingProgress, divergence

PREFIX = tuple(b"You answer. ")
MODULES = (tuple(b"Returns take 30 days."), tuple(b"Gift cards stay."), tuple(b"Shipping is free."))
QUERIES = (
    TrainingQuery(question=tuple(b"How long?"), answer=tuple(b" 30 days")),
    TrainingQuery(question=tuple(b"And cards, may they be returned?"), answer=tuple(b"No"), refused=True),
)
LEFT_CONTEXTS = (tuple(b"Cards stay."), (), tuple(b"Returns take time, they do."))
EXAMPLE = TrainingExample(prefix=PREFIX, modules=MODULES, left_contexts=LEFT_CONTEXTS, gaps=(0, 7, 0), queries=QUERIES)
SCHEDULE = Schedule(steps=6, warmup=2, evaluate_every=3, learning_rate=5e-3)


def training(folder: Path, schedule: Schedule = SCHEDULE, layers: int = 1, subject: str = "tiny") -> AdapterTraining:
    """layers: with one, modules are the same whether they are encoded alone or not."""

    def example_at(step: int) -> TrainingExample:
        return replace(EXAMPLE, gaps=(step % 3, 0, 1))

    return AdapterTraining(stock(layers=layers), example_at, [EXAMPLE], schedule, folder, subject=subject)


@pytest.mark.parametrize("left_contexts", [LEFT_CONTEXTS, (LEFT_CONTEXTS[0], (), LEFT_CONTEXTS[0])])
def test_a_query_sees_what_a_request_sees(left_contexts, tmp_path):
    system = Segment(name="s", tokens=PREFIX)
    logits = training(tmp_path, layers=2)._model.logits(replace(EXAMPLE, left_contexts=left_contexts), modular=True)
    row = -1
    for query in QUERIES:
        spans, at = [Span(start=0, tokens=PREFIX, segment=system)], len(PREFIX)
        for module, left_context, gap in zip(MODULES, left_contexts, EXAMPLE.gaps, strict=True):
            segment = Segment(
                name="m", tokens=module, start=len(PREFIX) + len(left_context), prefix=system, left_context=left_context
            )
            spans.append(Span(start=at + gap, tokens=module, segment=segment))
            at = spans[-1].end
        spans.append(Span(start=at, tokens=(*query.question, *query.answer[:-1])))
        row += len(query.answer)
        expected = oracle_logits(stock(layers=2), Plan(spans=tuple(spans)))
        assert (logits[row] - expected).abs().max() < 1e-4


def test_with_full_attention_a_query_is_an_ordinary_prompt(tmp_path):
    hf = stock(layers=2)
    example = replace(EXAMPLE, gaps=(0, 0, 0), queries=QUERIES[:1])
    one = AdapterTraining(stock(layers=2), lambda step: example, [example], SCHEDULE, tmp_path, subject="tiny")
    with torch.no_grad():
        logits = one._model.logits(example, modular=False)
        tokens = [*PREFIX, *(t for module in MODULES for t in module), *QUERIES[0].question, *QUERIES[0].answer[:-1]]
        expected = hf(input_ids=torch.tensor([tokens])).logits[0, -len(QUERIES[0].answer) :]
    assert (logits - expected).abs().max() < 1e-4


def test_a_left_context_that_passages_share_is_read_once():
    shared, apart = (
        replace(EXAMPLE, left_contexts=left_contexts)
        for left_contexts in ((LEFT_CONTEXTS[0],) * 3, (LEFT_CONTEXTS[0], LEFT_CONTEXTS[0][1:], LEFT_CONTEXTS[2]))
    )
    without = pack(EXAMPLE, modular=False).tokens.shape[1]
    assert pack(shared, modular=True).tokens.shape[1] == without + len(LEFT_CONTEXTS[0])
    assert pack(apart, modular=True).tokens.shape[1] == without + 2 * len(LEFT_CONTEXTS[0]) - 1 + len(LEFT_CONTEXTS[2])


def expected_loss(said: torch.Tensor) -> float:
    """Of all tokens of the answers alike, and twice of whether a query begins as the second does, which refuses."""
    labels = [token for query in QUERIES for token in query.answer]
    tokens = -said[range(len(labels)), labels]
    first, second = said.exp()[[0, len(QUERIES[0].answer)], QUERIES[1].answer[0]]
    return (tokens.mean() - 2 * ((1 - first).log() + second.log()) / 2).item()


@pytest.mark.parametrize("objective", ["answers", "distil"])
def test_training_lowers_the_loss_and_keeps_the_adapter(objective, tmp_path):
    seen: list[TrainingProgress] = []
    one = training(tmp_path, replace(SCHEDULE, steps=15, objective=objective), layers=2)
    modular, full = (one._model.logits(EXAMPLE, modular=modular).log_softmax(-1) for modular in (True, False))
    if objective == "answers":
        before = (expected_loss(modular) + expected_loss(full)) / 2
    else:  # full attention is where it is held to
        before = ((full - modular) * full.exp()).sum(-1).mean().item()
    end = one.run(seen.append)
    assert end.step == 15
    assert one.state.questions == 60, "two examples a step, two questions each"
    assert one.state.before == pytest.approx(before, rel=1e-4)
    assert one.state.best < before * 0.9
    assert {"adapter_config.json", "adapter_model.safetensors", "checkpoint.safetensors"} <= {
        path.name for path in tmp_path.iterdir()
    }


def parameters(training: AdapterTraining) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in training._parameters]


@pytest.mark.parametrize("objective", ["answers", "distil"])
def test_examples_of_a_step_count_alike(objective, tmp_path, monkeypatch):
    moved: list[list[torch.Tensor]] = []

    def note(parameters: list[torch.nn.Parameter], most: float) -> None:
        moved.append([parameter.grad.clone() for parameter in parameters if parameter.grad is not None])

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", note)
    pair = [EXAMPLE, replace(EXAMPLE, modules=MODULES[::-1], queries=QUERIES[:1])]
    for number, examples in enumerate((pair, pair[:1], pair[1:])):
        schedule = replace(SCHEDULE, steps=1, objective=objective, modular_share=1.0, batch_size=len(examples))
        folder = tmp_path / str(number)
        AdapterTraining(stock(layers=2), examples.__getitem__, [EXAMPLE], schedule, folder, subject="tiny").run(
            lambda progress: None
        )
    assert max(gradient.abs().max() for gradient in moved[0]) > 1e-4
    for both, first, second in zip(*moved, strict=True):
        assert torch.allclose(both, (first + second) / 2, atol=1e-6)


def test_full_attention_is_held_to_the_model_without_the_adapter(tmp_path):
    moved: list[float] = []
    for weight in (0.0, 10.0):
        schedule = replace(SCHEDULE, steps=8, objective="distil", anchor_weight=weight)
        one = training(tmp_path / str(weight), schedule, layers=2)
        before = one._model.logits(EXAMPLE, modular=False)
        one.run(lambda progress: None)
        moved.append(divergence(before, one._model.logits(EXAMPLE, modular=False)).item())
    assert 0 < 3 * moved[1] < moved[0]


def test_how_far_full_attention_moved_is_told_apart(tmp_path):
    schedule = replace(SCHEDULE, steps=8, evaluate_every=8, objective="distil", learning_rate=1e-3)
    one = training(tmp_path, schedule, layers=2)
    before = one._model.logits(EXAMPLE, modular=False)
    one.run(lambda progress: None)
    assert one.state.best < (one.state.before or 0), "the last one is kept"
    full, modular = (one._model.logits(EXAMPLE, modular=modular) for modular in (False, True))
    moved = divergence(before, full).item()
    assert one.state.moved == pytest.approx(moved, rel=1e-3)
    assert one.state.held_out == pytest.approx(
        divergence(full, modular).item() + one.schedule.anchor_weight * moved, rel=1e-3
    )


def test_the_optimizer_keeps_what_the_model_rounds(tmp_path):
    hf = stock(dtype=torch.bfloat16, layers=1)
    one = AdapterTraining(hf, lambda number: EXAMPLE, [EXAMPLE], SCHEDULE, tmp_path, subject="tiny")
    one.run(lambda progress: None)
    rounded = [parameter.bfloat16() for parameter in one._parameters]
    assert all(torch.equal(weight, like) for weight, like in zip(one._weights, rounded, strict=True))
    assert any(not torch.equal(p, like.float()) for p, like in zip(one._parameters, rounded, strict=True))


def test_a_training_ends_after_so_many_minutes(tmp_path, monkeypatch):
    clock = count(step=5)
    monkeypatch.setattr("cache.training.trainer.time.perf_counter", lambda: float(next(clock)))
    schedule = replace(SCHEDULE, steps=None, minutes=1.0, evaluate_every=100)
    seen: list[TrainingProgress] = []
    end = training(tmp_path, schedule).run(seen.append)
    assert 2 < end.step < 12
    assert [one.done for one in seen] == sorted(one.done for one in seen)
    assert (seen[0].done, end.done) == (0, 1)
    assert end.held_out != seen[0].held_out, "evaluated once more at its end"
    resumed = training(tmp_path, schedule)
    assert resumed.run(seen.append).step == end.step, "its time is over"
    longer = training(tmp_path, replace(schedule, minutes=2.0))
    assert end.step < longer.run(seen.append).step < 2.5 * end.step, "its minute counts"


@pytest.mark.parametrize(
    ("steps", "minutes", "done"), [(10, None, 0.5), (None, 2.0, 0.25), (10, 2.0, 0.5), (100, 2.0, 0.25), (4, 9.0, 1.0)]
)
def test_what_comes_first_ends_a_training(steps, minutes, done):
    assert Schedule(steps=steps, minutes=minutes).done(5, 30.0) == done


def test_an_interrupted_training_goes_on_as_if_it_had_not_been(tmp_path):
    straight = training(tmp_path / "a")
    straight.run(lambda progress: None)

    def stop_at(step: int) -> Callable[[TrainingProgress], None]:
        def report(progress: TrainingProgress) -> None:
            if progress.step == step:
                raise KeyboardInterrupt

        return report

    for step, kept in ((1, 0), (4, 3)):
        with pytest.raises(KeyboardInterrupt):
            training(tmp_path / "b").run(stop_at(step))
        resumed = training(tmp_path / "b")
        assert resumed.state.step == kept
    resumed.run(lambda progress: None)
    for one, other in zip(parameters(straight), parameters(resumed), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


def test_what_is_not_this_training_does_not_go_on_from_its_checkpoint(tmp_path):
    training(tmp_path).run(lambda progress: None)
    with pytest.raises(ModelError, match="another schedule"):
        training(tmp_path, replace(SCHEDULE, seed=7))
    with pytest.raises(ModelError, match="of another model or adapter, or with other documents: use another folder"):
        training(tmp_path, subject="other")
    longer = training(tmp_path, replace(SCHEDULE, steps=9))
    assert (longer.state.step, longer.run(lambda progress: None).step) == (6, 9), "it may be made longer"
    file = tmp_path / "checkpoint.safetensors"
    with safe_open(file, framework="pt") as kept:
        metadata = kept.metadata()
    schedule = json.loads(metadata["schedule"]) | {"of_another_version": 0.5}
    save_file(load_file(file), file, metadata | {"schedule": json.dumps(schedule)})
    with pytest.raises(ModelError, match="another schedule"):
        training(tmp_path)
    file.unlink()
    with pytest.raises(ModelError, match="contains an adapter without a checkpoint: use another folder"):
        training(tmp_path)


def test_training_ends_when_the_held_out_loss_no_longer_falls(tmp_path):
    one = training(tmp_path, replace(SCHEDULE, steps=20, patience=2, learning_rate=0.0))
    assert one.run(lambda progress: None).step == 6
    assert one.state.best == one.state.before


def test_training_that_does_harm_leaves_an_adapter_that_changes_nothing(tmp_path):
    schedule = replace(SCHEDULE, steps=60, patience=2, learning_rate=1.0, objective="distil")
    one = training(tmp_path, schedule, layers=2)
    one.run(lambda progress: None)
    assert one.state.best == one.state.before
    assert one.state.held_out > one.state.best
    merged, _ = merge_adapter(stock(layers=2), tmp_path)
    for name, parameter in stock(layers=2).named_parameters():
        assert torch.allclose(merged.get_parameter(name), parameter, atol=1e-6)


def test_a_merged_adapter_answers_as_the_trained_model(tmp_path):
    one = training(tmp_path, replace(SCHEDULE, steps=20, evaluate_every=20, modular_share=1.0))
    one.run(lambda progress: None)
    merged, fingerprint = merge_adapter(stock(layers=1), tmp_path)
    example = replace(EXAMPLE, gaps=(0, 0, 0), queries=QUERIES[:1])
    packed = pack(example, modular=False)
    with torch.no_grad():
        trained = one._model.logits(example, modular=False)[-1]
        logits = merged(input_ids=packed.tokens, position_ids=packed.positions, use_cache=False).logits[0, -1]
        plain = stock(layers=1)(input_ids=packed.tokens).logits[0, -1]
    assert fingerprint == adapter_fingerprint(tmp_path)
    assert (trained - plain).abs().max() > 0.1
    assert (trained - logits).abs().max() < 0.1, "half precision on disk"


def test_an_adapter_on_top_of_another_brings_it_along(tmp_path):
    for name, seed in (("first", 0), ("second", 1)):
        training(tmp_path / name, replace(SCHEDULE, seed=seed)).run(lambda progress: None)
    plain, fingerprint = merge_adapter(stock(layers=1), tmp_path / "second")
    expected, _ = merge_adapter(merge_adapter(stock(layers=1), tmp_path / "first")[0], tmp_path / "second")
    keep_base(tmp_path / "second", tmp_path / "first")
    both, other = merge_adapter(stock(layers=1), tmp_path / "second")
    for name, weights in both.state_dict().items():
        assert torch.equal(weights, expected.state_dict()[name]), name
    assert other != fingerprint
    keep_base(tmp_path / "third", tmp_path / "second")
    assert (tmp_path / "third" / "base" / "base").is_dir(), "and those below it"
    keep_base(tmp_path / "third", tmp_path / "first")
    assert not (tmp_path / "third" / "base" / "base").exists()
    assert any(not torch.equal(w, plain.state_dict()[name]) for name, w in both.state_dict().items())


def test_an_adapter_is_merged_as_by_peft_and_without_it(tmp_path, monkeypatch):
    """Was wrong once: peft took three of the engine's 15 seconds at each start."""
    training(tmp_path).run(lambda progress: None)
    by_peft = PeftModel.from_pretrained(stock(layers=1), tmp_path).merge_and_unload().state_dict()
    monkeypatch.setitem(sys.modules, "peft", None)
    merged = merge_adapter(stock(layers=1), tmp_path)[0].state_dict()
    assert merged.keys() == by_peft.keys()
    assert all(torch.equal(weight, by_peft[name]) for name, weight in merged.items())
    assert any(not torch.equal(weight, merged[name]) for name, weight in stock(layers=1).state_dict().items())
    config = tmp_path / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_rslora": True}))
    with pytest.raises(ImportError, match="peft"):
        merge_adapter(stock(layers=1), tmp_path)


@pytest.mark.parametrize("changed", ["adapter_config.json", "adapter_model.safetensors", "base/adapter_config.json"])
def test_every_file_of_an_adapter_is_part_of_its_fingerprint(tmp_path, changed):
    """How strongly weights count stands in the configuration."""
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        for folder in (tmp_path, tmp_path / "base"):
            folder.mkdir(exist_ok=True)
            (folder / name).write_text("8")
    before = adapter_fingerprint(tmp_path)
    (tmp_path / changed).write_text("64")
    assert adapter_fingerprint(tmp_path) != before


def test_what_is_no_adapter_is_refused_in_one_line(tmp_path):
    with pytest.raises(ModelError, match="there is no adapter in"):
        merge_adapter(stock(layers=1), tmp_path)
    one = training(tmp_path)
    one.run(lambda progress: None)
    with pytest.raises(ModelError, match="does not fit the model") as caught:
        merge_adapter(stock("gpt_neox"), tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ModelError, match="does not fit the model"):
        merge_adapter(stock(layers=1), tmp_path)
    with pytest.raises(ModelError, match=r"cannot encode passages separately.*sliding window"):
        AdapterTraining(stock("gemma2"), lambda step: EXAMPLE, [EXAMPLE], SCHEDULE, tmp_path / "x", subject="tiny")
    with pytest.raises(ModelError, match="has none of the layers"):
        AdapterTraining(stock("gpt_neox"), lambda step: EXAMPLE, [EXAMPLE], SCHEDULE, tmp_path / "x", subject="tiny")
