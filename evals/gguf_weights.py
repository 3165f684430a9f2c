"""The weights of a GGUF file in another type: for peers that are to compute with what this engine computes with.

Matrices become BF16, which is what this engine makes of them, or Q8_0; vectors stay float32. Names, order of rows and
metadata stay as they are. Not covered: files in several parts.
"""

import os
import tempfile
from pathlib import Path
from typing import Any, Literal

import gguf

from cache.errors import ModelError
from cache.memory.keys import file_digest

WeightType = Literal["bf16", "q8_0"]
"""Names as llama.cpp's, in lower case."""

METADATA_OF_THE_WRITER = {"general.architecture", "general.file_type"}


def convert_weights(path: Path, weight_type: WeightType, folder: Path) -> Path:
    """A GGUF file with the same weights in another type, written once into `folder`. Raises ModelError, OSError."""
    file = folder / f"{file_digest(path).replace(':', '-')}-{weight_type}.gguf"
    if file.is_file():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, prefix="converting-")
    os.close(handle)
    try:
        write_weights(gguf.GGUFReader(path), weight_type, Path(temporary))
        os.replace(temporary, file)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise ModelError(f"model file {str(path)!r} cannot be read: {error}") from error
    finally:
        Path(temporary).unlink(missing_ok=True)
    return file


def write_weights(reader: Any, weight_type: WeightType, file: Path) -> None:
    """Write what a `gguf.GGUFReader` reads, with matrices in the type."""
    kind = gguf.GGMLQuantizationType[weight_type.upper()]
    writer = gguf.GGUFWriter(file, arch=reader.fields["general.architecture"].contents())
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{weight_type.upper()}"])
    for field in reader.fields.values():
        if not field.name.startswith("GGUF.") and field.name not in METADATA_OF_THE_WRITER:
            writer.add_key_value(field.name, field.contents(), field.types[0], sub_type=field.types[-1])
    for tensor in reader.tensors:
        numbers = gguf.dequantize(tensor.data, tensor.tensor_type)
        if numbers.ndim > 1:
            writer.add_tensor(tensor.name, gguf.quantize(numbers, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, numbers)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
