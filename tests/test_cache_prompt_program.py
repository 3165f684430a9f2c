"""Prompt programs: what each statement becomes, what calls import, what is refused and where."""

# ruff: noqa: B021

import os
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from recording import Recorder, answer, running
from tiny import build, oracle_logits, stock

from cache.errors import PMLError
from cache.pml.binding import Registry, module_segments
from cache.pml.nodes import Import, Module, Parameter, Prompt, Schema, Union, check_schema, walk
from cache.pml.parser import parse_prompt, parse_schema, write_prompt, write_schema
from cache.programs.prompt_program import MaxTokens, PromptProgram, prompt_program
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
    """Children of the module that is the program."""
    check_schema(program.schema)
    assert parse_schema(write_schema(program.schema)) == program.schema
    (module,) = program.schema.children
    assert isinstance(module, Module)
    assert isinstance(program.program.section.module, Module)
    return module.children


def names(children: tuple[Any, ...]) -> list[Any]:
    """Names of modules, in lists those of unions."""
    return [
        [member.name for member in child.members] if isinstance(child, Union) else child.name
        for child in children
        if isinstance(child, Module | Union)
    ]


def taken(prompt: Prompt) -> list[str]:
    """Paths of what a prompt imports, below the program's own module."""
    (root,) = (part for part in prompt.parts if isinstance(part, Import))

    def paths(reference: Import, path: str) -> list[str]:
        return [path, *(below for child in reference.children for below in paths(child, f"{path}/{child.module}"))]

    return [path for child in root.children for path in paths(child, child.module)]


def arguments(prompt: Prompt, *path: str) -> dict[str, str]:
    """Arguments of the reference at a path below the program's own module."""
    (reference,) = (part for part in prompt.parts if isinstance(part, Import))
    for name in path:
        (reference,) = (child for child in reference.children if child.module == name)
    return dict(reference.arguments)


def words(program: PromptProgram[Any]) -> list[str]:
    """All text of a schema, in order."""
    return [node.text for event, node in walk(program.schema) if event == "enter" and isinstance(node, Text)]


def load(tmp_path: Path, text: str) -> dict[str, Any]:
    """Run a file of prompt programs."""
    path = tmp_path / "programs.py"
    path.write_text(text, encoding="utf-8")
    namespace: dict[str, Any] = {"__name__": "programs"}
    exec(compile(text, str(path), "exec", dont_inherit=True), namespace)
    return namespace


# Text


def test_a_string_is_a_line_of_text() -> None:
    @prompt_program
    def rules() -> None:
        "One."
        "Two,  as written \t"
        """ Three,
            indented."""
        ""

    assert inside(rules) == (Text(text="One.\nTwo,  as written \t\n Three,\n            indented.\n\n"),)


def test_text_is_literal() -> None:
    @prompt_program
    def rules(name: City) -> None:
        "a < b && c > d </module> ]]> &amp; <user> \r é 日本 \U0001f600"
        f"{{{name}}} & {{name}}"

    first, slot, last = inside(rules)
    assert first == Text(text="a < b && c > d </module> ]]> &amp; <user> \r é 日本 \U0001f600\n{")
    assert slot == Parameter(name="name", length=8, placeholder="somewhere")
    assert last == Text(text="} & {name}\n")


@pytest.mark.parametrize("edge", [" ", "\n", "\t", "\r\n", " \n ", ""])
def test_whitespace_at_edges_is_kept(tmp_path: Path, edge: str) -> None:
    text = f"""
@prompt_program
def rules(name: City, fast: bool):
    f"{{name}}"
    if fast:
        {edge!r}
    {edge + "x" + edge!r}
"""
    rules = load(tmp_path, HEAD + text)["rules"]
    slot, line, fast, last = inside(rules)
    assert (slot.name, line, last) == ("name", Text(text="\n"), Text(text=f"{edge}x{edge}\n"))
    assert fast.children == (Text(text=edge + "\n"),)


