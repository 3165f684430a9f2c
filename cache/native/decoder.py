"""A model's forward pass as one call of compiled code (`decoder.c`), which is compiled once per CPU and version.

The code reads packed copies of a transformers model's weights. Transformers is the loader, and the reference in tests.
The machine's compiler (`cc`) is used so that the code can use all instructions of this CPU. Without a compiler,
decoding is slower. Out of scope: models that are not built like Llama, and other devices.
"""

import ctypes
import logging
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from cache.attention.forward_pass import PassGivenUp, Rotation, never
from cache.attention.items import Chunk, Item, ScoredChunk, only_scores, plan_arrays, plan_items
from cache.memory.arena import Arena
from cache.native import BLOCK_COLUMNS, BLOCK_ROWS, OUTPUTS
from durable import FLAGS, load_compiled

SOURCE = Path(__file__).with_name("decoder.c")
log = logging.getLogger(__name__)


@cache
def load_library(folder: Path, dtype: torch.dtype) -> ctypes.CDLL | None:
    """Return the compiled code for a dtype of keys and values, stored in `folder`; log a failure and return None."""
    flags = [*FLAGS, *(["-DKV_FLOAT32"] if dtype == torch.float32 else [])]
    return load_compiled(SOURCE, flags, folder, "answers are slower")


FAMILIES = {"llama", "mistral", "qwen2", "qwen3"}
BFLOAT16, PACKED = range(2)
BF16 = 30  # as in repack.h: numbers of bfloat16, in GGUF files
W8 = 6  # as in packed.h: weights of 8 bits
PackedWeights = Literal["model", "int8"]  # weights as in the model, or rounded to 8 bits
LONG_ROWS = 64  # passes with more rows can be stopped; shorter passes end so soon that a check is not worth its time

_Pointer, _Int, _Float = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float
_GivesUp = ctypes.CFUNCTYPE(ctypes.c_int)
NO_MEMORY, GIVEN_UP = 1, 2  # errors of `warmdesk_step`


class _Part(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("weights", "down", "up")),
        *((name, _Int) for name in ("kind", "outputs", "rank")),
    )


class _Linear(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("weights", "bias")),
        *((name, _Int) for name in ("kind", "inputs", "outputs", "is_gelu")),
        ("parts", _Part * 3),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Linear) for name in ("qkv", "out", "gate_up", "down")),
        *((name, _Pointer) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm")),
        *((name, _Pointer) for name in ("attention_post_norm", "mlp_post_norm")),
        ("is_local", _Int),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, _Int) for name in ("num_layers", "hidden", "heads", "kv_heads", "head_dim", "rotary")),
        *((name, _Int) for name in ("embedding_type", "has_adapter", "window")),
        *((name, _Float) for name in ("epsilon", "scale", "embedding_scale", "cap")),
        *((name, _Pointer) for name in ("layers", "embedding", "final_norm")),
        ("head", _Linear),
    )


class _Item(ctypes.Structure):
    _fields_ = tuple((name, _Int) for name in ("start", "length", "first_reader", "readers", "first_hidden", "hidden"))


class _ScoredRun(ctypes.Structure):
    _fields_ = (("item", _Item), ("stride", _Int), ("squares", _Pointer))


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, _Int) for name in ("rows", "num_items", "num_readers", "num_outputs")),
        *((name, _Int) for name in ("num_scored", "first_scored", "last_scored", "num_layers")),
        *((name, _Pointer) for name in ("tokens", "slots", "outputs", "cos", "sin", "local_cos", "local_sin")),
        *((name, _Pointer) for name in ("positions", "key_positions", "turn_cos", "turn_sin")),
        *((name, _Pointer) for name in ("items", "readers", "hidden", "scored", "scored_readers", "scored_hidden")),
        *((name, _Pointer) for name in ("keys", "values", "logits")),
        ("threads", _Int),
        ("gives_up", _GivesUp),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """A step and its logits `[outputs, vocabulary]`. slots: also of later steps. kept: other data that it points to."""

    step: _Step
    logits: Tensor
    slots: "array[int]"
    items: "ctypes.Array[_Item]"
    kept: tuple[Any, ...]


class _Decoding(ctypes.Structure):
    _fields_ = (
        *((name, _Int) for name in ("steps", "num_ends")),
        *((name, _Pointer) for name in ("ends", "grown", "items", "readers", "chosen")),
        ("is_late", _GivesUp),
    )


