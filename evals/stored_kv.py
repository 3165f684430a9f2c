"""How far keys and values of 8 bits are from those of the model, in what comes next in the sample answers.

    python -m evals.stored_kv [--limit 40]

Each question is asked as the desk asks it, behind the system text and the beginning of its article, both of them
modules that are kept as they are or rounded, and the sample answer is read in one pass. KL is the divergence of the
rounded distribution of the next token from the other one, in nats; top 1 is how often both have the same likeliest
token. Prints one JSON document. Not covered: whether an answer is right; how far modules are from full attention.
"""

import argparse
import json
import os
from contextlib import ExitStack, closing

from torch import Tensor

from app.domain.settings import Settings, load_settings
from app.knowledge.prompts import PassageText, PromptBuilder, PromptTurn
from cache.engine.engine import Engine
from cache.engine.request import Request
from cache.memory.kv_format import KVStorage
from cache.model.language_model import LanguageModel
from cache.model.loading import load_model
from cache.prompt.parts import Text
from cache.prompt.plan import Plan
from evals.next_token import NextTokenDistance, sample_answers

ARTICLE_TOKENS = 400
MEMORY_TOKENS = 4096


def open_engine(model: LanguageModel, kv_storage: KVStorage) -> Engine:
    """An engine without disk: modules are rounded when they are encoded."""
    return Engine(model, memory=MEMORY_TOKENS * model.info.kv.bytes_per_token, kv_storage=kv_storage).start()


def read_answer(engine: Engine, plan: Plan, answer: tuple[int, ...]) -> Tensor:
    """Log probabilities of the tokens of an answer, `[answer tokens, vocabulary]`, all modules placed."""
    logits = engine.submit(Request(plan=plan, teacher_forced=answer)).completion.logits
    assert logits is not None
    return logits.log_softmax(-1)


def measure(model: LanguageModel, settings: Settings, limit: int) -> dict[str, object]:
    """Over the first questions of the sample help centre that have an answer."""
    prompts, distance = PromptBuilder(model.tokenizer.template, settings.system_text), NextTokenDistance()
    with ExitStack() as stack:
        exact, rounded = (stack.enter_context(closing(open_engine(model, kind))) for kind in ("model", "int8"))
        for number, (article, question, answer) in enumerate(sample_answers(model.tokenizer, ARTICLE_TOKENS, limit)):
            passage = PassageText(name=str(number), title="", heading_path=(), text=article)
            plan = exact.arrange(prompts.prompt([PromptTurn(passages=(passage,), question=question)]))
            tokens = tuple(model.tokenizer.encode([Text(text=answer)]))
            distance.add(*(read_answer(engine, plan, tokens) for engine in (exact, rounded)))
    return {"model": model.info.name, **distance.summary()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=40)
    settings = load_settings({}, os.environ)
    model = load_model(
        settings.model,
        device=settings.device,
        converted=settings.models_folder,
        adapter=settings.adapter_folder,
        weights=settings.weights,
    )
    print(json.dumps(measure(model, settings, parser.parse_args().limit)))


if __name__ == "__main__":
    main()
