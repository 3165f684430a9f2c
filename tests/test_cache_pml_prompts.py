"""Prompts for a schema: what is refused, which ids everything gets, which segments supply it.

Section 4, and what 2.6 says about prompts, beyond the cases of `pml_cases.json`.
"""

from collections.abc import Sequence
from typing import Any

import pytest
from pml_cases import Facts, case_of, facts_of
from test_cache_pml import Runs

from cache.errors import PMLError
from cache.pml.binding import Bound, bind, module_segments
from cache.pml.layout import Layout, lay_out
from cache.pml.nodes import Import, Prompt, Role
from cache.pml.parser import parse_prompt, parse_schema, write_prompt
from cache.prompt.parts import Text
from cache.prompt.plan import Plan, Segment
from cache.prompt.tokenizer import NAMED, WordTokenizer

DESK = """<schema name="desk">h1<module name="a">a1 a2 a3</module>
<union><module name="short">s1</module><module name="long">l1 l2 l3 l4 l5</module></union>
<module name="form"><parameter name="v" length="3" scaffold="p1 p2"/> f1</module>
<module name="empty"/>
<module name="outer">o1<module name="inner">i1 <param name="w" len="1"/> i2</module>
o2<module name="last">z1</module></module>
<module name="live" cache="false">k1 k2</module>
t1</schema>"""
"""h1 0 · a 1-3 · union 4-8 · form 9-12 (slot 9-11) · empty 13 · outer 13-18 (inner 14-16, slot 15) · live 19-20 ·
t1 21 · length 22
"""


def prompt_of(body: str, schema: str = "desk") -> str:
    return f'<prompt schema="{schema}">{body}</prompt>'


def refused(body: str, schema: str = DESK, **options: Any) -> PMLError:
    outcome = facts_of(case_of(schema, body if body.lstrip().startswith("<prompt") else prompt_of(body), **options))
    assert isinstance(outcome, PMLError), outcome
    assert outcome.where == "prompt"
    return outcome


def facts(body: str, schema: str = DESK, **options: Any) -> Facts:
    outcome = facts_of(case_of(schema, prompt_of(body), **options))
    assert not isinstance(outcome, PMLError), outcome
    return outcome


def letters(schema: str, sink_prefix: tuple[int, ...] = ()) -> Layout:
    return lay_out(parse_schema(f"<schema name='s'>{schema}</schema>"), Runs(sink_prefix), roles=NAMED["chatml"])


def bound(layout: Layout, body: str, **options: Any) -> Bound:
    return bind(parse_prompt(prompt_of(body, "s")), layout, **options)


def said(tokens: Sequence[int]) -> str:
    return "".join(chr(token) if token else "." for token in tokens)


@pytest.mark.parametrize(
    ("prompt", "named", "line"),
    [
        ("<prompt>hi</prompt>", "schema=", 1),
        ("\n<prompt name='desk'>hi</prompt>", "'name'", 2),
        ("<prompt schema='desk' xml:space='preserve'>hi</prompt>", "xml:space", 1),
        ("\n" + prompt_of(" \n <!-- nothing --> <?nothing?> "), "empty", 2),
        (prompt_of("<a/>\n<a/>"), "twice", 2),
        (prompt_of("<outer><inner/>\n<inner/></outer>q"), "'outer/inner'", 2),
        (prompt_of("<short/>\n<long/>"), "exclude", 2),
        (prompt_of("<inner/>"), "<outer><inner>", 1),
        (prompt_of("<outer>\n<a/></outer>"), "<a>", 2),
        (prompt_of("\n<A/>"), "<A>", 2),
        (prompt_of("\n<a v='x'/>"), "'v'", 2),
        (prompt_of("\n<outer w='x'><inner/></outer>"), "'w'", 2),
        (prompt_of("<outer>\n<inner/>\nx</outer>"), "<outer>", 1),
        (prompt_of("<a><![CDATA[x]]></a>"), "<a>", 1),
        (prompt_of("\nhm <a/>q"), "before", 1),
        (prompt_of("<user>hm</user><a/>q"), "before", 1),
        (prompt_of("<a>\n<user>x</user></a>"), "<user>", 2),
        (prompt_of("<user>\n<a/></user>"), "<a>", 2),
        (prompt_of("\n<user name='x'>q</user>"), "'name'", 2),
        ("<schema name='desk'/>", "<prompt>", 1),
        ("<prompt schema='desk'>\n<a></b></prompt>", "", 2),
    ],
)
def test_what_a_prompt_cannot_say(prompt, named, line):
    outcome = facts_of(case_of(DESK, prompt, template="chatml"))
    assert isinstance(outcome, PMLError), outcome
    assert outcome.where == "prompt"
    assert named in outcome.message
    assert outcome.line == line


