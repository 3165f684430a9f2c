"""The replay of used modules against other sizes of memory."""

from hypothesis import given
from hypothesis import strategies as st

from cache.analysis.memory_plan import Replayed, replay

A, B, C = ((name, 100) for name in "abc")


def test_what_fits_is_found_from_the_second_time_on():
    assert replay([[A, B], [A, B], [B, A]], 200) == Replayed(uses=6, found=4, missing_tokens=200)


def test_what_does_not_fit_is_read_again():
    assert replay([[A], [B], [A], [B]], 100).found == 0
    assert replay([[A], [B], [A], [B]], 200).found == 2


def test_a_module_that_is_used_often_stays():
    prompts = [[A], [A], [A], [A], [B], [C], [A]]
    assert replay(prompts, 200).found == 4, "B goes for C, not A"


def test_modules_of_one_prompt_do_not_drive_each_other_out():
    assert replay([[A, B, C]] * 2, 250) == Replayed(uses=6, found=2 + 0, missing_tokens=400)


MODULES = st.tuples(st.sampled_from("abcdef"), st.just(50))


@given(st.lists(st.lists(MODULES, max_size=3, unique=True), max_size=12))
def test_memory_for_everything_misses_each_module_once(prompts):
    replayed = replay(prompts, 6 * 50)
    different = {key for modules in prompts for key, _ in modules}
    assert replayed.uses - replayed.found == len(different)
    assert replayed.missing_tokens == 50 * len(different)
