"""Keys cover everything an encoded module depends on, and nothing else."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cache.memory.keys import digest, segment_key, token_bytes
from cache.prompt.plan import Segment

SYSTEM = Segment(name="system", tokens=(1, 2, 3))
SEGMENT = Segment(name="a", tokens=(4, 5), start=3, prefix=SYSTEM)


def key(segment: Segment = SEGMENT, fingerprint: str = "model", tenant: str = "public") -> str:
    return segment_key(segment, fingerprint=fingerprint, tenant=tenant)


def test_everything_that_matters_changes_the_key():
    keys = [
        key(),
        key(fingerprint="model2"),
        key(tenant="other"),
        key(replace(SEGMENT, tokens=(4, 6))),
        key(replace(SEGMENT, tokens=(4,))),
        key(replace(SEGMENT, tokens=(5, 4))),
        key(replace(SEGMENT, start=4)),
        key(replace(SEGMENT, left_context=(7,))),
        key(replace(SEGMENT, prefix=None)),
        key(replace(SEGMENT, prefix=replace(SYSTEM, tokens=(1, 2)))),
        key(replace(SEGMENT, prefix=replace(SYSTEM, start=1))),
        key(replace(SEGMENT, prefix=replace(SYSTEM, prefix=SYSTEM))),
    ]
    assert len(set(keys)) == len(keys)


def test_names_do_not_change_the_key():
    assert key(replace(SEGMENT, name="renamed")) == key()
    assert key(replace(SEGMENT, prefix=replace(SYSTEM, name="renamed"))) == key()


def test_keys_of_version_0_1_are_still_the_same():
    """Modules on disk were written under these keys; a change would encode every document again."""
    assert key() == "b2:59f0c1981b67ca658d9d408f120a187f9385e9dc1eb87374d56dae3ccc3df52e"
    full = replace(SEGMENT, tokens=(4, 5, 6), start=9, gaps=((1, 7),), left_context=(7, 8))
    assert key(full, tenant="shop") == "b2:3499d73b55fab94c5116ca51833a8b48060d84648d44119a3af74d541accc2c5"


@given(*[st.lists(st.text(alphabet="ab", max_size=3), max_size=4)] * 2)
def test_different_lists_of_parts_never_collide_by_concatenation(one, two):
    assert (digest(*one) == digest(*two)) == (one == two)


def test_a_length_is_not_mistaken_for_content():
    length = (1).to_bytes(8, "little")
    assert digest(b"a", b"b") != digest(b"a" + length + b"b")


tokens = st.lists(st.integers(0, 2**31), max_size=6).map(tuple)
tenants, starts = st.sampled_from(["t", "t1"]), st.integers(0, 9)


@given(tokens, tokens, starts, starts, tenants, tenants)
def test_keys_are_equal_only_for_equal_content(one, two, start, other, tenant, stranger):
    assume((one, start, tenant) != (two, other, stranger))
    first = key(Segment(name="a", tokens=one, start=start), tenant=tenant)
    assert first != key(Segment(name="a", tokens=two, start=other), tenant=stranger)


@given(tokens)
def test_token_bytes_are_little_endian_and_reversible(ids):
    data = token_bytes(ids)
    assert tuple(int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)) == ids


def test_tenants_are_short_words():
    assert all(key(tenant=good) for good in ("a", "A.b_c-9", "x" * 128))
    for bad in ("", "a b", "a/b", "a:b", "ä", "a\n", "x" * 129):
        with pytest.raises(ValueError, match="use 1 to 128 letters"):
            key(tenant=bad)
