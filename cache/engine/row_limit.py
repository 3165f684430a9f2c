"""How many rows a pass may have where device memory has run out: half as many each time, and slowly more again.

What a pass needs besides the arena grows with its rows, so that work which did not fit may fit in smaller passes. Not
covered: what becomes of work that does not even fit alone, one row at a time (`cache.engine.engine_core`).
"""

import gc
import logging
from collections.abc import Callable
from typing import TypeVar

import torch

from cache.engine.scheduler import MOST_ROWS
from cache.engine.sequence import Sequence
from cache.errors import CapacityError

T = TypeVar("T")
PATIENCE = 64
"""So many passes must have used all they may have, and gone well, before the next are larger by a quarter: each time
that is too much costs a pass that fails."""
_TEXTS = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory", "[CUDA]: out of memory")
"""What cuBLAS, CUDA and Triton say when they get no memory; PyTorch passes it on as an error without a type."""
NO_MEMORY = (
    "the device has no memory left for passes, not even of one row: lower device_memory (--memory), "
    "or stop what else runs on the device"
)
log = logging.getLogger(__name__)


class RowLimit:
    """most: rows that a pass may have now. num_shortages: how often device memory has run out."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.most, self.num_shortages = MOST_ROWS, 0
        self._computed: dict[Sequence, int] = {}  # in which of the passes that were cut each sequence had rows last
        self._num_cut = self._num_well = 0

    def fit(self, scheduled: dict[Sequence, int]) -> dict[Sequence, int]:
        """As much of a pass, rows by sequence, as may be computed. Those come first that were left out longest."""
        if sum(scheduled.values()) <= self.most:
            return scheduled
        self._num_cut += 1
        fitting: dict[Sequence, int] = {}
        last = {sequence: self._computed.get(sequence, 0) for sequence in scheduled}
        for sequence in sorted(scheduled, key=last.__getitem__):
            if rows := min(scheduled[sequence], self.most - sum(fitting.values())):
                fitting[sequence] = rows
        self._computed = last | dict.fromkeys(fitting, self._num_cut)
        return {sequence: fitting[sequence] for sequence in scheduled if sequence in fitting}

    def attempt(self, rows: int, compute: Callable[[], T]) -> T | None:
        """What a pass of so many rows gives; None if device memory has run out, and smaller passes are to be tried.
        Raises CapacityError if it was one row, and what `compute` raises.
        """
        try:
            computed = compute()
        except Exception as error:
            if not is_shortage(error):
                raise
            reason = str(error)
        else:
            self._note_well(rows)
            return computed
        self.note_shortage(rows, reason)
        if rows == 1:
            raise CapacityError(NO_MEMORY)
        return None

    def note_shortage(self, rows: int, reason: str) -> None:
        """Device memory has run out in a pass of so many rows: give back what PyTorch keeps for later, and let passes
        be half as large.

        To be called when the error is gone: it holds the frames of the pass, and with them all that they allocated.
        """
        self.num_shortages += 1
        if self._device.type == "cuda":
            gc.collect()  # frames of the pass may refer to each other
            torch.cuda.empty_cache()
        self.most, self._num_well = max(1, min(self.most, rows) // 2), 0
        log.warning("device memory has run out in a pass of %d rows, the next has %d: %s", rows, self.most, reason)

    def _note_well(self, rows: int) -> None:
        self._num_well += rows >= self.most
        if self._num_well == PATIENCE:
            self.most, self._num_well = min(MOST_ROWS, self.most + max(1, self.most // 4)), 0


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that device memory has run out."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in _TEXTS)
