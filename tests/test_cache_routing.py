"""Which replica gets a request: pure, without Ray."""

from collections import Counter

from cache.routing import Affinity, Ring, Wanted

THREE = ["a", "b", "c"]


def router(*replicas: str) -> Affinity:
    routing = Affinity()
    routing.set_replicas(replicas or THREE)
    return routing


def wanted(*keys: str, own: int = 0, session: str | None = None) -> Wanted:
    return Wanted(modules=dict.fromkeys(keys, 400), own_tokens=own, session=session)


def test_a_replica_that_leaves_takes_only_its_own_keys_along():
    ring, keys = Ring(), [f"key {number}" for number in range(600)]
    ring.set_replicas(THREE)
    before = {key: next(ring.walk(key)) for key in keys}
    assert all(100 < count < 300 for count in Counter(before.values()).values())
    ring.set_replicas(["a", "c"])
    assert all(next(ring.walk(key)) == home for key, home in before.items() if home != "b")
    ring.set_replicas(["c", "b", "a"])
    assert {key: next(ring.walk(key)) for key in keys} == before
    assert sorted(ring.walk("key 1")) == THREE


def test_a_module_that_nobody_holds_goes_home_and_is_held_there_at_once():
    routing = router()
    home = routing.home("m")
    assert routing.rank(wanted("m"))[0] == home
    other = next(name for name in THREE if name != home)
    routing.report(other, {"m"}, 0)
    assert routing.rank(wanted("m"))[0] == other
    routing.report(other, set(), 0)
    routing.sent("1", other, wanted("m"))
    routing.ended("1")
    assert routing.rank(wanted("m"))[0] == other


def test_most_of_the_tokens_win():
    routing = router()
    routing.report("a", {"small 1", "small 2"}, 0)
    routing.report("b", {"large"}, 0)
    assert routing.rank(Wanted(modules={"small 1": 100, "small 2": 100, "large": 300})) == ["b", "a", "c"]


def test_a_report_says_what_is_held_but_for_what_is_on_its_way():
    routing = router()
    routing.sent("1", "a", wanted("m"))
    routing.report("a", set(), 1)
    routing.ended("1")
    routing.report("a", set(), 0)  # may have been made before the end
    assert "a" in routing._holdings.holders("m")
    routing.report("a", set(), 0)
    assert not routing._holdings.holders("m")


def test_an_overloaded_holder_is_passed_over_and_the_next_keeps_a_copy():
    routing = router()
    sent: list[str] = []
    for number in range(12):
        sent.append(routing.rank(wanted("m"))[0])
        routing.sent(str(number), sent[-1], wanted("m"))
    first, *others = dict.fromkeys(sent)
    assert sent[:3] == [first] * 3  # computing it again is dearer than waiting
    assert others
    for number in range(12):
        routing.ended(str(number))
    routing.report(first, {"m"}, 9)
    assert routing.rank(wanted("m"))[0] in others


def test_later_turns_go_where_the_conversation_is():
    routing = router()
    routing.sent("1", "b", wanted(own=300, session="talk"))
    routing.ended("1")
    assert routing.rank(wanted(own=350, session="talk"))[0] == "b"
    routing.report("c", {"m"}, 0)
    assert routing.rank(wanted("m", own=350, session="talk"))[0] == "c"  # the module is more
    routing.set_replicas(["a", "c"])
    assert "b" not in routing.rank(wanted(own=350, session="talk"))


def test_replicas_that_vanish_are_forgotten_with_all_that_was_sent_to_them():
    routing = router()
    routing.sent("1", "a", wanted("m"))
    routing.set_replicas(["b", "c"])
    routing.ended("1")
    routing.report("a", {"m"}, 3)
    assert not routing._holdings.holders("m")
    assert sorted(routing.rank(wanted("m"))) == ["b", "c"]
    routing.set_replicas([])
    assert routing.rank(wanted("m")) == []
    assert routing.home("m") is None


def test_memory_is_bounded_without_reports_and_ends(monkeypatch):
    for name, value in (("MOST_OPEN", 50), ("MOST_SESSIONS", 20), ("MOST_HELD", 30)):
        monkeypatch.setattr(f"cache.routing.{name}", value)
    routing = router()
    for number in range(500):
        routing.sent(str(number), routing.rank(wanted(f"m{number}"))[0], wanted(f"m{number}", session=str(number)))
    assert len(routing._open) == 50
    assert len(routing._sessions) == 20
    assert all(len(routing._holdings.of(name)) <= 30 for name in THREE)
    assert sum(len(one.opened) for one in routing._replicas.values()) == 50


def test_few_of_a_thousand_replicas_are_looked_at():
    names = [f"replica {number}" for number in range(1000)]
    routing = router(*names)
    for name in names:
        routing.report(name, {"popular"}, 0)
    assert len(routing.rank(wanted("popular", "rare", "other"))) < 40
    firsts = {routing.rank(wanted("popular"))[0] for _ in range(1000)}
    assert firsts <= set(names)
    for number in range(3000):
        best = routing.rank(wanted("popular"))[0]
        routing.sent(str(number), best, wanted("popular"))
    queues = [one.queue for one in routing._replicas.values()]
    assert max(queues) <= 6
