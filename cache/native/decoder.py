"""A model's forward pass as one call of compiled code (`decoder.c`), which is compiled once per CPU and version.

The code reads packed copies of a transformers model's weights; transformers is the loader and the oracle. The machine's
own compiler (`cc`) is used, so that the code has every instruction of this CPU. Without a compiler, decoding is slower.
Out of scope: families other than Llama's, and other devices.
"""

import ctypes
import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from cache.attention.forward_pass import PassGivenUp, Rotation, never
from cache.attention.items import Chunk, ScoredChunk, only_scores, plan_arrays, plan_items
from cache.memory.arena import Arena
from durable import FLAGS, load_compiled

SOURCE = Path(__file__).with_name("decoder.c")
log = logging.getLogger(__name__)


@cache
def load_library(folder: Path, dtype: torch.dtype) -> ctypes.CDLL | None:
    """Return the compiled code for a dtype of keys and values, stored in `folder`; log a failure and return None."""
    flags = [*FLAGS, *(["-DKV_FLOAT32"] if dtype == torch.float32 else [])]
    return load_compiled(SOURCE, flags, folder, "answers are slower")


OUTPUTS = 64  # as in linear.h: a layer's number of outputs is a multiple of it
FAMILIES = {"llama", "mistral", "qwen2", "qwen3"}
BFLOAT16, FLOAT32, INT8 = range(3)
INT8_GROUP = 32  # as in linear.h: inputs with a common scale
PackedWeights = Literal["model", "int8"]  # weights as in the model, or rounded to 8 bits
LONG_ROWS = 64  # passes with more rows can be stopped: shorter ones end before asking is worth it

_Pointer, _Int, _Float = ctypes.c_void_p, ctypes.c_int32, ctypes.c_float
_GivesUp = ctypes.CFUNCTYPE(ctypes.c_int)
NO_MEMORY, GIVEN_UP = 1, 2  # errors of `warmdesk_step`


class _Linear(ctypes.Structure):
    _fields_ = (
        *((name, _Pointer) for name in ("weights", "bias")),
        *((name, _Int) for name in ("kind", "inputs", "outputs")),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, _Linear) for name in ("qkv", "out", "gate_up", "down")),
        *((name, _Pointer) for name in ("attention_norm", "mlp_norm", "query_norm", "key_norm")),
    )


class _Model(ctypes.Structure):
    _fields_ = (
        *((name, _Int) for name in ("num_layers", "hidden", "heads", "kv_heads", "head_dim", "rotary")),
        *((name, _Float) for name in ("epsilon", "scale")),
        *((name, _Pointer) for name in ("layers", "embedding", "final_norm")),
        ("head", _Linear),
    )


class _ScoredRun(ctypes.Structure):
    _fields_ = (
        *((name, _Int) for name in ("start", "length", "first_reader", "readers", "stride")),
        ("squares", _Pointer),
    )


class _Step(ctypes.Structure):
    _fields_ = (
        *((name, _Int) for name in ("rows", "num_items", "num_readers", "num_outputs")),
        *((name, _Int) for name in ("num_scored", "first_scored", "last_scored", "num_layers")),
        *((name, _Pointer) for name in ("tokens", "slots", "outputs", "cos", "sin", "turn_cos", "turn_sin")),
        *((name, _Pointer) for name in ("items", "readers", "scored", "scored_readers", "keys", "values", "logits")),
        ("threads", _Int),
        ("gives_up", _GivesUp),
    )