def test_pass_is_nothing() -> None:
    @prompt_program
    def rules(fast: bool) -> None:
        "One."
        pass
        "Two."
        if fast:
            pass

    text, module = inside(rules)
    assert text == Text(text="One.\nTwo.\n")
    assert module == Module(name="if-fast")
    assert taken(rules(fast=True)) == ["if-fast"]


# Conditions


@pytest.mark.parametrize(
    ("value", "imported"),
    [(True, True), (3, True), ([0], True), (False, False), (0, False), ("", False), (None, False)],
)
def test_if_is_a_module_imported_by_truth(value: object, imported: bool) -> None:
    @prompt_program
    def rules(fast: object) -> None:
        "One."
        if fast:
            "Two."
        "Three."

    assert inside(rules) == (
        Text(text="One.\n"),
        Module(name="if-fast", children=(Text(text="Two.\n"),)),
        Text(text="Three.\n"),
    )
    assert taken(rules(value)) == (["if-fast"] if imported else [])


@prompt_program
def stay(nights: int) -> None:
    if nights > 7:
        "Long."
    elif nights > 3:
        "Middling."
    else:
        "Short."


def test_if_elif_else_is_a_union() -> None:
    assert inside(stay) == (
        Union(
            members=(
                Module(name="if-nights-7", children=(Text(text="Long.\n"),)),
                Module(name="elif-nights-3", children=(Text(text="Middling.\n"),)),
                Module(name="else", children=(Text(text="Short.\n"),)),
            )
        ),
    )
    assert [taken(stay(nights)) for nights in (9, 5, 1)] == [["if-nights-7"], ["elif-nights-3"], ["else"]]


def test_branches_hold_statements_and_further_branches() -> None:
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
    assert names(first.children) == [["if-nights-3", "else"]]
    assert names(second.children) == [["case-1"]]
    prompt = rules("Oslo", True, 4)
    assert taken(prompt) == ["if-fast", "if-fast/if-nights-3"]
    assert arguments(prompt) == {}
    assert arguments(prompt, "if-fast") == {"city": "Oslo"}
    assert arguments(prompt, "if-fast", "if-nights-3") == {"city": "Oslo", "city-2": "Oslo"}
    assert taken(rules("Oslo", True, 1)) == ["if-fast", "if-fast/else"]
    assert taken(rules("Oslo", False, 1)) == ["else", "else/case-1"]
    assert taken(rules("Oslo", False, 2)) == ["else"]


def test_only_conditions_that_are_reached_are_evaluated() -> None:
    asked: list[str] = []

    def ask(name: str, value: bool) -> bool:
        asked.append(name)
        return value

    @prompt_program
    def rules(a: bool, b: bool, c: bool) -> None:
        if ask("a", a):
            if ask("b", b):
                "B."
        elif ask("c", c):
            "C."

    assert asked == []
    assert (taken(rules(False, True, False)), asked) == ([], ["a", "c"])
    asked.clear()
    assert (len(taken(rules(True, True, True))), asked) == (2, ["a", "b"])


LIMIT = 3


def test_conditions_see_globals_and_the_functions_around_as_they_are_when_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    words = ["late"]

    @prompt_program
    def rules(nights: int, word: str = "late") -> None:
        if nights > LIMIT:
            "Long."
        if any(word == other and nights for other in words):
            "Listed."

    assert taken(rules(3)) == ["if-any-word-other-and-nights-for-other-i"]
    monkeypatch.setattr(sys.modules[__name__], "LIMIT", 2)
    words = []
    assert taken(rules(3)) == ["if-nights-LIMIT"]


@prompt_program
def around(piece: Any) -> None:
    if piece is around:
        "Itself."


def test_conditions_may_name_the_program_itself() -> None:
    @prompt_program
    def inner(piece: Any) -> None:
        if piece is inner and (lambda: inner)() is inner:
            "Itself."

    assert (taken(around(around)), taken(around(inner))) == (["if-piece-is-around"], [])
    assert (len(taken(inner(inner))), taken(inner(around))) == (1, [])


