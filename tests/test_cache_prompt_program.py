"""Prompt programs: what each statement becomes, what calls import, what is refused and where."""

# ruff: noqa: B021

import functools
import sys
import types
from pathlib import Path
from typing import Annotated, Any

import pytest
from recording import Recorder, answer, running
from tiny import build, oracle_logits, stock

from cache.errors import PMLError
from cache.pml.binding import Registry, module_segments
from cache.pml.nodes import Import, Module, Parameter, Prompt, Schema, Union, check_schema, walk
from cache.pml.parser import parse_prompt, parse_schema, write_prompt, write_schema
from cache.programs import MaxTokens, PromptProgram, prompt_program
from cache.prompt.parts import Text

City = Annotated[str, MaxTokens(8, "somewhere")]


@prompt_program
def hotel(stars: Annotated[int, MaxTokens(2)], pool: bool = False) -> None:
    f"A hotel with {stars} stars."
    if pool:
        "It has a pool."


@prompt_program
def trip(city: Annotated[str, MaxTokens(12)], hurry: bool, season: str) -> None:
    "You plan trips."
    f"The traveller goes to {city}."
    if hurry:
        "Be quick."
    match season:
        case "summer":
            "Bring sun cream."
        case "winter":
            f"Bring a coat to {city}."
        case _:
            "Bring an umbrella."


def inside(program: PromptProgram[Any]) -> tuple[Any, ...]:
    check_schema(program.schema)
    assert parse_schema(write_schema(program.schema)) == program.schema
    (module,) = program.schema.children
    assert isinstance(module, Module)
    return module.children


def names(children: tuple[Any, ...]) -> list[Any]:
    return [
        [member.name for member in child.members] if isinstance(child, Union) else child.name
        for child in children
        if isinstance(child, Module | Union)
    ]


def taken(prompt: Prompt) -> list[str]:
    (root,) = (part for part in prompt.parts if isinstance(part, Import))

    def paths(reference: Import, path: str) -> list[str]:
        return [path, *(below for child in reference.children for below in paths(child, f"{path}/{child.module}"))]

    return [path for child in root.children for path in paths(child, child.module)]


def arguments(prompt: Prompt, *path: str) -> dict[str, str]:
    (reference,) = (part for part in prompt.parts if isinstance(part, Import))
    for name in path:
        (reference,) = (child for child in reference.children if child.module == name)
    return dict(reference.arguments)


def words(program: PromptProgram[Any]) -> list[str]:
    return [node.text for event, node in walk(program.schema) if event == "enter" and isinstance(node, Text)]


def load(tmp_path: Path, text: str) -> dict[str, Any]:
    path = tmp_path / "programs.py"
    path.write_text(text, encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "programs"}
    exec(compile(text, str(path), "exec", dont_inherit=True), namespace)
    return namespace


def test_strings_are_lines_of_literal_text():
    @prompt_program
    def rules(name: City) -> None:
        "a < b && c > d </module> ]]> &amp; <user> \r é 日本 \U0001f600 \t"
        pass
        """ Three,
            indented."""
        ""
        f"{{{name}}} & {{name}}"

    first, slot, last = inside(rules)
    text = "a < b && c > d </module> ]]> &amp; <user> \r é 日本 \U0001f600 \t\n Three,\n            indented.\n\n{"
    assert first == Text(text=text)
    assert slot == Parameter(name="name", length=8, placeholder="somewhere")
    assert last == Text(text="} & {name}\n")


def test_if_is_a_module_imported_by_truth_and_with_else_a_union():
    @prompt_program
    def rules(fast: object) -> None:
        "One."
        if fast:
            "Two."
        "Three."
        if fast:
            pass

    @prompt_program
    def stay(nights: int) -> None:
        if nights > 7:
            "Long."
        elif nights > 3:
            "Middling."
        else:
            "Short."

    assert inside(rules) == (
        Text(text="One.\n"),
        Module(name="if-fast", children=(Text(text="Two.\n"),)),
        Text(text="Three.\n"),
        Module(name="if-fast-2"),
    )
    assert [len(taken(rules(value))) for value in (True, 3, [0], False, 0, "", None)] == [2, 2, 2, 0, 0, 0, 0]
    assert names(inside(stay)) == [["if-nights-7", "elif-nights-3", "else"]]
    assert [taken(stay(nights)) for nights in (9, 5, 1)] == [["if-nights-7"], ["elif-nights-3"], ["else"]]


