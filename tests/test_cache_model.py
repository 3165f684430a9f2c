"""Model families: what each can do, why modules of some cannot be placed, and that these run exactly all the same."""

from typing import Any

import pytest
import torch
from recording import Recorder, answer, running
from tiny import (
    CONFIGS,
    LEARNED_POSITIONS,
    SHORT,
    UNPLACEABLE,
    WINDOW,
    ByteTokenizer,
    build,
    make_segment,
    oracle_logits,
    stock,
)
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    MistralConfig,
    OPTConfig,
    Qwen2Config,
)

from cache.decoding.sampling import Sampling
from cache.engine import scheduler
from cache.engine.request import Request
from cache.errors import ModelError, PromptError
from cache.memory.disk import DiskTier
from cache.model import language_model
from cache.model.info import find_position_scheme, usable_positions
from cache.model.language_model import LanguageModel
from cache.prompt.parts import Text
from cache.prompt.plan import Plan, Segment, Span

TOLERANCE = 1e-4
ALIBI = ["bloom", "mpt"]
TEXT = (
    "A window shows the last words of a long text and nothing else. What came before is gone, unless a layer without "
    "a window, or the layer below, has carried it on. So the same answer needs the same words in the same places."
)
MEMORY = 16 << 20


def computed(*runs: bytes | tuple[int, ...]) -> Plan:
    return Plan(spans=(Span(start=0, tokens=tuple(token for run in runs for token in run)),))


def full_forward(hf: Any, tokens: tuple[int, ...]) -> torch.Tensor:
    """Logits `[length, vocabulary]` of transformers' own model, untouched, in one forward pass."""
    with torch.no_grad():
        logits: torch.Tensor = hf(input_ids=torch.tensor([tokens])).logits[0]
    return logits.float()


@pytest.mark.parametrize("family", CONFIGS)
def test_a_plain_prompt_equals_transformers_own_forward(family):
    """The oracle gives ALiBi models a bias of its own; here nothing of theirs is replaced."""
    model = build(family)
    recorder = Recorder(model)
    prompt = TEXT[:120].encode()
    with running(model) as engine:
        completion = answer(engine, computed(prompt), 5)
    assert completion.tokens is not None
    expected = full_forward(stock(family), (*prompt, *completion.tokens))[len(prompt) - 1 :]
    assert len(recorder.logits) >= 4
    for row, logits in enumerate(recorder.logits):
        assert (logits - expected[row]).abs().max() < TOLERANCE


@pytest.mark.parametrize("family", UNPLACEABLE)
def test_models_without_placement_are_exact_beyond_their_window(family, monkeypatch):
    """Prefill in chunks longer and shorter than the window, decode, a second turn and a batch neighbour."""
    rows = {scheduler.PASS_S: 2 * WINDOW + 3, scheduler.DECODING_PASS_S: WINDOW - 5}
    monkeypatch.setattr(scheduler, "rows_within", lambda seconds, _: rows[seconds])
    model = build(family)
    hf = stock(family)
    recorder = Recorder(model)
    first = TEXT.encode()
    assert len(first) > 8 * WINDOW
    with running(model, memory=MEMORY) as engine:
        answered = answer(engine, computed(first), 12, session="s")
        assert answered.tokens is not None
        told = (*first, *answered.tokens)
        for row, logits in enumerate(recorder.logits[: len(answered.tokens)]):
            assert (logits - full_forward(hf, told)[len(first) - 1 + row]).abs().max() < TOLERANCE
        second = (*told, *b" And what then?")
        recorder.logits.clear()
        again = answer(engine, computed(second), session="s")
        assert (recorder.logits[0] - full_forward(hf, second)[-1]).abs().max() < TOLERANCE
        assert again.usage.session == len(told) - 1
        assert again.exact
        neighbours = [computed(first[:90]), computed(second[:-3], b"!"), computed(b"Another text altogether. " * 4)]
        recorder.logits.clear()
        requests = [engine.submit(Request(plan=plan, sampling=Sampling(max_tokens=1))) for plan in neighbours]
        for request in requests:
            assert request.completion.exact
    expected = [full_forward(hf, plan.spans[0].tokens)[-1] for plan in neighbours]
    for wanted in expected:
        assert min((logits - wanted).abs().max() for logits in recorder.logits) < TOLERANCE