def test_conditions_may_name_what_gets_a_value_later() -> None:
    @prompt_program
    def rules() -> None:
        if later:
            "Later."

    with pytest.raises(NameError, match="later"):
        rules()
    later = True
    assert taken(rules()) == ["if-later"]


def test_errors_of_conditions_are_raised_as_they_are() -> None:
    @prompt_program
    def rules(nights: Any) -> None:
        "One."
        if nights > 3:
            "Long."
        if undefined:  # noqa: F821
            "Never."

    with pytest.raises(TypeError, match="not supported between") as failure:
        rules("many")
    place = failure.traceback[-1]
    assert (place.path.name, place.lineno + 1, place.name) == (
        Path(__file__).name,
        rules.__wrapped__.__code__.co_firstlineno + 3,
        "rules",
    )
    with pytest.raises(NameError, match="undefined"):
        rules(3)


# Match


def test_match_is_a_union_with_the_rest_as_a_member() -> None:
    @prompt_program
    def rules(season: object) -> None:
        match season:
            case "summer":
                "Bring sun cream."
            case 1 | -2 | "new year":
                "Bring a coat."
            case _:
                "Bring an umbrella."

    assert names(inside(rules)) == [["case-summer", "case-1-2-new-year", "case-_"]]
    expected = {"summer": "case-summer", 1: "case-1-2-new-year", -2: "case-1-2-new-year", None: "case-_", "1": "case-_"}
    assert {season: taken(rules(season)) for season in expected} == {key: [name] for key, name in expected.items()}


def test_match_without_the_rest_may_import_nothing() -> None:
    @prompt_program
    def rules(season: str) -> None:
        match season:
            case "winter":
                "Bring a coat."

    assert inside(rules) == (Union(members=(Module(name="case-winter", children=(Text(text="Bring a coat.\n"),)),)),)
    assert (taken(rules("winter")), taken(rules("summer"))) == (["case-winter"], [])


def test_match_on_an_expression_with_guards() -> None:
    @prompt_program
    def rules(season: str, nights: int) -> None:
        match season.lower():
            case "winter" if nights > 3:
                "Bring two coats."
            case "winter":
                "Bring a coat."
            case "":
                "Choose."
            case "été":
                "Bien."

    assert names(inside(rules)) == [["case-winter-if-nights-3", "case-winter", "case", "case-t"]]
    assert taken(rules("WINTER", 4)) == ["case-winter-if-nights-3"]
    assert taken(rules("Winter", 2)) == ["case-winter"]
    assert taken(rules("", 2)) == ["case"]


def test_the_subject_is_evaluated_once() -> None:
    seasons = iter(["autumn", "winter"])

    @prompt_program
    def rules() -> None:
        match next(seasons):
            case "winter":
                "Bring a coat."
            case _:
                "Bring a hat."

    assert taken(rules()) == ["case-_"]


# Parameters


def test_declared_arguments_are_parameters() -> None:
    children = inside(trip)
    assert children[:3] == (
        Text(text="You plan trips.\nThe traveller goes to "),
        Parameter(name="city", length=12),
        Text(text=".\n"),
    )
    assert names(children[3:]) == ["if-hurry", ["case-summer", "case-winter", "case-_"]]
    prompt = trip("Oslo", True, season="winter")
    assert prompt == Prompt(
        schema=trip.schema.name,
        parts=(
            Import(
                module="trip",
                arguments=(("city", "Oslo"),),
                children=(Import(module="if-hurry"), Import(module="case-winter", arguments=(("city", "Oslo"),))),
            ),
        ),
    )
    assert parse_prompt(write_prompt(prompt)) == prompt


def test_an_argument_used_twice_has_two_slots() -> None:
    @prompt_program
    def rules(city: City, city_2: City) -> None:
        f"{city} or {city}"
        f"{city_2}{city}"

    slots = [child for child in inside(rules) if isinstance(child, Parameter)]
    assert [slot.name for slot in slots] == ["city", "city-2", "city_2", "city-3"]
    assert arguments(rules("a", "b")) == {"city": "a", "city-2": "a", "city_2": "b", "city-3": "a"}