def test_an_unknown_name_comes_with_the_known_ones():
    assert "a, short, long, form, empty" in refused("<ghost/>").message
    assert "inner, last" in refused("<outer><ghost/></outer>").message
    assert "it has: v" in refused("<form x='1'/>").message
    assert "known: desk" in refused("<prompt schema='ghost'>q</prompt>").message


def test_rules_hold_for_what_a_program_builds():
    layout = lay_out(parse_schema(DESK), WordTokenizer())
    with pytest.raises(PMLError, match="'other', not 'desk'"):
        bind(Prompt(schema="other", parts=(Text(text="q"),)), layout)
    with pytest.raises(PMLError, match="no such turn"):
        bind(Prompt(schema="desk", parts=(Role(role="user"),)), layout)
    reference = Import(module="form", arguments=(("v", "1"), ("v", "2")))
    with pytest.raises(PMLError, match=r"<form>.*twice") as caught:
        bind(Prompt(schema="desk", parts=(reference,)), layout)
    assert caught.value.line is None


def test_comments_and_space_are_nothing_anywhere():
    plain = facts("<outer><inner w='x'/><last/></outer><a/>ask me")
    spread = facts(
        "\n <!-- a --> <outer> <!-- b -->\n <inner w='x'> </inner><?c?> <last/> </outer>\n<!-- d -->\n"
        "  <a/>\n  ask <!-- e -->me<?f?>\n"
    )
    assert spread | {"rendered": "ask me"} == plain
    assert spread["rendered"] == "ask me"


def test_a_run_of_text_and_turns_is_trimmed_outside_only():
    layout = letters("<module name='doc'>d</module>")
    user, system = NAMED["chatml"]["user"], NAMED["chatml"]["system"]
    tokenizer = layout.tokenizer
    assert isinstance(tokenizer, Runs)
    tokenizer.seen.clear()
    got = bound(layout, "<doc/> a <user> b </user> c <system/> <system>\n &lt;|im_end|></system> \t e ")
    run = [
        *(("a ", False), (user.open, True), (" b ", False), (user.close, True), (" c ", False)),
        *((system.alone, True), (system.open, True), ("<|im_end|>", False), (system.close, True), (" e", False)),
    ]
    assert tokenizer.seen == [run]
    assert got.rendered == "".join(text for text, _ in run)


@pytest.mark.parametrize(("template", "empty"), [("llama2", "<s> [INST] "), ("chatml", ""), ("falcon", "")])
def test_an_empty_system_turn_has_a_string_of_its_own(template, empty):
    for element in ("<system/>", "<system> \n </system>", "<system><!-- x --></system>"):
        assert facts(f"<a/>{element}", template=template)["rendered"] == empty
    strings = NAMED[template]["user"]
    assert facts("<a/>\n<user/>\n", template=template)["rendered"] == strings.open + strings.close


def test_an_argument_is_taken_as_written_and_placeholders_are_not_inserted():
    layout = letters("<module name='m'>a<param name='p' len='6' scaffold='xyz'/>b</module>")
    plan = bound(layout, "<m p=' a &#9;'/>q").plan
    assert [(span.start, said(span.tokens)) for span in plan.spans] == [(0, "a"), (1, " a \t"), (7, "b"), (8, "q")]
    plan = bound(layout, "<m/>q").plan
    assert [(span.start, said(span.tokens)) for span in plan.spans] == [(0, "a"), (7, "b"), (8, "q")]
    assert [said(segment.tokens) for segment in plan.segments()] == ["axyz...b"]


def shape(plan: Plan) -> list[tuple[int, str, str | None, int]]:
    """Spans of a plan: id, text, name of the segment, row in it."""
    return [(s.start, said(s.tokens), s.segment.name if s.segment else None, s.row) for s in plan.spans]


def test_a_module_is_encoded_with_its_slots_and_without_its_modules():
    layout = letters(
        "r<module name='m'>ab<module name='n'>NNN</module><param name='p' len='3' scaffold='x'/>c</module>s"
    )
    plan = bound(layout, "<m><n/></m>q").plan
    assert shape(plan) == [
        *((0, "r", "s", 0), (1, "ab", "s/m", 0), (3, "NNN", "s/m/n", 0)),
        *((9, "c", "s/m", 5), (10, "s", "s", 1), (11, "q", None, 0)),
    ]
    segments = {segment.name: segment for segment in plan.segments()}
    assert said(segments["s/m"].tokens) == "abx..c"
    assert segments["s/m"].gaps == ((2, 3),)
    assert said(segments["s"].tokens) == "rs"
    assert segments["s"].gaps == ((1, 9),)
    assert [span.offset for span in plan.spans] == [0, 1, 3, 1, 0, 0]


def test_a_slot_behind_the_last_text_is_not_encoded():
    layout = letters("<module name='m'>ab<param name='p' len='3' scaffold='x'/></module>")
    assert [said(segment.tokens) for segment in module_segments(layout)] == ["ab"]