@pytest.mark.parametrize("family", UNPLACEABLE)
def test_modules_of_models_without_placement_are_computed_with_the_prompt(family, tmp_path):
    system = make_segment("system", "You answer from the documents, briefly. ")
    document = make_segment("document", "Returns take 30 days from delivery.", system)
    at = len(system.tokens)
    question = Span(start=at + len(document.tokens), tokens=tuple(b"How long do returns take?"))
    plan = Plan(
        spans=(
            Span(start=0, tokens=system.tokens, segment=system),
            Span(start=at, tokens=document.tokens, segment=document),
            question,
        )
    )
    model = build(family)
    recorder = Recorder(model)
    with running(model, memory=MEMORY, disk=DiskTier(tmp_path, 1 << 30)) as engine:
        assert engine.encode([system, document]).result(timeout=60).computed == 0
        assert engine.call(lambda store: store.device.allocator.free_slots == store.device.allocator.capacity)
        first, second = answer(engine, plan), answer(engine, plan)
        bypassed = answer(engine, plan, reuse="prefix")
        assert not engine.call(lambda store: store.device.entries)
    assert not list(tmp_path.iterdir())
    assert [(use.name, use.source, use.miss_reason) for use in first.modules] == [
        ("system", "computed", "placement"),
        ("document", "computed", "placement"),
    ]
    assert {use.miss_reason for use in bypassed.modules} == {"bypassed"}
    assert first.exact
    assert first.usage.computed == plan.num_tokens
    assert (second.usage.prefix, second.usage.computed) == (plan.num_tokens - 1, 1)
    expected = full_forward(stock(family), plan.without_segments().spans[0].tokens)[-1]
    for logits in recorder.logits:
        assert (logits - expected).abs().max() < TOLERANCE


@pytest.mark.parametrize(
    ("family", "reason", "positions"),
    [
        ("mistral-window", f"attention is limited to a sliding window of {WINDOW} tokens", 4096),
        ("qwen2-half-windowed", f"attention is limited to a sliding window of {WINDOW} tokens", 4096),
        ("gemma3", f"attention is limited to a sliding window of {WINDOW} tokens", 4096),
        ("dynamic-rope", "rotary frequencies depend on the length of the prompt (rope type 'dynamic')", 400),
        ("longrope", "rotary frequencies depend on the length of the prompt (rope type 'longrope')", 400),
    ],
)
def test_the_reason_why_modules_cannot_be_placed_is_one_sentence(family, reason, positions):
    info = build(family).info
    assert (info.position_scheme, info.max_positions) == ("none", positions)
    assert find_position_scheme(UNPLACEABLE[family](), family) == ("none", reason)
    assert not info.places_modules
    assert not info.is_position_independent


@pytest.mark.parametrize("family", CONFIGS)
def test_the_other_families_place_modules(family):
    info = build(family).info
    assert info.places_modules
    assert find_position_scheme(CONFIGS[family](), family) == (info.position_scheme, "")
    assert info.is_position_independent == (family not in LEARNED_POSITIONS)
    assert info.max_positions == (2048 if family == "bloom" else 4096)


def test_a_window_as_long_as_the_context_is_none():
    for config in (
        MistralConfig(max_position_embeddings=4096, sliding_window=4096),
        Qwen2Config(use_sliding_window=False, sliding_window=512),
        Qwen2Config(use_sliding_window=True, sliding_window=512, num_hidden_layers=4, max_window_layers=4),
    ):
        assert find_position_scheme(config, "m") == ("rotary", "")
    full = MistralConfig(max_position_embeddings=4097, sliding_window=4096)
    assert find_position_scheme(full, "m")[1] == "attention is limited to a sliding window of 4096 tokens"


def test_different_frequencies_by_layer_are_named():
    assert find_position_scheme(Gemma3TextConfig(sliding_window=1 << 20), "m") == (
        "none",
        "layers differ in their rotary frequencies",
    )
    same = {"rope_type": "default", "rope_theta": 10000.0}
    alike = Gemma3TextConfig(
        sliding_window=1 << 20, rope_parameters={"full_attention": same, "sliding_attention": same}
    )
    assert find_position_scheme(alike, "m") == ("rotary", "")


def test_a_length_dependent_scheme_limits_the_context_to_the_original_length():
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    assert usable_positions(MistralConfig(max_position_embeddings=1234, rope_parameters=rope)) == 1234
    assert usable_positions(UNPLACEABLE["longrope"]()) == 400


def test_unknown_families_and_models_that_see_ahead_are_refused():
    falcon = FalconConfig(vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=4)
    with pytest.raises(
        ModelError, match=r"is of type 'falcon'; supported types are bloom, gemma, .*, opt, phi3, qwen2"
    ):
        find_position_scheme(falcon, "some/falcon")
    with pytest.raises(ModelError, match="'m' lets tokens see later tokens"):
        find_position_scheme(GemmaConfig(use_bidirectional_attention=True), "m")


@pytest.mark.parametrize(
    "config",
    [
        GPT2Config(vocab_size=300, n_embd=48, n_layer=1, n_head=6, n_positions=64),
        OPTConfig(**SHORT | {"max_position_embeddings": 64}, ffn_dim=96, word_embed_proj_dim=48),
    ],
    ids=["gpt2", "opt"],
)
def test_a_prompt_beyond_learned_positions_is_refused_and_the_last_one_works(config):
    torch.manual_seed(0)
    hf = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model = LanguageModel(hf, ByteTokenizer(), name="short", fingerprint="short")
    with running(model, memory=MEMORY) as engine:
        with pytest.raises(PromptError, match="needs 65 positions, the model has 64"):
            engine.arrange([Text(text="x" * 65)])
        with pytest.raises(PromptError, match="the prompt needs 65 positions, the model has 64"):
            answer(engine, computed(b"x" * 65))
        with pytest.raises(PromptError, match="ends beyond the model's 64 positions"):
            engine.encode([make_segment("m", "x" * 65)]).result(timeout=60).raise_failed()
        assert answer(engine, computed(b"x" * 64), 9).usage.completion_tokens == 1
        assert answer(engine, computed(b"x" * 60), 9).usage.completion_tokens <= 5


