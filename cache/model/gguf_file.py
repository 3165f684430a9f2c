"""GGUF files: their metadata, and their tensors as they lie in the mapped file. Nothing is copied or dequantised.

Every length is checked against the file, so that a damaged one is a ModelError of one line and not a trace.
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from cache.errors import ModelError

NUMBERS = ("B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d")
"""Formats of values by their type in the file, as of `struct`; text and arrays have none."""
TEXT, ARRAY = 8, 9
MOST_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor. type: GGML's number for its format. shape: outputs first. data: its bytes in the mapping, uint8."""

    type: GGMLQuantizationType
    shape: tuple[int, ...]
    data: "np.ndarray[Any, np.dtype[np.uint8]]"


class GGUFFile:
    """A mapped GGUF file. metadata: by key; arrays of numbers are of numpy, those of texts are lists. Raises
    ModelError for a file that is damaged, of another version or byte order, or has numbers of an unknown type.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0
        try:
            with path.open("rb") as file:
                self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelError(f"model file {str(path)!r} cannot be read: {error}") from error
        magic, version = self._bytes(4), self._number("I")
        if magic != b"GGUF" or version not in (2, 3):
            raise self._damaged("it is no GGUF file of version 2 or 3")
        num_tensors, num_values = self._number("Q"), self._number("Q")
        self.metadata: dict[str, Any] = {}
        for _ in range(num_values):
            key = self._text()
            self.metadata[key] = self._value(self._number("I"))
        found = [self._tensor_header() for _ in range(num_tensors)]
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise self._damaged(f"its alignment is {alignment!r}")
        begin = -(-self._at // alignment) * alignment
        self.tensors = {name: self._tensor(name, shape, kind, begin + offset) for name, shape, kind, offset in found}

    def forget(self, tensor: GGUFTensor) -> None:
        """Give the memory of a tensor's pages back; they are read again when they are needed again."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        begin = tensor.data.ctypes.data - np.frombuffer(self._mapped, np.uint8).ctypes.data
        page = begin // mmap.PAGESIZE * mmap.PAGESIZE
        self._mapped.madvise(mmap.MADV_DONTNEED, page, begin + len(tensor.data) - page)

    def _damaged(self, why: str) -> ModelError:
        return ModelError(f"model file {str(self._path)!r} cannot be read: {why}")

    def _bytes(self, count: int) -> bytes:
        begin, self._at = self._at, self._at + count
        if self._at > len(self._mapped):
            raise self._damaged("it ends early")
        return self._mapped[begin : self._at]

    def _number(self, kind: str) -> Any:
        return struct.unpack("<" + kind, self._bytes(struct.calcsize("<" + kind)))[0]

    def _text(self) -> str:
        return self._bytes(self._number("Q")).decode("utf-8", "replace")

    def _texts(self, count: int) -> list[str]:
        """Read texts, of which a vocabulary has a hundred thousand."""
        texts, mapped, at = list[str](), self._mapped, self._at
        for _ in range(count):
            begin = at + 8
            at = begin + int.from_bytes(mapped[at:begin], "little")
            texts.append(mapped[begin:at].decode("utf-8", "replace"))
            if at > len(mapped):
                raise self._damaged("it ends early")
        self._at = at
        return texts

    def _value(self, kind: int) -> Any:
        if kind == TEXT:
            return self._text()
        if kind == ARRAY:
            of, count = self._number("I"), self._number("Q")
            if of == TEXT:
                return self._texts(count)
            size = struct.calcsize("<" + self._format(of))
            return np.frombuffer(self._bytes(count * size), np.dtype("<" + self._format(of)))
        return self._number(self._format(kind))

    def _format(self, kind: int) -> str:
        if kind >= len(NUMBERS) or not NUMBERS[kind]:
            raise self._damaged(f"it has values of the unknown type {kind}")
        return NUMBERS[kind]

    def _tensor_header(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._text(), self._number("I")
        if not 1 <= dimensions <= MOST_DIMENSIONS:
            raise self._damaged(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
        return name, shape, self._number("I"), self._number("Q")

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, begin: int) -> GGUFTensor:
        if kind not in GGMLQuantizationType.__members__.values():
            raise self._damaged(f"tensor {name!r} has numbers of the unknown type {kind}")
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        numbers = 1
        for count in shape:
            numbers *= count
        if shape[-1] % block or begin + numbers // block * size > len(self._mapped):
            raise self._damaged(f"tensor {name!r} is cut")
        data = np.frombuffer(self._mapped, np.uint8, numbers // block * size, begin)
        return GGUFTensor(GGMLQuantizationType(kind), shape, data)