def test_lengths_are_read_from_annotations_that_are_text_or_not(tmp_path: Path) -> None:
    text = """
@prompt_program
def here(a: City, b: "City", c: Annotated[int, "other", MaxTokens(3)], *, d: Annotated[str, MaxTokens(2)] = "x"):
    f"{a}{b}{c}{d}"
"""
    children = inside(load(tmp_path, HEAD + text)["here"])
    assert [child.length for child in children if isinstance(child, Parameter)] == [8, 8, 3, 2]


def test_defaults_fill_what_a_call_leaves_out() -> None:
    @prompt_program
    def rules(city: City = "Oslo", /, *, fast: bool = True) -> None:
        f"To {city}."
        if fast:
            "Be quick."

    assert (arguments(rules()), taken(rules())) == ({"city": "Oslo"}, ["if-fast"])
    assert (arguments(rules("Rome")), taken(rules(fast=False))) == ({"city": "Rome"}, [])


# Loops


def test_loops_over_constants_are_unrolled() -> None:
    @prompt_program
    def rules(city: City, free: str) -> None:
        for day in ("Monday", "Tuesday"):
            f"On {day} in {city}:"
            for part in range(1, 3):
                f"part {part} of {day}"
            if day == free:
                f"{day} is free."

    assert words(rules) == [
        "On Monday in ",
        ":\npart 1 of Monday\npart 2 of Monday\n",
        "Monday is free.\n",
        "On Tuesday in ",
        ":\npart 1 of Tuesday\npart 2 of Tuesday\n",
        "Tuesday is free.\n",
    ]
    assert names(inside(rules)) == ["if-day-free", "if-day-free-2"]
    prompt = rules("Oslo", "Tuesday")
    assert (taken(prompt), arguments(prompt)) == (["if-day-free-2"], {"city": "Oslo", "city-2": "Oslo"})


@pytest.mark.parametrize(
    ("values", "text"),
    [("[1, -2.5, True]", "1;-2.5;True;"), ("range(3)", "0;1;2;"), ("range(4, 0, -2)", "4;2;"), ("('<',)", "<;")],
)
def test_what_loops_run_over(tmp_path: Path, values: str, text: str) -> None:
    source = f"""
@prompt_program
def rules():
    for x in {values}:
        f"{{x}};"
"""
    rules = load(tmp_path, HEAD + source)["rules"]
    assert inside(rules) == (Text(text=text.replace(";", ";\n")),)


def test_a_loop_variable_may_be_used_by_two_loops() -> None:
    @prompt_program
    def rules() -> None:
        for x in (1, 2):
            f"{x}"
        for x in (3,):
            f"{x}"

    assert words(rules) == ["1\n2\n3\n"]


# Calls


def test_a_call_is_a_nested_module() -> None:
    @prompt_program
    def tour(stars: int, wet: bool) -> None:
        "A tour."
        hotel(stars, pool=wet)
        if wet:
            hotel(stars=5)
        hotel(stars + 1)
        for stars_too in (1, 2):
            hotel(stars_too)

    assert names(inside(tour)) == ["hotel", "if-wet", "hotel-2", "hotel-3", "hotel-4"]
    nested = inside(tour)[1]
    assert nested == hotel.program.section.module
    prompt = tour(3, True)
    assert taken(prompt) == ["hotel", "hotel/if-pool", "if-wet", "if-wet/hotel", "hotel-2", "hotel-3", "hotel-4"]
    assert [arguments(prompt, name)["stars"] for name in ("hotel", "hotel-2", "hotel-3", "hotel-4")] == list("3412")
    assert arguments(prompt, "if-wet", "hotel") == {"stars": "5"}
    assert taken(tour(3, False)) == ["hotel", "hotel-2", "hotel-3", "hotel-4"]


