"""The keyword index on disk: a folder with one file for each segment, and a file that lists them.

Segments never change, so saving an index writes only the segments that are new, then the list, and then deletes what
the list does not name: at any moment the folder holds the complete old or the complete new index. A damaged folder is
refused, not repaired: the index can be rebuilt from the stored passages.
"""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save
from scipy import sparse

from retrieval.documents.document import content_hash
from retrieval.errors import IndexDamaged
from retrieval.search.index_file import read_index_file, write_index_file
from retrieval.search.keyword_index import KeywordIndex
from retrieval.search.keyword_segment import KeywordSegment
from retrieval.search.windows import window_texts
from retrieval.text.terms import asked_words, stem, words

KIND = "warmdesk keywords 1"
LIST = "segments"

PROBE = """Customers of our customs office asked the police about a policy of international and internal deliveries; \
they weren't delivered, running e-mails, KM-450, KM450, 1,5 kg, EUR 3.50, U.S. and Ｆｕｌｌ width; naïve straße GROẞE.

Die Rückgabe von Häusern und Bestellungen ist möglich. Les clientes françaises continuellement livrées. Los pedidos \
de las tiendas. Возврат заказов в магазинах. Επιστροφές παραγγελιών. 您可以在三十天内退货并获得退款。返品はできますか。\
환불은 언제 되나요?
"""
"""A text whose words show how texts are cut, parted and stemmed."""


def save_keywords(index: KeywordIndex, folder: Path) -> None:
    """Write what is new of an index, and delete what does not belong to it. Raises OSError; the folder then holds the
    old index.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    there = {file.name for file in folder.iterdir()}
    for segment in index.segments:
        if segment.name not in there:
            _save_segment(segment, folder / segment.name)
    names = [segment.name for segment in index.segments]
    write_index_file(folder / LIST, KIND, {"terms": fingerprint(), "segments": names})
    for name in there.difference(names, [LIST]):
        (folder / name).unlink()


def load_keywords(folder: Path) -> KeywordIndex:
    """Read an index. Raises IndexDamaged when something is missing, truncated or altered, or if words are parted or
    stemmed differently now.
    """
    header, _ = read_index_file(folder / LIST, KIND)
    if header["terms"] != fingerprint():
        raise IndexDamaged(folder, "words are counted differently since")
    return KeywordIndex([_load_segment(folder / name) for name in header["segments"]])


@cache
def fingerprint() -> str:
    """Tells whether texts are cut into windows, words and stems as when an index was written."""
    texts = window_texts(("Help", "Returns"), PROBE)
    terms = [f"{word} {stem(word)}" for text in texts for word in (*words(text), "", *asked_words(text), "")]
    return content_hash("\n".join([version("pystemmer"), version("py3langid"), *terms]).encode())


def _save_segment(segment: KeywordSegment, path: Path) -> None:
    arrays = {
        "window_ids": segment.window_ids,
        "words": _as_bytes(segment.words),
        "stems": _as_bytes(segment.stems),
        "starts": segment.counts.indptr.astype(np.int64),
        "columns": segment.counts.indices.astype(np.int32),
        "counts": segment.counts.data,
    }
    write_index_file(
        path, KIND, {"windows": len(segment), "words": len(segment.words), "languages": segment.languages}, save(arrays)
    )


def _load_segment(path: Path) -> KeywordSegment:
    header, payload = read_index_file(path, KIND)
    arrays = load(payload)
    parts = (arrays["counts"], arrays["columns"], arrays["starts"])
    counts = sparse.csr_matrix(parts, (header["windows"], header["words"]))
    words, stems = _as_list(arrays["words"]), _as_list(arrays["stems"])
    return KeywordSegment(path.name, arrays["window_ids"], words, stems, counts, header["languages"])


def _as_bytes(texts: Sequence[str]) -> npt.NDArray[np.uint8]:
    """Words in one array, a line each; no word holds a line break."""
    return np.frombuffer("\n".join(texts).encode("utf-8", "surrogatepass"), np.uint8)


def _as_list(lines: npt.NDArray[np.uint8]) -> list[str]:
    return lines.tobytes().decode("utf-8", "surrogatepass").split("\n") if len(lines) else []