def test_branches_hold_statements_and_further_branches():
    @prompt_program
    def rules(city: City, fast: bool, nights: int) -> None:
        if fast:
            "Be quick."
            f"Leave {city}."
            if nights > 3:
                "Pack."
                f"Then {city}, {city}."
            else:
                "Go."
            "Now."
        else:
            match nights:
                case 1:
                    "Relax."

    assert names(inside(rules)) == [["if-fast", "else"]]
    (union,) = inside(rules)
    first, second = union.members
    assert (names(first.children), names(second.children)) == ([["if-nights-3", "else"]], [["case-1"]])
    prompt = rules("Oslo", True, 4)
    assert taken(prompt) == ["if-fast", "if-fast/if-nights-3"]
    assert arguments(prompt) == {}
    assert arguments(prompt, "if-fast") == {"city": "Oslo"}
    assert arguments(prompt, "if-fast", "if-nights-3") == {"city": "Oslo", "city-2": "Oslo"}
    assert taken(rules("Oslo", True, 1)) == ["if-fast", "if-fast/else"]
    assert taken(rules("Oslo", False, 1)) == ["else", "else/case-1"]
    assert taken(rules("Oslo", False, 2)) == ["else"], "none of the cases"


LIMIT = 3


def test_conditions_see_names_around_them_as_they_are_when_called(monkeypatch):
    words = ["late"]

    @prompt_program
    def rules(nights: int, word: str = "late") -> None:
        if nights > LIMIT:
            "Long."
        if any(word == other and nights for other in words):
            "Listed."
        if word and later:
            "Later."

    with pytest.raises(NameError, match="later"):
        rules(3)
    later = False
    assert taken(rules(3)) == ["if-any-word-other-and-nights-for-other-i"]
    monkeypatch.setattr(sys.modules[__name__], "LIMIT", 2)
    words, later = [], True
    assert taken(rules(3)) == ["if-nights-LIMIT", "if-word-and-later"]


def test_conditions_may_name_the_program_itself():
    @prompt_program
    def inner(piece: Any) -> None:
        if piece is inner and (lambda: inner)() is inner:
            "Itself."

    assert [len(taken(inner(piece))) for piece in (inner, trip)] == [1, 0]


def test_errors_of_conditions_are_raised_as_they_are():
    @prompt_program
    def rules(nights: Any) -> None:
        "One."
        if nights > 3:
            "Long."

    with pytest.raises(TypeError, match="not supported between") as failure:
        rules("many")
    place, first = failure.traceback[-1], rules.__wrapped__.__code__.co_firstlineno
    assert (place.path.name, place.lineno + 1, place.name) == (Path(__file__).name, first + 3, "rules")


def test_match_is_a_union_with_the_rest_as_a_member():
    @prompt_program
    def rules(season: object, nights: int) -> None:
        match season:
            case "summer" if nights > 3:
                "Bring sun cream."
            case 1 | -2 | "été":
                "Bring a coat."
            case _:
                "Bring an umbrella."

    warm, cold, rest = "case-summer-if-nights-3", "case-1-2-t", "case-_"
    assert names(inside(rules)) == [[warm, cold, rest]]
    asked = [("summer", 4), ("summer", 3), (1, 0), (-2, 0), ("été", 0), (None, 0), ("1", 0)]
    assert [taken(rules(*given)) for given in asked] == [[warm], [rest], [cold], [cold], [cold], [rest], [rest]]


