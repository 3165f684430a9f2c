"""What is learned of wishes: own cases are told from rules, and look-ups from each other."""

import json
import tomllib

import numpy as np
from hashed_search import HashEmbedder

from app.lookups import recognising
from app.lookups.definitions import LookUp
from app.lookups.recognising import Recogniser
from evals.answers.learn_wishes import learn

LOOKUP = r"""
[[lookup]]
name = "{name}"
title = "{name}"
examples = ["where is my {name}", "我的{name}到哪了"]
values = [{{ name = "number", kind = "pattern", pattern = '{name}-\d+', ask = "Number?", example = "{name}-1" }}]
request = {{ method = "GET", url = "https://shop.example/x" }}
fields = {{ state = "/state" }}
identity = "none"
answers = {{ found = "a", not_found = "b", failed = "c" }}
"""
THINGS = {"a": ("lamp", "sofa"), "b": ("chair", "desk"), "c": ("mug", "bowl")}
TEXTS = {
    "wish": (
        "where is my {} now",
        "has my {} left yet",
        "{} still not here",
        "我的{}到哪了",
        "我的{}发货了吗",
        "{}还没到",
    ),
    "near": ("how long does a {} take", "do you send a {} abroad", "what is a {}", "{}要多久", "{}能寄吗", "{}是什么"),
    "elsewhere": ("my {} has a scratch", "我的{}有划痕"),
}


def write(folder):
    for author, things in THINGS.items():
        (folder / author).mkdir()
        (folder / author / f"{author}.toml").write_text("".join(LOOKUP.format(name=one) for one in things), "utf-8")
        rows = [
            {"message": text.format(one), "lookup": one if kind == "wish" else None, "kind": kind, "language": language}
            for one in things
            for kind, texts in TEXTS.items()
            for text in texts
            for language in ["en" if text.isascii() else "zh"]
        ]
        (folder / author / f"{author}.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    (folder / "d").mkdir()
    asked = [{"question": "can I pay by card", "language": "en"}, {"question": "可以刷卡吗", "language": "zh"}]
    (folder / "d" / "bank.jsonl").write_text("\n".join(map(json.dumps, asked)), "utf-8")


def test_wishes_are_told_from_rules_and_from_each_other(tmp_path, monkeypatch):
    write(tmp_path)
    embed = HashEmbedder().embed_documents
    np.savez(tmp_path / "wishes.npz", **learn(tmp_path, embed))
    monkeypatch.setattr(recognising, "LEARNED", tmp_path / "wishes.npz")
    monkeypatch.setattr(recognising, "learned", recognising.learned.__wrapped__)
    shop = tomllib.loads("".join(LOOKUP.format(name=one) for one in ("rug", "vase")))["lookup"]
    recogniser = Recogniser([LookUp.model_validate(one) for one in shop], embed)
    heard = {text: recogniser.wish(text) for text in ("has my vase left yet", "how long does a vase take")}
    assert [one and one.lookup.name for one in heard.values()] == ["vase", None]
    named = recogniser.wish("how long does a vase take, rug-1234?")
    assert (named.lookup.name, named.or_else) == ("rug", ()), "with a number, at least an offer of what has it"
    assert recogniser.wish("rug-1234") is recogniser.wish("ｒｕｇ－１２３４") is None, "a number alone"
    assert recogniser.wish("rug-1234怎么样了").lookup.name == "rug", "no spaces, but words"
