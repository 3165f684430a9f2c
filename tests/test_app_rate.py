"""How often somebody may do something."""

from app.access import limits
from app.access.limits import Rate


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_so_many_at_once_and_then_one_at_a_time() -> None:
    clock = Clock()
    often = Rate(2, 3, clock=clock)
    assert [often.wait_s("ann") for _ in range(4)] == [0, 0, 0, 0.5]
    clock.now += 0.25
    assert often.wait_s("ann") == 0.25, "who is refused waits no longer for it"
    clock.now += 0.25
    assert often.wait_s("ann") == 0
    assert often.wait_s("ann") == 0.5
    clock.now += 1000
    assert [often.wait_s("ann") for _ in range(4)] == [0, 0, 0, 0.5], "a pause gives no more than at once"


def test_everybody_has_a_limit_of_his_own() -> None:
    often = Rate(1, 1, clock=Clock())
    assert often.wait_s("ann") == 0
    assert often.wait_s("bob") == 0
    assert often.wait_s("ann") == 1


def test_only_so_many_askers_are_kept() -> None:
    clock, most = Clock(), limits.MOST_BUCKETS
    often = Rate(1, 1, clock=clock)
    for number in range(most + 50):
        often.wait_s(str(number))
    assert len(often._buckets) == most
