"""Make prompt modules from passages, and prompts from conversations.

The prompt of a conversation is [system module][passage]...[question 1][answer 1][new passages]...[question 2] ... It
only grows at its end, so every earlier turn is an exact prefix of the next turn. Each passage is one module. It is
encoded after the system module and the texts of its neighbours, the closest neighbour last (FusionRAG, SIGMOD 2026).
The neighbours' texts are not part of the prompt. Within a turn the most relevant passage is last, next to the question
(measured: closest to full attention there). A passage that is already in the conversation is not inserted again.

Texts of documents, customers and settings are literal. Only strings of the chat template structure the prompt, and only
our own marks begin a page or a question.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.domain.documents import StoredPassage
from cache.prompt.parts import Text, TextModule
from cache.prompt.tokenizer import ChatTemplate

SYSTEM = "system"
PAGE_MARK, QUESTION_MARK = "Help page:", "Question:"
"""The marks of a passage and of a question, always at the start of a line."""
BRIEFLY = "\nAnswer in one or two short sentences."
_BREAKS = r"\n\r\v\f\x1c-\x1e\x85\u2028\u2029"
_UNSEEN = rf"(?:[^\S{_BREAKS}]|[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff])*"
_FORGED = re.compile(rf"(?<=[{_BREAKS}])(?={_UNSEEN}(?:help\s+page|question)\s*[:\uff1a])", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTurn:
    """One question with its passages, and its answer if it has one. statements: statements that the answer may cite by
    number. answer_tokens: the exact token ids of the answer, if the model generated it.
    """

    passages: tuple[StoredPassage, ...]
    question: str
    statements: tuple[str, ...] = ()
    answer: str | None = None
    answer_tokens: tuple[int, ...] | None = None


class PromptBuilder:
    """Builds prompts for one chat template and one system text."""

    def __init__(self, template: ChatTemplate, system_text: str) -> None:
        self.template = template
        self.system = TextModule(
            name=SYSTEM,
            pieces=(
                Text(text=template.open, structural=True),
                Text(text=system_text),
                Text(text=template.to_user, structural=True),
            ),
        )

    def module(self, passage: StoredPassage) -> TextModule:
        left_context = tuple(map(_module, reversed(passage.neighbours)))
        return replace(_module(passage), after=self.system, left_context=left_context)

    def prompt(self, turns: Sequence[PromptTurn]) -> list[TextModule | Text]:
        parts: list[TextModule | Text] = [self.system]
        inserted: set[str] = set()
        for turn in turns:
            new = [passage for passage in turn.passages if passage.name not in inserted]
            parts.extend(self.module(passage) for passage in new)
            inserted.update(passage.name for passage in new)
            parts.append(Text(text=question_text(turn.question, turn.statements)))
            parts.append(Text(text=self.template.to_answer, structural=True))
            if turn.answer is not None:
                answer = without_marks(turn.answer)
                parts.append(Text(text=answer, tokens=turn.answer_tokens if answer == turn.answer else None))
                parts.append(Text(text=self.template.to_next, structural=True))
        return parts


def _module(passage: StoredPassage) -> TextModule:
    text = passage_text(passage.title, passage.heading_path, passage.text)
    return TextModule(name=passage.name, pieces=(Text(text=text),))


def passage_text(title: str, heading_path: Sequence[str], text: str) -> str:
    """Return the text of a passage for the model. All texts have the same end, so that no token spans two passages."""
    return without_marks(f"{PAGE_MARK} {' > '.join(heading_path) or title}\n{text.strip()}\n\n")


def question_text(question: str, statements: Sequence[str] = ()) -> str:
    """Return the text of a question. statements: numbered from 1; the answer may cite a number. (If each sentence had
    to begin with a number, a Qwen2.5-Coder of 0.5 B would write only numbers.)
    """
    told = "".join(f"[{number}] {' '.join(text.split())}\n" for number, text in enumerate(statements, start=1))
    return without_marks(f"{told}{QUESTION_MARK} {question.strip()}{BRIEFLY if statements else ''}")


def without_marks(text: str) -> str:
    """Put "> " before each line, except the first, that begins with one of our marks. Other texts are unchanged,
    because any changed character makes a different module.
    """
    return _FORGED.sub("> ", text)