def test_a_callers_parameter_is_passed_on() -> None:
    @prompt_program
    def inner(place: City) -> None:
        f"In {place}."

    @prompt_program
    def outer(city: City) -> None:
        inner(city)
        f"{city}"

    prompt = outer("Oslo")
    assert (arguments(prompt), arguments(prompt, "inner")) == ({"city": "Oslo"}, {"place": "Oslo"})


def test_programs_of_other_files_are_called_by_their_dotted_name() -> None:
    other = types.SimpleNamespace(programs=types.SimpleNamespace(hotel=hotel))

    @prompt_program
    def tour() -> None:
        other.programs.hotel(2)

    assert taken(tour()) == ["hotel"]


def test_the_arguments_of_a_call_are_evaluated_only_where_it_is_reached() -> None:
    @prompt_program
    def tour(stars: list[int]) -> None:
        if stars:
            hotel(stars[0])

    assert taken(tour([])) == []
    assert arguments(tour([4]), "if-stars", "hotel") == {"stars": "4"}


# Names and the schema's id


def test_names_are_valid_unique_and_not_reserved(tmp_path: Path) -> None:
    source = """
@prompt_program
def user(module: City, größe: City, é: City, è: City, on: bool):
    f"{module}{größe}{é}{è}"
    if on: "1"
    if not on: "2"
    if on: "3"
    else: "4"
    if on == "<&>": "5"
    else: "6"

@prompt_program
def 日本():
    user("a", "b", "c", "d", on=True)
"""
    namespace = load(tmp_path, HEAD + source)
    user, japan = namespace["user"], namespace["日本"]
    assert [child.name for child in inside(user) if isinstance(child, Parameter)] == [
        "module",
        "gr-e",
        "slot",
        "slot-2",
    ]
    expected = ["if-on", "if-not-on", ["if-on-2", "else"], ["if-on-3", "else-2"]]
    assert names(inside(user)) == expected
    assert names(user.schema.children) == ["user-2"]
    assert arguments(user("a", "b", "c", "d", True)) == {"module": "a", "gr-e": "b", "slot": "c", "slot-2": "d"}
    assert (names(japan.schema.children), names(inside(japan))) == (["program"], ["user-2"])


def test_the_schemas_name_is_a_digest_of_its_content(tmp_path: Path) -> None:
    def name(text: str) -> str:
        schema: Schema = load(tmp_path, HEAD + "@prompt_program\n" + text)["f"].schema
        return schema.name

    same = name("def f(a: City):\n f'{a}'\n if a: 'x'")
    assert same.startswith("f-")
    assert len(same) == len("f-") + 32
    assert name("\n# moved\ndef f(a: City, b=1):\n\n    f'{a}'\n    if a:\n        'x'") == same
    others = [
        "def f(a: City):\n f'{a}'\n if a: 'y'",
        "def f(a: City):\n f'{a}'\n if not a: 'x'",
        "def f(a: City):\n f'{a}'\n match a:\n  case 'a': 'x'",
        "def f(a: Annotated[str, MaxTokens(9, 'somewhere')]):\n f'{a}'\n if a: 'x'",
        "def f(a: Annotated[str, MaxTokens(8, 'here')]):\n f'{a}'\n if a: 'x'",
        "def f(a: City):\n f' {a}'\n if a: 'x'",
    ]
    assert len({same, *map(name, others)}) == 1 + len(others)