def test_the_sink_prefix_stands_before_all_that_does_not_begin_the_schema():
    layout = letters(
        "<module name='m'><param name='p' len='2'/>b</module><module name='n'>c</module>", sink_prefix=(7, 8)
    )
    by_name = {segment.name: segment for segment in bound(layout, "<n/><m/>q").plan.segments()}
    assert by_name["s/m"] == Segment(name="s/m", tokens=(0, 0, ord("b")), start=0)
    assert by_name["s/n"] == Segment(
        name="s/n", tokens=(ord("c"),), start=2, prefix=Segment(name="sink prefix", tokens=(7, 8))
    )
    fixed = {
        segment.name: segment for segment in bound(layout, "<n/><m/>q", position_independent=False).plan.segments()
    }
    assert (fixed["s/n"].start, fixed["s/n"].prefix) == (3, by_name["s/n"].prefix)


SETS = (
    "r<module name='a'>aa</module><module name='b'>b<param name='p' len='2'/>B</module><module name='c'>c</module>"
    "<union scaffold='g'><module name='g'>gg</module><module name='h'>h</module></union><module name='e'/>{}t"
)


@pytest.mark.parametrize(
    ("scaffolds", "body", "segments"),
    [
        ("a b", "<b/><a/>", ["s", "s/a + s/b"]),
        ("a b", "<b/><a/><c/>", ["s", "s/a + s/b", "s/c"]),
        ("a b|a b c", "<c/><b/><a/>", ["s", "s/a + s/b + s/c"]),  # the larger wins
        ("b c|a b", "<c/><b/><a/>", ["s", "s/a", "s/b + s/c"]),  # of equals the first, and a is left alone
        ("a b|b c", "<c/><b/><a/>", ["s", "s/a + s/b", "s/c"]),
        ("a b|c h|a b c", "<a/><b/><c/><h/>", ["s", "s/a + s/b + s/c", "s/h"]),
        ("", "<g/><c/>", ["s + s/g", "s/c"]),  # the union's shorthand: root text and member
        ("", "<h/>", ["s", "s/h"]),
        ("c g", "<g/><c/>", ["s + s/g", "s/c"]),  # the union was declared first
        ("a c g", "<g/><c/><a/>", ["s", "s/a + s/c + s/g"]),
        ("a e", "<a/><e/>", ["s", "s/a + s/e"]),  # an empty module adds nothing but a name
    ],
)
def test_a_complete_set_replaces_what_it_holds(scaffolds, body, segments):
    sets = "".join(f"<scaffold modules='{modules}'/>" for modules in scaffolds.split("|") if modules)
    layout = letters(SETS.format(sets))
    plan = bound(layout, body + "q").plan
    assert [segment.name for segment in plan.segments()] == segments
    alone = bound(letters(SETS.format("").replace(" scaffold='g'", "")), body + "q").plan
    assert plan.without_segments() == alone.without_segments(), "sets move nothing"
    assert set(plan.segments()) <= set(module_segments(layout)), "all of it can be encoded ahead of use"


def test_a_set_is_encoded_in_id_order_with_its_slots():
    layout = letters(SETS.format("<scaffold modules='c b'/>"))
    plan = bound(layout, "<c/><b p='1'/><a/>q").plan
    (segment,) = (segment for segment in plan.segments() if "+" in segment.name)
    assert (said(segment.tokens), segment.gaps) == ("b..Bc", ())
    assert [s for s in shape(plan) if s[2] == segment.name] == [
        *((3, "b", segment.name, 0), (6, "B", segment.name, 3), (7, "c", segment.name, 4))
    ]


def test_a_unions_scaffold_in_a_module_is_a_set_with_its_text():
    layout = letters(
        "r<module name='m'>m<union scaffold='x'><module name='x'>xx</module><module name='y'/></union>n</module>"
    )
    plan = bound(layout, "<m><x/></m>q").plan
    segment = plan.segments()[1]
    assert (segment.name, said(segment.tokens), segment.gaps) == ("s/m + s/m/x", "mxxn", ())
    assert shape(plan)[1:4] == [(1, "m", segment.name, 0), (2, "xx", segment.name, 1), (4, "n", segment.name, 3)]
    assert [segment.name for segment in bound(layout, "<m><y/></m>q").plan.segments()] == ["s", "s/m"]


@pytest.mark.parametrize(
    "parts",
    [
        (Text(text=" q"),),
        (Import(module="a"), Text(text=" q")),
        (Role(role="user", children=(Text(text="q\n"),)),),
        (Text(text="q", tokens=(1,)),),
        (Text(text="<s>", structural=True),),
        (Text(text="\x00"),),
        (Import(module="a", arguments=(("v", "\ud800"),)),),
    ],
)
def test_what_the_language_cannot_say_is_not_written(parts):
    with pytest.raises(ValueError):
        write_prompt(Prompt(schema="s", parts=parts))
