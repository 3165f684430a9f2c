"""How much the rows ask for: in full on a GPU, or so little that a processor has it in seconds."""

from dataclasses import dataclass
from typing import Literal

from app.domain.errors import DeskError

Size = Literal["full", "tiny"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """cached: tokens of system text and documents that a prompt reuses, in `modules` of them. question: fresh tokens.
    conversations, shared_modules, shared_tokens: that answer at the same time, the modules they share, tokens of each
    module. many, many_tokens: modules of the largest set, tokens of each; asked: requests that count; budgets: modules
    that device and host memory have room for; drawn: modules of a request. repeats: runs of everything timed, at most.
    rounds: of requests to see whether memory grows. copied, product: bytes and width to measure the card with.
    """

    cached: int = 4096
    modules: int = 8
    question: int = 32
    conversations: int = 64
    shared_modules: int = 16
    shared_tokens: int = 512
    answer: int = 64
    many: int = 20_000
    many_tokens: int = 32
    asked: int = 400
    drawn: int = 4
    budgets: tuple[tuple[int, int], ...] = ((500, 1500), (2000, 4000), (6000, 8000))
    repeats: int = 15
    rounds: int = 20
    copied: int = 2 << 30
    product: int = 8192


SIZES: dict[Size, Sizes] = {
    "full": Sizes(),
    "tiny": Sizes(
        cached=72,
        modules=2,
        question=4,
        conversations=3,
        shared_modules=2,
        shared_tokens=16,
        answer=4,
        many=24,
        many_tokens=8,
        asked=12,
        drawn=2,
        budgets=((4, 4), (8, 8)),
        repeats=2,
        rounds=4,
        copied=1 << 20,
        product=64,
    ),
}


def size_named(name: str | None, device: str) -> Size:
    """What --size says: in full on a GPU if None, else tiny. Raises DeskError."""
    if name is None:
        return "tiny" if device == "cpu" else "full"
    for size in SIZES:
        if size == name:
            return size
    raise DeskError(f"--size is {name!r}: give one of {', '.join(SIZES)}", code="usage")