def test_the_example_says_the_same_in_every_process() -> None:
    path = Path(__file__).parent.parent / "examples" / "prompt_program.py"
    first, second = (
        subprocess.run(
            [sys.executable, path],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    )
    assert first.startswith('<schema name="trip-')
    assert first.count('<prompt schema="trip-') == 2
    assert second == first


# Calling


def test_the_users_text_stands_behind_the_modules() -> None:
    prompt = trip.ask("Where <to>?", "Oslo", hurry=False, season="summer")
    assert prompt.parts == (*trip("Oslo", False, "summer").parts, Text(text="Where <to>?"))
    assert parse_prompt(write_prompt(prompt)) == prompt


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: trip(city="Oslo"), "missing a required argument: 'hurry'"),
        (lambda: trip.ask("?", "Oslo", True), "missing a required argument: 'season'"),
        (lambda: trip("Oslo", True, "winter", 1), "too many positional arguments"),
        (lambda: trip("Oslo", True, season="winter", text="?"), "unexpected keyword argument 'text'"),
        (lambda: trip("Oslo", True, "winter", city="Rome"), "multiple values for argument 'city'"),
    ],
)
def test_wrong_arguments_are_type_errors(call: Callable[[], Prompt], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        call()


def test_arguments_may_have_any_name() -> None:
    @prompt_program
    def rules(self: City, text: City, args: City) -> None:
        f"{self}{text}{args}"

    assert arguments(rules.ask("?", self="a", text="b", args="c")) == {"self": "a", "text": "b", "args": "c"}


def test_a_program_looks_like_its_function() -> None:
    assert (trip.__name__, trip.__module__, trip.__doc__) == ("trip", __name__, "You plan trips.")


# Mistakes

HEAD = """from __future__ import annotations

import functools
from typing import Annotated
from cache.programs.prompt_program import MaxTokens, prompt_program
City = Annotated[str, MaxTokens(8, "somewhere")]
DAYS = ("Monday", "Tuesday")

def plain(function):
    return function

def wrapped(function):
    @functools.wraps(function)
    def call(): return function()
    return call

@prompt_program
def hotel(stars: City, pool: bool = False):
    f"{stars}"

"""
STATEMENTS = {
    "while": ("while hurry:  # here\n    'x'", "`while hurry:` is not allowed; write the constants out, as in `for"),
    "try": ("try:  # here\n    'x'\nfinally:\n    'y'", "`try:` is not allowed; a program is made of strings"),
    "assignment": ("x = 3  # here", "`x = 3` is not allowed; compute the value before and pass it as an argument"),
    "return": ("return 'x'  # here", "`return 'x'` is not allowed; write its text as a statement"),
    "with": ("with open(city):  # here\n    'x'", "`with open(city):` is not allowed"),
    "added strings": ("'x' + city  # here", "`'x' + city` is not allowed"),
    "import": ("import os  # here", "`import os` is not allowed; move it out of the function"),
    "def": ("def inner():  # here\n    'x'", "`def inner():` is not allowed; move it out of the function"),
    "global": ("global DAYS  # here", "is not allowed"),
    "break": ("for x in (1, 2):\n    'x'\n    break  # here", "put optional text under an `if`"),
    "plain call": ("print(city)  # here", "`print(city)` is not a call of a prompt program; compute the value before"),
    "call of a result": ("plain(hotel)(city)  # here", "is not a call of a prompt program"),
    "call of an argument": ("city(1)  # here", "is not a call of a prompt program"),
    "later program": ("later(city)  # here", "`later` is not known yet; define the program above this one"),
    "recursion": ("if nights > 3:\n    f(city, nights - 1, hurry)  # here", "a program cannot contain itself"),
    "missing argument": (
        "hotel()  # here",
        "`hotel()`: missing a required argument: 'stars'; call it as it is defined",
    ),
    "unknown argument": ("hotel(city, rooms=2)  # here", "got an unexpected keyword argument 'rooms'"),
    "star": ("hotel(*city)  # here", "write the arguments out, without `*` and `**`"),
    "assigning argument": ("hotel(x := city)  # here", "`(x := city)` is not a plain expression; compute the value"),
    "expression in braces": ("f'{city.upper()}'  # here", "`city.upper()` in an f-string: only bare names"),
    "format": ("f'{city:>8}'  # here", "`city` in an f-string: only bare names, without formatting"),
    "conversion": ("f'{city!r}'  # here", "without formatting, are allowed in braces"),
    "no length": (
        "'x'\nf'Stay {nights} nights.'  # here",
        "`{nights}` has no maximum length; declare it, as in `nights:",
    ),
    "global in braces": ("f'{DAYS}'  # here", "`{DAYS}` is not an argument of the program; make it one"),
    "loop variable behind its loop": ("for x in (1, 2):\n    'x'\nf'{x}'  # here", "`{x}` is not an argument"),
    "condition behind its loop": (
        "for x in (1, 2):\n    'x'\nif x == 2:  # here\n    'y'",
        "`x` has a value only inside its loop; choose another name",
    ),
    "assigning condition": ("if x := city:  # here\n    'x'", "`(x := city)` is not a plain expression"),
    "assigning guard": ("match city:\n    case 'a' if (x := city):  # here\n        'x'", "is not a plain expression"),
    "capture": ("match city:\n    case other:  # here\n        'x'", "`case other` is not a constant; match strings"),
    "None": ("match city:\n    case None:  # here\n        'x'", "`case None` is not a constant"),
    "one of several": ("match city:\n    case 'a' | None:  # here\n        'x'", "`case None` is not a constant"),
    "loop over an argument": (
        "for x in city:  # here\n    'x'",
        "`city` is not a list of strings or numbers; write the",
    ),
    "loop over a global": ("for x in DAYS:  # here\n    'x'", "`DAYS` is not a list of strings or numbers"),
    "loop over arguments": ("for x in (city, 'b'):  # here\n    'x'", "is not a list of strings or numbers"),
    "loop over nothing": ("for x in ():  # here\n    'x'", "`()` is not a list of strings or numbers"),
    "range of an argument": ("for x in range(nights):  # here\n    'x'", "`range(nights)` is not a list of strings"),
    "range without end": ("for x in range(1, 3, 0):  # here\n    'x'", "is not a list of strings or numbers"),
    "two loop variables": ("for x, y in ((1, 2), (3, 4)):  # here\n    'x'", "`(x, y)`: a loop has one variable"),
    "loop variable is an argument": ("for city in (1, 2):  # here\n    'x'", "`city` has a value already; choose"),
    "loop variable of a loop": ("for x in (1,):\n    for x in (2,):  # here\n        'x'", "`x` has a value already"),
    "loop with else": ("for x in (1,):\n    'x'\nelse:\n    'y'  # here", "a loop's `else` always runs"),
    "control character": ("'x\\x00y'  # here", "'x\\x00y\\n' holds a control character; leave it out"),
    "half a character": ("f'x\\ud800{city}'  # here", "holds a control character"),
    "in a branch": (
        "if hurry:\n    'x'\nelse:\n    if nights:\n        'y'\n    else:\n        x = 3  # here",
        "`x = 3`",
    ),
    "in a loop": ("for x in (1, 2):\n    f'{x}'\n    y = 3  # here", "`y = 3`"),
    "behind a long text": ("'''One\n\nTwo'''\nx = 3  # here", "`x = 3`"),
}


def refusal(tmp_path: Path, text: str) -> PMLError:
    """The error about a file, which must point at the line with the mark."""
    with pytest.raises(PMLError) as failure:
        load(tmp_path, text)
    error = failure.value
    (line,) = (number for number, line in enumerate(text.splitlines(), start=1) if "# here" in line)
    assert (error.where, error.line, error.source) == ("program", line, str(tmp_path / "programs.py"))
    assert str(error) == f"{tmp_path / 'programs.py'}:{line}: {error.message}"
    return error


@pytest.mark.parametrize("indent", ["", "    "], ids=["top", "inside"])
@pytest.mark.parametrize("case", STATEMENTS)
def test_what_cannot_be_said_is_refused_with_its_line(tmp_path: Path, case: str, indent: str) -> None:
    statements, message = STATEMENTS[case]
    lines = ["@prompt_program", "def f(city: City, nights: int, hurry: bool):", "    'One.'"]
    lines += [f"    {line}" for line in statements.splitlines()]
    block = "if True:\n" if indent else ""
    error = refusal(tmp_path, HEAD + block + "\n".join(indent + line for line in lines))
    assert message in error.message


DEFINITIONS = {
    "async": (
        "@prompt_program  # here\nasync def f():\n    'x'",
        "`async` has no meaning in a prompt; write a plain `def`",
    ),
    "async generator": ("@prompt_program  # here\nasync def f():\n    yield 'x'", "write a plain `def`"),
    "lambda": ("f = prompt_program(lambda: 'x')  # here", "a lambda has no statements; write a `def`"),
    "decorator below": ("@prompt_program  # here\n@wrapped\ndef f():\n    'x'", "another decorator is below"),
    "several": ("@prompt_program\ndef f(*cities):  # here\n    'x'", "`cities`: a program has named arguments"),
    "any": ("@prompt_program\ndef f(**cities):  # here\n    'x'", "`cities`: a program has named arguments"),
    "no tokens": (
        "@prompt_program\ndef f(a: int,\n      b: Annotated[str, MaxTokens(0)]):  # here\n    f'{b}'",
        "MaxTokens(length=0, placeholder=''): give a whole number of tokens, 1 or more",
    ),
    "length is text": ("@prompt_program\ndef f(b: Annotated[str, MaxTokens('3')]):  # here\n    'x'", "a whole number"),
    "placeholder": (
        "@prompt_program\ndef f(b: Annotated[str, MaxTokens(3, '\\x00')]):  # here\n    'x'",
        "the placeholder holds a control character",
    ),
    "unknown type": (
        "@prompt_program\ndef f(b: Unknown):  # here\n    'x'",
        "its annotations cannot be read: name 'Unknown' is not defined; define the types at the top of the file",
    ),
}


@pytest.mark.parametrize("case", DEFINITIONS)
def test_definitions_that_are_no_programs_are_refused(tmp_path: Path, case: str) -> None:
    definition, message = DEFINITIONS[case]
    assert message in refusal(tmp_path, HEAD + definition).message


def test_a_function_without_source_is_refused() -> None:
    namespace: dict[str, Any] = {}
    exec("\ndef f():\n    'x'\n", namespace)
    with pytest.raises(PMLError, match=r"^<string>:2: its source cannot be read; define it in a file$"):
        prompt_program(namespace["f"])


def test_a_file_changed_since_is_refused(tmp_path: Path) -> None:
    f = load(tmp_path, "def f():\n    'x'\n")["f"]
    (tmp_path / "programs.py").write_text("def g():\n    'x'\n")
    with pytest.raises(PMLError, match="its file has changed since it was loaded"):
        prompt_program(f)


@pytest.mark.parametrize("thing", [3, print, PromptProgram, trip])
def test_other_things_are_refused(thing: Any) -> None:
    with pytest.raises(PMLError, match="is not a function; put the decorator on a `def`") as failure:
        prompt_program(thing)
    assert failure.value.where == "program"


# On the engine


def test_calls_share_every_module() -> None:
    model = build()
    recorder = Recorder(model)
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


def test_the_second_call_finds_what_the_first_encoded() -> None:
    with running(build()) as engine:
        schemas = Registry.for_model(engine.model.tokenizer, engine.model.info)
        schemas.add(trip.schema)
        first = answer(engine, schemas.bind(trip.ask("Where to?", "Oslo", True, "winter")).plan)
        second = answer(engine, schemas.bind(trip.ask("Why there?", "Rome", True, "winter")).plan)
    assert {use.source for use in first.modules} == {"computed"}
    assert [use.source for use in second.modules] == ["device"] * 3
    assert second.usage.module > 0


def test_an_argument_too_long_for_its_slot_is_refused_by_the_binder() -> None:
    with running(build()) as engine:
        schemas = Registry.for_model(engine.model.tokenizer, engine.model.info)
        schemas.add(trip.schema)
        with pytest.raises(PMLError, match="argument 'city' has 26 tokens, its slot 12"):
            schemas.bind(trip("Llanfairpwllgwyngyllgogery", False, "winter"))
