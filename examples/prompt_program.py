"""A Python function as a schema, and two calls of it as prompts: python examples/prompt_program.py

The schema is made once, and its modules are encoded once. A call chooses some of them and fills their slots.
"""

from __future__ import annotations

from typing import Annotated

from cache.pml.parser import write_prompt, write_schema
from cache.programs import MaxTokens, prompt_program


@prompt_program
def hotel(stars: Annotated[int, MaxTokens(2)], pool: bool = False) -> None:
    "The hotel is near."
    f"It has {stars} stars."
    if pool:
        "Pack swimming things."


@prompt_program
def trip(city: Annotated[str, MaxTokens(8)], nights: int, season: str) -> None:
    "You plan trips & answer in one sentence."
    f"The traveller goes to {city}."
    if nights > 7:
        "It is a long stay."
    else:
        "It is a short stay."
    match season:
        case "summer":
            "Bring sun cream."
        case "winter":
            "Bring a coat."
        case _:
            "Bring an umbrella."
    for day in ("Monday", "Sunday"):
        f"Museums are closed on {day}."
    hotel(3, pool=season == "summer")


def main() -> None:
    """Print the schema of the function, and the prompts of two calls."""
    print(write_schema(trip.schema), end="\n\n")
    print(write_prompt(trip.ask("What do I pack?", city="Oslo", nights=3, season="winter")), end="\n\n")
    print(write_prompt(trip.ask("What do I see first?", "Lisbon", 10, "summer")))


if __name__ == "__main__":
    main()
