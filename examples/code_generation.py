"""Source files as modules: each request imports the files it is about, by name.

`data/schemas/code.pml` includes the files of a small game with `src`. The first request computes the files it imports.
The second imports three of these files and computes only its question. The third also computes one new file.
"""

from __future__ import annotations

from shared import SCHEMAS, ask, registry_of, running_engine

from cache.pml.parser import parse_prompt, parse_schema

REQUESTS = {
    "four files, for the first time": """
<prompt schema="code"><unit.py/><map.py/><player.py/><game.py/>
<user>Add a method "repair" to the class Boat that costs one crate and adds one point of hull. Write the method.</user>
</prompt>""",
    "three of them, another change": """
<prompt schema="code"><unit.py/><map.py/><player.py/>
<user>Add a method "can_reach" to the class Player: is there fuel for the whole route to the goal?</user>
</prompt>""",
    "a file that was not there before": """
<prompt schema="code"><unit.py/><weather.py/>
<user>Let a gale cost one unit of fuel. Which lines change?</user>
</prompt>""",
}


def main(max_tokens: int = 60) -> None:
    """Ask for three changes of the game."""
    with running_engine() as engine:
        schemas = registry_of(engine)
        schemas.add(parse_schema((SCHEMAS / "code.pml").read_bytes(), folder=SCHEMAS))
        for title, prompt in REQUESTS.items():
            ask(engine, title, schemas.bind(parse_prompt(prompt)).plan, max_tokens=max_tokens)


if __name__ == "__main__":
    main()
