"""Checkpoints of an adapter training: one safetensors file, no pickle, replaced as a whole."""

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from cache.errors import ModelError
from cache.model.adapters import WEIGHTS
from cache.training.schedule import Schedule

CHECKPOINT = "checkpoint.safetensors"


@dataclass(slots=True, kw_only=True)
class TrainingState:
    """Where a training stands, besides its tensors.

    seconds: of training. loss: running mean. held_out: the latest held-out loss, best: the lowest, before: the one
    before the first step. moved: of the best adapter, the divergence of full attention from the model without it, in
    nats per token; None for the objective `answers`. without_gain: evaluations since the best one.
    """

    step: int = 0
    seconds: float = 0.0
    questions: int = 0
    tokens: int = 0
    loss: float = 0.0
    best: float = math.inf
    held_out: float = math.inf
    before: float | None = None
    moved: float | None = None
    without_gain: int = 0


def save_checkpoint(
    folder: Path, state: TrainingState, optimizer: torch.optim.Optimizer, schedule: Schedule, subject: str
) -> None:
    """Write state, parameters and the optimizer's moments. subject: identity of the model and the training data."""
    tensors: dict[str, Tensor] = {}
    for number, parameter in enumerate(optimizer.param_groups[0]["params"]):
        tensors |= {f"{number}.value": parameter.data}
        tensors |= {f"{number}.{name}": tensor for name, tensor in optimizer.state[parameter].items()}
    metadata = {"state": json.dumps(asdict(state)), "schedule": json.dumps(asdict(schedule)), "subject": subject}
    folder.mkdir(parents=True, exist_ok=True)
    temporary = (folder / CHECKPOINT).with_suffix(".tmp")
    save_file(tensors, temporary, metadata)
    os.replace(temporary, folder / CHECKPOINT)


def load_checkpoint(folder: Path, optimizer: torch.optim.Optimizer, schedule: Schedule, subject: str) -> TrainingState:
    """Read a checkpoint into the optimizer; a new state if the folder has neither checkpoint nor adapter.

    Raises ModelError if the folder holds another training, or an adapter that cannot be trained further.
    """
    file = folder / CHECKPOINT
    if not file.is_file():
        if (folder / WEIGHTS).is_file():
            raise ModelError(f"{folder} holds an adapter without a checkpoint: use another folder")
        return TrainingState()
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    if metadata.get("subject") != subject:
        raise ModelError(
            f"{folder} holds a training of another model or adapter, or on other documents: use another folder"
        )
    limits = {"steps": schedule.steps, "minutes": schedule.minutes}  # longer or shorter is the same training
    if json.loads(metadata["schedule"]) | limits != asdict(schedule):  # or one of a version with other settings
        raise ModelError(f"{folder} holds a training with another schedule: finish it, or use another folder")
    tensors = load_file(file)
    state = TrainingState(**json.loads(metadata["state"]))
    parameters = optimizer.param_groups[0]["params"]
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        parameter = parameters[int(number)]
        if name == "value":
            parameter.data.copy_(tensor)
        else:
            optimizer.state[parameter][name] = tensor if name == "step" else tensor.to(parameter.device)
    return state