def test_declared_arguments_are_parameters():
    children = inside(trip)
    assert children[:3] == (
        Text(text="You plan trips.\nThe traveller goes to "),
        Parameter(name="city", length=12),
        Text(text=".\n"),
    )
    assert names(children[3:]) == ["if-hurry", ["case-summer", "case-winter", "case-_"]]
    asked = trip.ask("Where <to>?", "Oslo", True, season="winter")
    choices = (Import(module="if-hurry"), Import(module="case-winter", arguments=(("city", "Oslo"),)))
    part = Import(module="trip", arguments=(("city", "Oslo"),), children=choices)
    assert asked == Prompt(schema=trip.schema.name, parts=(part, Text(text="Where <to>?")))
    assert trip("Oslo", True, "winter") == Prompt(schema=trip.schema.name, parts=(part,))
    assert parse_prompt(write_prompt(asked)) == asked


def test_lengths_are_read_from_annotations_that_are_text_or_not(tmp_path):
    text = """
@prompt_program
def here(a: City, b: "City", c: Annotated[int, "other", MaxTokens(3)], *, d: Annotated[str, MaxTokens(2)] = "x"):
    f"{a}{b}{c}{d}"
"""
    here = load(tmp_path, HEAD + text)["here"]
    assert [child.length for child in inside(here) if isinstance(child, Parameter)] == [8, 8, 3, 2]
    assert arguments(here("1", b="2", c=3)) == {"a": "1", "b": "2", "c": "3", "d": "x"}


def test_loops_over_constants_are_unrolled():
    @prompt_program
    def rules(city: City, free: str) -> None:
        for day in ("Monday", "Tuesday"):
            f"On {day} in {city}:"
            for part in range(2, 0, -1):
                f"part {part} of {day}"
            if day == free:
                f"{day} is free."

    assert words(rules) == [
        text
        for day in ("Monday", "Tuesday")
        for text in (f"On {day} in ", f":\npart 2 of {day}\npart 1 of {day}\n", f"{day} is free.\n")
    ]
    assert names(inside(rules)) == ["if-day-free", "if-day-free-2"]
    prompt = rules("Oslo", "Tuesday")
    assert (taken(prompt), arguments(prompt)) == (["if-day-free-2"], {"city": "Oslo", "city-2": "Oslo"})