@dataclass(frozen=True, slots=True)
class Matrix:
    """Weights of a linear layer: a tensor `[outputs, inputs]` (kind 0), or blocks of a kind of packed.h. adapter: two
    matrices `[rank, inputs]` and `[outputs, rank]`. Their product is added to packed weights.
    """

    weights: Tensor
    outputs: int
    inputs: int
    kind: int = 0
    bias: Tensor | None = None
    adapter: tuple[Tensor, Tensor] | None = None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of a layer. Matrices in one sequence are computed together. norms: by their names in `_Layer`."""

    qkv: Sequence[Matrix]
    out: Matrix
    gate_up: Sequence[Matrix]
    down: Matrix
    norms: dict[str, Tensor]
    is_local: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """Weights and settings of a decoder. embedding: rows in a GGUF type, unchanged. attention_factor: multiplies
    cosines and sines (YaRN). layers: each is packed before the next is read. For Gemma: is_gelu, caps of scores and
    logits (0: none), and for local layers a window in position ids and their frequencies.
    """

    heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    frequencies: Tensor
    attention_factor: float
    embedding: "np.ndarray[Any, Any]"
    embedding_type: int
    num_layers: int
    layers: Iterable[LayerWeights]
    final_norm: Tensor
    head: Matrix
    scale: float
    is_gelu: bool = False
    embedding_scale: float = 1.0
    score_cap: float = 0.0
    logit_cap: float = 0.0
    window: int = 0
    local_frequencies: Tensor | None = None


class NativeDecoder:
    """Holds the packed weights of a model, and runs passes with them."""

    def __init__(self, weights: DecoderWeights, library: ctypes.CDLL) -> None:
        self._library = library
        self._frequencies, self._factor = weights.frequencies, weights.attention_factor
        self._lanes: int = library.warmdesk_lanes()
        self._local, self._logit_cap, self._is_gelu = weights.local_frequencies, weights.logit_cap, weights.is_gelu
        self._turned_back = lru_cache(64)(partial(turned_back, weights.frequencies.double()))
        self._has_adapter = False
        self._kept: list[Any] = [weights.embedding]  # data that the compiled code points to
        layers = (_Layer * weights.num_layers)(*(self._layer(layer) for layer in weights.layers))
        self._kept.append(layers)
        self._vocabulary = weights.head.outputs
        self._model = _Model(
            num_layers=len(layers),
            hidden=weights.head.inputs,
            heads=weights.heads,
            kv_heads=weights.kv_heads,
            head_dim=weights.head_dim,
            rotary=2 * len(weights.frequencies),
            embedding_type=weights.embedding_type,
            has_adapter=self._has_adapter,
            window=weights.window,
            epsilon=weights.epsilon,
            scale=weights.scale,
            embedding_scale=weights.embedding_scale,
            cap=weights.score_cap,
            layers=ctypes.addressof(layers),
            embedding=weights.embedding.ctypes.data,
            final_norm=self._keep(weights.final_norm.float()),
            head=self._linear([weights.head]),
        )

    def forward(
        self,
        chunks: Sequence[Chunk],
        arena: Arena,
        outputs: Sequence[int],
        give_up: Callable[[], bool] = never,
        scored: Sequence[ScoredChunk] = (),
        scored_layers: range = range(0),
    ) -> Tensor:
        """Run a pass like `Model.forward`. give_up is called only in passes of more than LONG_ROWS rows."""
        plan = self._plan(chunks, arena, outputs, scored, scored_layers)
        step, logits = plan.step, plan.logits
        if step.rows > LONG_ROWS:
            step.gives_up = _GivesUp(give_up)
        ended = self._library.warmdesk_step(ctypes.byref(self._model), ctypes.byref(step))
        if ended == NO_MEMORY:
            raise MemoryError("no memory for a pass")
        if ended == GIVEN_UP:
            raise PassGivenUp
        return (logits / self._logit_cap).tanh() * self._logit_cap if self._logit_cap else logits

    def decode(
        self, chunks: Sequence[Chunk], arena: Arena, steps: int, ends: Collection[int], is_late: Callable[[], bool]
    ) -> list[list[int]]:
        """Choose tokens like `Model.decode`. ends: the stop tokens."""
        plan = self._plan(chunks, arena, range(len(chunks)), steps=steps)
        step, last = plan.step, {item.start + item.length - 1: index for index, item in enumerate(plan.items)}
        chosen, stops = array("i", bytes(4 * steps * step.rows)), array("i", ends)
        grown = array("i", (last[slot] for slot in plan.slots[: step.rows]))
        decoding = _Decoding(
            steps=steps,
            num_ends=len(stops),
            ends=address(stops),
            grown=address(grown),
            items=step.items,
            readers=step.readers,
            chosen=address(chosen),
            is_late=_GivesUp(is_late),
        )
        done = self._library.warmdesk_decode(ctypes.byref(self._model), ctypes.byref(step), ctypes.byref(decoding))
        if not done:
            raise MemoryError("no memory for a pass")
        return [chosen[row * step.rows : (row + 1) * step.rows].tolist() for row in range(done)]

    def _plan(
        self,
        chunks: Sequence[Chunk],
        arena: Arena,
        outputs: Sequence[int],
        scored: Sequence[ScoredChunk] = (),
        scored_layers: range = range(0),
        steps: int = 1,
    ) -> _Plan:
        """Plan the first of `steps` steps. Slots, positions and angles of later steps follow in memory."""
        tokens = array("i", (token for chunk in chunks for token in chunk.tokens))
        first_slots = [slot for chunk in chunks for slot in chunk.slots]
        slots = array("i", (slot + step for step in range(steps) for slot in first_slots))
        positions = torch.tensor([at + step for step in range(steps) for chunk in chunks for at in chunk.positions])
        turned = positions.float().unsqueeze(1) * self._frequencies
        cos, sin = turned.cos() * self._factor, turned.sin() * self._factor
        turned = turned if self._local is None else positions.float().unsqueeze(1) * self._local
        local_cos, local_sin = (cos, sin) if self._local is None else (turned.cos(), turned.sin())
        turns: dict[int, int] = {}
        readers, hidden, scored_readers, scored_hidden = (array("i") for _ in range(4))
        items = plan_runs(plan_items(chunks), turns, readers, hidden)
        scored_runs = plan_scored(scored, chunks, turns, scored_readers, scored_hidden)
        turn_cos, turn_sin = self._turned_back(*turns)
        logits = torch.empty(len(outputs), self._vocabulary)
        wanted = array("i", outputs)
        keys, values = pointers_of(arena.keys), pointers_of(arena.values)
        step = _Step(
            rows=len(tokens),
            num_items=len(items),
            num_readers=len(readers) // 3,
            num_outputs=len(wanted),
            num_scored=len(scored_runs),
            first_scored=scored_layers.start,
            last_scored=scored_layers.stop - 1,
            num_layers=scored_layers.stop if scored and only_scores(scored, chunks) else self._model.num_layers,
            tokens=address(tokens),
            slots=address(slots),
            outputs=address(wanted),
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            local_cos=local_cos.data_ptr(),
            local_sin=local_sin.data_ptr(),
            positions=positions.data_ptr(),
            key_positions=arena.positions.data_ptr(),
            turn_cos=turn_cos.data_ptr(),
            turn_sin=turn_sin.data_ptr(),
            items=ctypes.addressof(items),
            readers=address(readers),
            hidden=address(hidden),
            scored=ctypes.addressof(scored_runs),
            scored_readers=address(scored_readers),
            scored_hidden=address(scored_hidden),
            keys=ctypes.addressof(keys),
            values=ctypes.addressof(values),
            logits=logits.data_ptr(),
            threads=torch.get_num_threads(),
        )
        angles_kept = (cos, sin, local_cos, local_sin, turn_cos, turn_sin)
        lists = (tokens, wanted, readers, hidden, scored_runs, scored_readers, scored_hidden, keys, values)
        return _Plan(step, logits, slots, items, (positions, *angles_kept, *lists))

    def _layer(self, layer: LayerWeights) -> _Layer:
        return _Layer(
            qkv=self._linear(layer.qkv),
            out=self._linear([layer.out]),
            gate_up=self._linear(layer.gate_up, in_turn=True),
            down=self._linear([layer.down]),
            is_local=layer.is_local,
            **{name: self._keep(norm.float()) for name, norm in layer.norms.items()},
        )

    def _linear(self, matrices: Sequence[Matrix], *, in_turn: bool = False) -> _Linear:
        """Join layers that have the same input to one layer. in_turn: their outputs alternate, half a group of each."""
        biases = [torch.zeros(one.outputs) if one.bias is None else one.bias.float() for one in matrices]
        bias = self._keep(torch.cat(biases)) if any(one.bias is not None for one in matrices) else None
        outputs, inputs = sum(one.outputs for one in matrices), matrices[0].inputs
        if matrices[0].kind:
            parts = [self._part(one) for one in matrices]
            return _Linear(None, bias, PACKED, inputs, outputs, self._is_gelu, (_Part * 3)(*parts))
        halves = [torch.unflatten(one.weights, 0, (-1, OUTPUTS // 2)) for one in matrices]  # each [.., 32, inputs]
        together = (torch.stack(halves, 1) if in_turn else torch.cat(halves)).reshape(-1, self._lanes, inputs)
        # for each pair of inputs, the two weights of every lane
        packed = torch.unflatten(together.to(torch.bfloat16), 2, (-1, 2)).permute(0, 2, 1, 3)
        return _Linear(self._keep(packed.contiguous()), bias, BFLOAT16, inputs, outputs, self._is_gelu)

    def _part(self, matrix: Matrix) -> _Part:
        if matrix.adapter is None:
            return _Part(self._keep(matrix.weights), None, None, matrix.kind, matrix.outputs, 0)
        down, up = matrix.adapter
        extra = -len(down) % BLOCK_COLUMNS
        down, up = nn.functional.pad(down, (0, 0, 0, extra)), nn.functional.pad(up, (0, extra))
        self._has_adapter = True
        pointers = self._keep(matrix.weights), self._keep(rounded(down)), self._keep(rounded(up))
        return _Part(*pointers, matrix.kind, matrix.outputs, len(down))

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()


def weights_of(hf: Any, rotation: Rotation, weights: PackedWeights) -> DecoderWeights:
    """Return the weights of transformers' model. The model must be supported, see `why_not_covered`."""
    config, body = hf.config, hf.model

    def matrix(linear: nn.Linear) -> Matrix:
        weight, bias = linear.weight.detach(), None if linear.bias is None else linear.bias.detach()
        outputs, inputs = weight.shape
        if weights == "int8":
            return Matrix(rounded(weight), outputs, inputs, W8, bias)
        return Matrix(weight, outputs, inputs, bias=bias)

    def layer_of(layer: Any) -> LayerWeights:
        attention, mlp = layer.self_attn, layer.mlp
        norms = {
            "attention_norm": layer.input_layernorm,
            "mlp_norm": layer.post_attention_layernorm,
            "query_norm": getattr(attention, "q_norm", None),
            "key_norm": getattr(attention, "k_norm", None),
        }
        return LayerWeights(
            [matrix(linear) for linear in (attention.q_proj, attention.k_proj, attention.v_proj)],
            matrix(attention.o_proj),
            [matrix(mlp.gate_proj), matrix(mlp.up_proj)],
            matrix(mlp.down_proj),
            {name: norm.weight.detach() for name, norm in norms.items() if norm is not None},
        )

    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return DecoderWeights(
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        scale=head_dim**-0.5,
        epsilon=config.rms_norm_eps,
        frequencies=rotation.frequencies,
        attention_factor=body.rotary_emb.attention_scaling,
        embedding=hf.get_input_embeddings().weight.detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy(),
        embedding_type=BF16,
        num_layers=len(body.layers),
        layers=map(layer_of, body.layers),
        final_norm=body.norm.weight.detach(),
        head=matrix(hf.get_output_embeddings()),
    )


