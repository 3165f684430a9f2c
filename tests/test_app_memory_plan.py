"""How much memory would be enough, from the answers that a desk gave."""

from desks import finish, small_desk, write_pages

from app.desk.overview import SHARES, plan_memory
from app.domain.statistics import MemoryPlan
from app.storage.statistics import Statistics


def test_answers_are_replayed_in_their_order(tmp_path):
    with small_desk(tmp_path / "data") as desk:
        assert desk.memory_plan() == MemoryPlan()
        desk.ingest([write_pages(tmp_path / "pages")])
        first = finish(desk, "How long do returns take?")
        second = finish(desk, "Can gift cards be returned?")
        used = Statistics(desk.database).used_modules(10)
        assert used == [[(one.id, one.tokens) for one in answer.modules] for answer in (first, second)]
        assert Statistics(desk.database).used_modules(1) == used[1:]
        plan = desk.memory_plan()
        assert plan.answers == 2
        [current] = [budget for budget in plan.budgets if budget.is_current]
        per_token = desk.engine.model.info.kv.bytes_per_token
        assert current.num_bytes == desk.settings.device_memory // per_token * per_token


def test_the_smallest_size_that_comes_close_is_enough():
    often = [[(f"often {number}", 100)] for number in range(10)]
    rare = [[(f"rare {number}", 100)] for number in range(10)]
    plan = plan_memory([*often * 40, *rare], current=100_000 * 7, bytes_per_token=7)
    assert len(plan.budgets) == len(SHARES) + 1
    found = [budget.found for budget in plan.budgets]
    assert found == sorted(found)
    assert plan.enough == 1000 * 7, "half of the passages are used often"
    assert [budget.is_current for budget in plan.budgets] == [False] * len(SHARES) + [True]
    assert plan.budgets[-1].tokens == 2000 / 410
    again = plan_memory([[("a", 100)]], current=100 * 7, bytes_per_token=7)
    assert len(again.budgets) == len(SHARES), "a size that is tried anyway stands once"