def test_a_call_is_a_nested_module():
    other = types.SimpleNamespace(programs=types.SimpleNamespace(hotel=hotel))

    @prompt_program
    def tour(stars: int, wet: bool) -> None:
        "A tour."
        hotel(stars, pool=wet)
        if wet:
            hotel(stars=10 // stars)
        other.programs.hotel(stars + 1)
        for stars_too in (1, 2):
            hotel(stars_too)

    assert names(inside(tour)) == ["hotel", "if-wet", "hotel-2", "hotel-3", "hotel-4"]
    assert inside(tour)[1] == hotel.program.section.module
    prompt = tour(3, True)
    assert taken(prompt) == ["hotel", "hotel/if-pool", "if-wet", "if-wet/hotel", "hotel-2", "hotel-3", "hotel-4"]
    assert [arguments(prompt, name)["stars"] for name in ("hotel", "hotel-2", "hotel-3", "hotel-4")] == list("3412")
    assert arguments(prompt, "if-wet", "hotel") == {"stars": "3"}
    assert taken(tour(0, False)) == ["hotel", "hotel-2", "hotel-3", "hotel-4"], "what is not reached is not evaluated"


def test_names_are_valid_unique_and_not_reserved(tmp_path):
    source = """
@prompt_program
def user(module: City, größe: City, é: City, è: City, on: bool):
    f"{module}{größe}{é}{è}"
    if on: "1"
    if not on: "2"
    if on: "3"
    else: "4"

@prompt_program
def 日本():
    user("a", "b", "c", "d", on=True)
"""
    namespace = load(tmp_path, HEAD + source)
    user, japan = namespace["user"], namespace["日本"]
    assert names(inside(user)) == ["if-on", "if-not-on", ["if-on-2", "else"]]
    assert names(user.schema.children) == ["user-2"]
    assert arguments(user("a", "b", "c", "d", True)) == {"module": "a", "gr-e": "b", "slot": "c", "slot-2": "d"}
    assert (names(japan.schema.children), names(inside(japan))) == (["program"], ["user-2"])


def test_the_schemas_name_is_a_digest_of_its_content(tmp_path):
    def name(text: str) -> str:
        schema: Schema = load(tmp_path, HEAD + "@prompt_program\n" + text)["f"].schema
        return schema.name

    same = name("def f(a: City):\n f'{a}'\n if a: 'x'")
    assert trip.schema.name == "trip-e99a482b22a59783e1c11b7c57e4b1fb", "in every process"
    assert name("\n# moved\ndef f(a: City, b=1):\n\n    f'{a}'\n    if a:\n        'x'") == same
    others = [
        "def f(a: City):\n f'{a}'\n if a: 'y'",
        "def f(a: City):\n f'{a}'\n match a:\n  case 'a': 'x'",
        "def f(a: Annotated[str, MaxTokens(8, 'here')]):\n f'{a}'\n if a: 'x'",
    ]
    assert len({same, *map(name, others)}) == 1 + len(others)


def test_arguments_may_have_any_name_and_a_program_looks_like_its_function():
    @prompt_program
    def rules(self: City, text: City, args: City) -> None:
        f"{self}{text}{args}"

    assert arguments(rules.ask("?", self="a", text="b", args="c")) == {"self": "a", "text": "b", "args": "c"}
    assert (trip.__name__, trip.__module__, trip.__doc__) == ("trip", __name__, "You plan trips.")
    with pytest.raises(TypeError, match="missing a required argument: 'season'"):
        trip.ask("?", "Oslo", True)
    with pytest.raises(TypeError, match="unexpected keyword argument 'text'"):
        trip("Oslo", True, season="winter", text="?")


HEAD = """from __future__ import annotations

from typing import Annotated
from test_cache_prompt_program import City, MaxTokens, hotel, prompt_program, wrapped

"""


def wrapped(function: Any) -> Any:
    @functools.wraps(function)
    def call() -> Any:
        return function()

    return call


STATEMENTS = [
    ("while hurry:  # here\n    'x'", "`while hurry:` is not allowed; a program is made of strings, `if`, `match`"),
    ("x = 3", "`x = 3` is not allowed"),
    ("print(city)", "`print(city)` is not a call of a prompt program; compute the value before"),
    ("later(city)", "`later` is not known yet; define the program above this one"),
    ("if nights > 3:\n    f(city, nights - 1, hurry)  # here", "a program cannot contain itself"),
    ("hotel()", "`hotel()`: missing a required argument: 'stars'; call it as it is defined"),
    ("hotel(*city)", "write the arguments out, without `*` and `**`"),
    ("f'{city.upper()}'", "`city.upper()` in an f-string: only bare names"),
    ("f'{city:>8}'", "`city` in an f-string: only bare names, without formatting"),
    ("'x'\nf'Stay {nights} nights.'  # here", "`{nights}` has no maximum length; declare it, as in `nights:"),
    ("f'{City}'", "`{City}` is not an argument of the program; make it one"),
    ("for x in (1, 2):\n    'x'\nif x == 2:  # here\n    'y'", "`x` has a value only inside its loop; choose another"),
    ("if x := city:  # here\n    'x'", "`(x := city)` is not a plain expression"),
    ("match city:\n    case 'a' | None:  # here\n        'x'", "`case None` is not a constant"),
    ("for x in city:  # here\n    'x'", "`city` is not a list of strings or numbers; write the"),
    ("for x in range(nights):  # here\n    'x'", "`range(nights)` is not a list of strings"),
    ("for x, y in ((1, 2), (3, 4)):  # here\n    'x'", "`(x, y)`: a loop has one variable"),
    ("for city in (1, 2):  # here\n    'x'", "`city` has a value already; choose"),
    ("for x in (1,):\n    'x'\nelse:\n    'y'  # here", "a loop's `else` always runs"),
    ("'x\\x00y'", "'x\\x00y\\n' holds a control character; leave it out"),
    ("if hurry:\n    'x'\nelse:\n    if nights:\n        'y'\n    else:\n        x = 3  # here", "`x = 3`"),
    ("'''One\n\nTwo'''\nx = 3  # here", "`x = 3`"),
]


def refusal(tmp_path: Path, text: str) -> PMLError:
    with pytest.raises(PMLError) as failure:
        load(tmp_path, text)
    error = failure.value
    (line,) = (number for number, line in enumerate(text.splitlines(), start=1) if "# here" in line)
    assert error.where == "program"
    assert str(error) == f"{tmp_path / 'programs.py'}:{line}: {error.message}"
    return error


@pytest.mark.parametrize(("statements", "message"), STATEMENTS)
def test_what_cannot_be_said_is_refused_with_its_line(tmp_path, statements, message):
    marked = statements if "# here" in statements else statements + "  # here"
    lines = ["@prompt_program", "def f(city: City, nights: int, hurry: bool):", "    'One.'"]
    lines += [f"    {line}" for line in marked.splitlines()]
    assert message in refusal(tmp_path, HEAD + "\n".join(lines)).message
    inner = "if True:\n" + "\n".join("    " + line for line in lines)
    assert message in refusal(tmp_path, HEAD + inner).message


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ("@prompt_program  # here\nasync def f():\n    'x'", "`async` has no meaning in a prompt; write a plain `def`"),
        ("f = prompt_program(lambda: 'x')  # here", "a lambda has no statements; write a `def`"),
        ("@prompt_program  # here\n@wrapped\ndef f():\n    'x'", "another decorator is below"),
        ("@prompt_program\ndef f(*cities):  # here\n    'x'", "`cities`: a program has named arguments"),
        (
            "@prompt_program\ndef f(a: int,\n      b: Annotated[str, MaxTokens(0)]):  # here\n    f'{b}'",
            "MaxTokens(length=0, placeholder=''): give a whole number of tokens, 1 or more",
        ),
        (
            "@prompt_program\ndef f(b: Annotated[str, MaxTokens(3, '\\x00')]):  # here\n    'x'",
            "the placeholder holds a control character",
        ),
        (
            "@prompt_program\ndef f(b: Unknown):  # here\n    'x'",
            "its annotations cannot be read: name 'Unknown' is not defined; define the types at the top of the file",
        ),
    ],
)
def test_definitions_that_are_no_programs_are_refused(tmp_path, definition, message):
    assert message in refusal(tmp_path, HEAD + definition).message