def with_gap(name: str, text: str, start: int, prefix: Segment | None = None) -> Segment:
    """A segment of a text's bytes that leaves out 40 ids in its middle."""
    tokens = tuple(text.encode())
    return Segment(name=name, tokens=tokens, start=start, gaps=((len(tokens) // 2, 40),), prefix=prefix)


def placed_with_gaps(offset: int) -> Plan:
    """Two modules with gaps, the second behind the first while it is encoded but `offset` ids away in the prompt, and
    shown in two halves with computed tokens in its gap.
    """
    first = with_gap("first", "Returns take 30 days.", 3)
    second = with_gap("second", "Gift cards are not returned.", first.end, first)
    spans = []
    for segment, shift in ((first, 0), (second, offset)):
        half = len(segment.tokens) // 2
        spans.append(Span(start=segment.start + shift, tokens=segment.tokens[:half], segment=segment))
        if segment is second:
            spans.append(Span(start=spans[-1].end + 7, tokens=tuple(b"(in the gap)")))
        spans.append(
            Span(start=segment.position(half) + shift, tokens=segment.tokens[half:], segment=segment, row=half)
        )
    return Plan(spans=(*spans, Span(start=spans[-1].end + 11, tokens=tuple(b"Which cards?"))))


@pytest.mark.parametrize("family", ["llama", *ALIBI])
@pytest.mark.parametrize("offset", [0, 1000])
def test_modules_with_gaps_at_any_offset_and_from_disk(family, offset, tmp_path):
    plan = placed_with_gaps(offset)
    expected = oracle_logits(stock(family), plan)
    rows = []
    for sources in ({"computed"}, {"disk"}):
        model = build(family)
        recorder = Recorder(model)
        with running(model, disk=DiskTier(tmp_path, 1 << 30)) as engine:
            answer(engine, computed(b"x" * 200), reuse="off")
            completion = answer(engine, plan)
        assert {use.source for use in completion.modules} == sources
        assert (recorder.logits[-1] - expected).abs().max() < TOLERANCE
        rows.append(recorder.logits[-1])
    assert torch.equal(*rows)


@pytest.mark.parametrize("family", ALIBI)
def test_an_alibi_module_is_shared_at_different_offsets_in_one_pass(family):
    model = build(family)
    segment = make_segment("returns", "Returns take 30 days from delivery.")
    plans = [
        Plan(
            spans=(
                Span(start=0, tokens=tuple(b"." * before)),
                Span(start=before, tokens=segment.tokens, segment=segment),
                Span(start=before + len(segment.tokens), tokens=tuple(b"How long?")),
            )
        )
        for before in (3, 50, 200)
    ]
    hf = stock(family)
    with running(model) as engine:
        engine.encode([segment]).result(timeout=60)
        recorder = Recorder(model)
        chunks: list[int] = []
        forward = model.forward

        def counting(*args: Any) -> torch.Tensor:
            chunks.append(len(args[0]))
            return forward(*args)

        model.forward = counting  # type: ignore[method-assign]
        requests = [engine.submit(Request(plan=plan, sampling=Sampling(max_tokens=1))) for plan in plans]
        for request in requests:
            assert request.completion.usage.module == len(segment.tokens)
    assert max(chunks) > 1
    for plan in plans:
        expected = oracle_logits(hf, plan)
        assert min((logits - expected).abs().max() for logits in recorder.logits) < TOLERANCE


@pytest.mark.parametrize("family", [*ALIBI, "mistral-window", "gemma2"])
def test_bfloat16_comes_close_to_float32(family):
    """Biases stay float32 beside keys and queries in bfloat16."""
    model = build(family, dtype=torch.bfloat16)
    recorder = Recorder(model)
    prompt = TEXT[:100].encode()
    with running(model, memory=MEMORY) as engine:
        answer(engine, computed(prompt[:60]))
        answer(engine, computed(prompt))
    expected = full_forward(stock(family, dtype=torch.bfloat16).float(), tuple(prompt))
    for logits, row in zip(recorder.logits, (59, 99), strict=True):
        assert (logits - expected[row]).abs().max() < 0.15 * expected[row].abs().max()


def test_modules_of_another_version_of_the_encoder_are_encoded_again(tmp_path, monkeypatch):
    page = make_segment("page", "A page.")
    plan = Plan(spans=(Span(start=0, tokens=page.tokens, segment=page), Span(start=7, tokens=tuple(b" So?"))))
    reasons = []
    for version in ("1", "1", "2"):
        monkeypatch.setattr(language_model, "ENCODER_VERSION", version)
        with running(build(), memory=MEMORY, disk=DiskTier(tmp_path, 1 << 30)) as engine:
            (use,) = answer(engine, plan).modules
            reasons.append((use.source, use.miss_reason))
    assert reasons == [("computed", "never built"), ("disk", None), ("computed", "model or template changed")]