def why_not_covered(hf: Any) -> str:
    config = hf.config
    if config.model_type not in FAMILIES or config.hidden_act != "silu":
        return f"type {config.model_type!r} with activation {getattr(config, 'hidden_act', None)!r}"
    if hf.dtype not in (torch.bfloat16, torch.float32) or hf.device.type != "cpu":
        return f"{hf.dtype} on {hf.device}"
    for layer in hf.model.layers:
        for linear in (layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
            if linear.bias is not None:
                return "biases other than for queries, keys and values"
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    vocabulary = hf.get_output_embeddings().weight.shape[0]
    widths = [config.hidden_size, config.intermediate_size, vocabulary, heads * head_dim]
    if any(width % OUTPUTS for width in widths) or head_dim % 32:
        return f"layers of {widths} outputs and heads of {head_dim}"
    return ""


def rounded(weights: Tensor) -> Tensor:
    """Round weights `[outputs, inputs]` to 8 bits for packed.h. Returns uint8 `[blocks, 272]`: each block's scales and
    then its numbers. Scales are rounded up to float16, so no number exceeds 127.
    """
    pairs = weights.float().view(-1, 2, BLOCK_ROWS, weights.shape[1] // BLOCK_COLUMNS, BLOCK_COLUMNS)
    blocks = pairs.permute(0, 3, 1, 2, 4).flatten(1, 2)
    exact = blocks.abs().amax(3) / 127
    scales = exact.half()
    scales = torch.where(scales.float() < exact, torch.nextafter(scales, scales.new_tensor(torch.inf)), scales)
    divisors = scales.float().clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(3)
    numbers = torch.unflatten((blocks / divisors).round().to(torch.int8), 3, (-1, 4)).transpose(2, 3)
    return torch.cat((scales.view(torch.uint8).flatten(0, 1), numbers.reshape(-1, 256).view(torch.uint8)), 1)


def plan_runs(
    items: Sequence[Item], turns: dict[int, int], readers: "array[int]", hidden: "array[int]", first_row: int = 0
) -> "ctypes.Array[_Item]":
    """Return the runs of `plan_arrays`. Their readers and hidden keys are added to `readers` and `hidden`."""
    by_run: dict[int, list[int]] = {}
    runs, found = plan_arrays(items, turns, first_row, by_run)
    before = len(readers) // 3
    readers.extend(found)
    planned = (_Item * (len(runs) // 4))()
    for i in range(len(planned)):
        start, length, first, count = runs[4 * i : 4 * i + 4]
        keys = by_run.get(i, ())
        planned[i] = _Item(start, length, before + first, count, len(hidden), len(keys))
        hidden.extend(keys)
    return planned


def plan_scored(
    scored: Sequence[ScoredChunk],
    chunks: Sequence[Chunk],
    turns: dict[int, int],
    readers: "array[int]",
    hidden: "array[int]",
) -> "ctypes.Array[_ScoredRun]":
    """Return the runs whose keys are scored. Their readers and hidden keys are added to `readers` and `hidden`."""
    found: list[_ScoredRun] = []
    for one in scored:
        rows = one.packed_rows(chunks)
        chunk = chunks[one.index].last_rows(one.rows)
        placed = [(item, ranged) for item in plan_items([chunk]) for ranged in item.ranges] if rows else []
        for item, ranged in placed:
            if (squares := one.squares.get((item.extent, ranged.offset))) is None:
                continue
            for run in plan_runs([replace(item, ranges=(ranged,))], turns, readers, hidden, rows.start):
                to = squares.data_ptr() + (run.start - item.extent.start) * squares.element_size()
                found.append(_ScoredRun(run, item.extent.length, to))
    return (_ScoredRun * len(found))(*found)


def pointers_of(layers: Sequence[Tensor]) -> Any:
    return (_Pointer * len(layers))(*(layer.data_ptr() for layer in layers))


def turned_back(frequencies: Tensor, *distances: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of backward rotations. distances: in position ids."""
    angles = -torch.tensor(distances, dtype=torch.float64).unsqueeze(1) * frequencies
    return angles.cos().float(), angles.sin().float()


def address(numbers: "array[int]") -> int:
    return numbers.buffer_info()[0]


def native_decoder_of(
    hf: Any, rotation: Rotation | None, folder: Path, weights: PackedWeights = "model"
) -> NativeDecoder | None:
    if rotation is None:
        return None
    reason = why_not_covered(hf)
    matrices = (one for one in hf.parameters() if one.dim() > 1)
    if not reason and not all(torch.equal(one, one.bfloat16().to(one.dtype)) for one in matrices):
        reason = "weights that are not bfloat16"
    if reason:
        log.info("the model runs in transformers instead of compiled code: %s", reason)
        return None
    library = load_library(folder, hf.dtype)
    return None if library is None else NativeDecoder(weights_of(hf, rotation, weights), library)