def test_a_function_without_its_source_is_refused(tmp_path):
    namespace: dict[str, Any] = {}
    exec("\ndef f():\n    'x'\n", namespace)
    with pytest.raises(PMLError, match=r"^<string>:2: its source cannot be read; define it in a file$"):
        prompt_program(namespace["f"])
    f = load(tmp_path, "def f():\n    'x'\n")["f"]
    (tmp_path / "programs.py").write_text("def g():\n    'x'\n")
    with pytest.raises(PMLError, match="its file has changed since it was loaded"):
        prompt_program(f)


def test_other_things_are_refused():
    for thing in (3, len, trip):
        with pytest.raises(PMLError, match="is not a function; put the decorator on a `def`") as failure:
            prompt_program(thing)
        assert failure.value.where == "program"


def test_calls_share_every_module():
    recorder = Recorder(model := build())
    with running(model) as engine:
        schemas = Registry.for_model(engine.model.tokenizer, engine.model.info)
        layout = schemas.add(trip.schema)
        engine.encode(module_segments(layout)).result(timeout=60)
        prompts = [trip.ask("Where to?", "Oslo", True, "winter"), trip.ask("And?", "Bergen", True, "summer")]
        plans = [schemas.bind(prompt).plan for prompt in prompts]
        completions = [answer(engine, plan) for plan in plans]
    assert [use.source for completion in completions for use in completion.modules] == ["device"] * 6
    for plan, logits in zip(plans, recorder.logits[-2:], strict=True):
        assert (logits - oracle_logits(stock(), plan)).abs().max() < 1e-4
