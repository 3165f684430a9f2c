"""A schema with parameters, unions and optional modules: two customers, two trips, the same encoded modules.

The schema is encoded once, in advance. A prompt then computes only its arguments and its question. At the end the
second question is asked again without reuse: the same tokens at the same position ids.
"""

from __future__ import annotations

from shared import SCHEMAS, ask, registry_of, running_engine

from cache.pml.parser import parse_prompt, parse_schema

LISBON = """
<prompt schema="trip">
  <plan city="Lisbon" duration="three days" travellers="two adults and a girl of six" budget="120 euros"/>
  <family/>
  <spring-or-autumn/>
  <food><vegetarian/></food>
  <getting-around><by-transit/></getting-around>
  <user>What shall we do on the first day? We land at noon.</user>
</prompt>"""
VIENNA = """
<prompt schema="trip">
  <plan city="Vienna" duration="a long weekend" travellers="a couple in their sixties"/>
  <culture/>
  <winter/>
  <food><allergies what="peanuts and sesame"/></food>
  <step-free/>
  <user>Which museum would you start with, and why?</user>
</prompt>"""


def main(max_tokens: int = 60) -> None:
    """Encode the schema, then plan both trips."""
    with running_engine() as engine:
        schemas = registry_of(engine)
        layout = schemas.add(parse_schema((SCHEMAS / "trip.pml").read_bytes()))
        encoded = engine.encode(schemas.segments_of(layout)).result().computed
        print(f"{encoded} modules encoded; the schema has {layout.length} position ids")
        lisbon, vienna = (schemas.bind(parse_prompt(prompt)).plan for prompt in (LISBON, VIENNA))
        ask(engine, "Lisbon, with a child", lisbon, max_tokens=max_tokens)
        ask(engine, "Vienna, in winter", vienna, max_tokens=max_tokens)
        ask(engine, "Vienna, nothing reused", vienna, max_tokens=max_tokens, reuse="off")


if __name__ == "__main__":
    main()