class NativeDecoder:
    """The packed weights of a model, and passes with them."""

    def __init__(self, hf: Any, rotation: Rotation, library: ctypes.CDLL, weights: PackedWeights = "model") -> None:
        """hf: a supported model, see `why_not_covered`."""
        config, body = hf.config, hf.model
        self._weights = weights
        self._library, self._rotation, self._rotary = library, rotation, body.rotary_emb
        self._lanes: int = library.warmdesk_lanes()
        self._kept: list[Any] = []  # what the compiled code points to
        heads = config.num_attention_heads
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        layers = (_Layer * len(body.layers))(*(self._layer(layer) for layer in body.layers))
        self._kept.append(layers)
        embedding = hf.get_input_embeddings().weight.detach()
        self._vocabulary = hf.get_output_embeddings().weight.shape[0]
        self._model = _Model(
            num_layers=len(layers),
            hidden=config.hidden_size,
            heads=heads,
            kv_heads=config.num_key_value_heads,
            head_dim=head_dim,
            rotary=2 * rotation.frequencies.shape[0],
            epsilon=config.rms_norm_eps,
            scale=head_dim**-0.5,
            layers=ctypes.addressof(layers),
            embedding=self._keep(embedding.to(torch.bfloat16).contiguous()),
            final_norm=self._keep(body.norm.weight.detach().float()),
            head=self._linear([hf.get_output_embeddings()]),
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
        """Run a pass as `Model.forward`. give_up is called in passes of more than LONG_ROWS rows."""
        tokens = array("i", (token for chunk in chunks for token in chunk.tokens))
        slots = array("i", (slot for chunk in chunks for slot in chunk.slots))
        positions = torch.tensor([position for chunk in chunks for position in chunk.positions])
        arena.positions.index_copy_(0, torch.tensor(slots), positions)
        cos, sin = self._rotary(torch.empty(0), positions.unsqueeze(0))
        half = self._rotation.frequencies.shape[0]
        cos, sin = cos[0, :, :half].contiguous(), sin[0, :, :half].contiguous()
        turns: dict[int, int] = {}
        items, readers = plan_arrays(plan_items(chunks), turns)
        scored_runs, scored_readers = plan_scored(scored, chunks, turns)
        angles = -torch.tensor([*turns], dtype=torch.float64).unsqueeze(1) * self._rotation.frequencies.double()
        turn_cos, turn_sin = angles.cos().float(), angles.sin().float()
        logits = torch.empty(len(outputs), self._vocabulary)
        wanted = array("i", outputs)
        keys, values = self._pointers(arena)
        step = _Step(
            rows=len(tokens),
            num_items=len(items) // 4,
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
            turn_cos=turn_cos.data_ptr(),
            turn_sin=turn_sin.data_ptr(),
            items=address(items),
            readers=address(readers),
            scored=ctypes.addressof(scored_runs),
            scored_readers=address(scored_readers),
            keys=ctypes.addressof(keys),
            values=ctypes.addressof(values),
            logits=logits.data_ptr(),
            threads=torch.get_num_threads(),
            gives_up=_GivesUp(give_up) if len(tokens) > LONG_ROWS else _GivesUp(),
        )
        ended = self._library.warmdesk_step(ctypes.byref(self._model), ctypes.byref(step))
        if ended == NO_MEMORY:
            raise MemoryError("no memory for a pass")
        if ended == GIVEN_UP:
            raise PassGivenUp
        return logits

    def _layer(self, layer: Any) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        norms = {
            "attention_norm": layer.input_layernorm,
            "mlp_norm": layer.post_attention_layernorm,
            "query_norm": getattr(attention, "q_norm", None),
            "key_norm": getattr(attention, "k_norm", None),
        }
        return _Layer(
            qkv=self._linear([attention.q_proj, attention.k_proj, attention.v_proj]),
            out=self._linear([attention.o_proj]),
            gate_up=self._linear([mlp.gate_proj, mlp.up_proj], in_turn=True),
            down=self._linear([mlp.down_proj]),
            **{name: self._keep(norm.weight.detach().float()) for name, norm in norms.items() if norm is not None},
        )

    def _linear(self, linears: list[nn.Linear], *, in_turn: bool = False) -> _Linear:
        """Return several layers with the same input as one layer. in_turn: their panels alternate."""
        # each [panels, lanes, inputs]
        panels = [torch.unflatten(one.weight.detach(), 0, (-1, self._lanes)) for one in linears]
        together = torch.stack(panels, 1).flatten(0, 1) if in_turn else torch.cat(panels)
        if self._weights == "int8":
            kind, packed = INT8, rounded(together)
        elif is_bfloat16(together):
            # pairs of inputs side by side for all lanes
            kind, packed = BFLOAT16, torch.unflatten(together.to(torch.bfloat16), 2, (-1, 2)).permute(0, 2, 1, 3)
        else:
            # the first ones of all lanes, then the second ones
            kind, packed = FLOAT32, torch.unflatten(together.float(), 2, (-1, 2)).permute(0, 2, 3, 1)
        biases = [torch.zeros(len(one.weight)) if one.bias is None else one.bias.detach().float() for one in linears]
        return _Linear(
            weights=self._keep(packed.contiguous()),
            bias=self._keep(torch.cat(biases)) if any(one.bias is not None for one in linears) else None,
            kind=kind,
            inputs=together.shape[2],
            outputs=together.shape[0] * self._lanes,
        )

    def _keep(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()

    def _pointers(self, arena: Arena) -> tuple[Any, Any]:
        kind = _Pointer * len(arena.keys)
        return kind(*(layer.data_ptr() for layer in arena.keys)), kind(*(layer.data_ptr() for layer in arena.values))


def why_not_covered(hf: Any) -> str:
    config = hf.config
    if config.model_type not in FAMILIES or config.hidden_act != "silu":
        return f"type {config.model_type!r} with activation {getattr(config, 'hidden_act', None)!r}"
    if hf.dtype not in (torch.bfloat16, torch.float32) or hf.device.type != "cpu":
        return f"{hf.dtype} on {hf.device}"
    for layer in hf.model.layers:
        for linear in (layer.self_attn.o_proj, layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
            if linear.bias is not None:
                return "biases besides those of queries, keys and values"
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = config.num_attention_heads + 2 * config.num_key_value_heads
    vocabulary = hf.get_output_embeddings().weight.shape[0]
    widths = [config.hidden_size, config.intermediate_size, vocabulary, heads * head_dim]
    if any(width % OUTPUTS for width in widths) or head_dim % 32:
        return f"layers of {widths} outputs and heads of {head_dim}"
    return "" if is_bfloat16(hf.get_input_embeddings().weight.detach()) else "embeddings that are not bfloat16"


def rounded(panels: Tensor) -> Tensor:
    """Round panels `[panels, lanes, inputs]` to 8 bits for decoder.c: uint8 `[panels, bytes]`, each panel's weights and
    then its scales. A scale is rounded up to bfloat16, so no weight exceeds 127 scales.
    """
    groups = torch.unflatten(panels.float(), 2, (-1, INT8_GROUP))
    exact = groups.abs().amax(3) / 127
    scales = exact.to(torch.bfloat16)
    scales = torch.where(scales.float() < exact, torch.nextafter(scales, scales.new_tensor(torch.inf)), scales)
    divisors = scales.float().clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(3)
    numbers = ((groups / divisors).round() + 128).to(torch.uint8)
    fours = torch.unflatten(numbers.flatten(2), 2, (-1, 4)).permute(0, 2, 1, 3)
    pairs = torch.unflatten(nn.functional.pad(scales, (0, scales.shape[2] % 2)), 2, (-1, 2)).permute(0, 2, 1, 3)
    return torch.cat((fours.flatten(1), pairs.contiguous().view(torch.uint8).flatten(1)), 1)


def plan_scored(
    scored: Sequence[ScoredChunk], chunks: Sequence[Chunk], turns: dict[int, int]
) -> "tuple[ctypes.Array[_ScoredRun], array[int]]":
    """Return the runs whose keys are scored, and their readers, as `plan_arrays` does."""
    found: list[_ScoredRun] = []
    all_readers = array("i")
    for one in scored:
        rows = one.packed_rows(chunks)
        chunk = chunks[one.index].last_rows(one.rows)
        placed = [(item, ranged) for item in plan_items([chunk]) for ranged in item.ranges] if rows else []
        for item, ranged in placed:
            if (squares := one.squares.get((item.extent, ranged.offset))) is None:
                continue
            runs, readers = plan_arrays([replace(item, ranges=(ranged,))], turns, rows.start)
            for at in range(0, len(runs), 4):
                start, length, first_reader, num_readers = runs[at : at + 4]
                to = squares.data_ptr() + (start - item.extent.start) * squares.element_size()
                first = len(all_readers) // 3 + first_reader
                found.append(_ScoredRun(start, length, first, num_readers, item.extent.length, to))
            all_readers.extend(readers)
    return (_ScoredRun * len(found))(*found), all_readers


def is_bfloat16(tensor: Tensor) -> bool:
    return tensor.dtype == torch.bfloat16 or torch.equal(tensor, tensor.to(torch.bfloat16).to(tensor.dtype))


def address(numbers: "array[int]") -> int:
    return numbers.buffer_info()[0]


def native_decoder_of(
    hf: Any, rotation: Rotation | None, folder: Path, weights: PackedWeights = "model"
) -> NativeDecoder | None:
    if rotation is None:
        return None
    if reason := why_not_covered(hf):
        log.info("the model runs in transformers instead of compiled code: %s", reason)
        return None
    library = load_library(folder, hf.dtype)
    return None if library is None else NativeDecoder(hf, rotation, library, weights)
