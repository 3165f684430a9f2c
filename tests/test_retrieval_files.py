"""Which files a list of files and folders means, and how their names are printed."""

import os
import sys
from pathlib import Path

import pytest

from retrieval.reading import find_files
from retrieval.text.terms import printable


def names(paths: list[Path], root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path, problem in find_files(paths) if problem is None]


def problems(paths: list[Path]) -> dict[str, str]:
    return {path.name: problem for path, problem in find_files(paths) if problem is not None}


def put(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_folders_are_walked_in_sorted_order_without_hidden_names_and_pipes(tmp_path):
    for name in ("b.md", "a.pdf", "sub/z.md", "sub/deep/y.md", "another/x.md", ".hidden.md", ".git/config"):
        put(tmp_path / name)
    os.mkfifo(tmp_path / "pipe.md")
    assert names([tmp_path], tmp_path) == ["a.pdf", "b.md", "another/x.md", "sub/z.md", "sub/deep/y.md"]


def test_explicit_files_are_always_offered_and_each_file_only_once(tmp_path):
    hidden, plain = put(tmp_path / ".draft.md"), put(tmp_path / "a.md")
    assert names([plain, hidden, tmp_path, plain], tmp_path) == ["a.md", ".draft.md"]


def test_missing_and_impossible_paths_are_problems_and_do_not_stop_the_others(tmp_path):
    present, missing = put(tmp_path / "a.md"), tmp_path / "missing.md"
    assert list(find_files([missing, present])) == [(missing, "no such file or folder"), (present, None)]
    assert [problem for _, problem in find_files([f"{tmp_path}/nul\0byte", tmp_path / ("x" * 300)])] == [
        "no such file or folder" if sys.version_info >= (3, 13) else "not a usable path",
        "file name too long",
    ]


def test_links_in_circles_end(tmp_path, monkeypatch):
    put(tmp_path / "sub" / "a.md")
    (tmp_path / "sub" / "up").symlink_to(tmp_path)
    (tmp_path / "self").symlink_to(tmp_path / "self")
    listed: list[Path] = []
    listdir = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(path) or listdir(path))
    assert names([tmp_path], tmp_path) == ["sub/a.md"]
    assert listed == [tmp_path, tmp_path / "sub"]
    assert set(problems([tmp_path])) == {"self"}


def test_links_out_of_the_folder_are_refused(tmp_path):
    secret = put(tmp_path / "private" / "secret.md")
    inside = put(tmp_path / "public" / "a.md").parent
    (inside / "file.md").symlink_to(secret)
    (inside / "folder").symlink_to(secret.parent)
    assert names([inside], tmp_path) == ["public/a.md"]
    assert problems([inside]) == dict.fromkeys(("file.md", "folder"), "symbolic link to a place outside the folder")


def test_links_inside_the_folder_are_followed(tmp_path):
    """Kubernetes mounts configured files as links to a hidden folder beside them."""
    put(tmp_path / "..2026" / "a.md")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "a.md").symlink_to("..data/a.md")
    assert names([tmp_path], tmp_path) == ["a.md"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_closed_folder_is_a_problem(tmp_path):
    closed = put(tmp_path / "closed" / "a.md").parent
    closed.chmod(0)
    try:
        assert problems([tmp_path]) == {"closed": "permission denied"}
    finally:
        closed.chmod(0o700)


def test_deep_folders_do_not_exhaust_the_stack(tmp_path):
    folders = [str(tmp_path) + "/d" * depth for depth in range(1, 1200)]
    for folder in folders:
        os.mkdir(folder)
    try:
        assert list(find_files([tmp_path])) == []
    finally:  # pytest's own cleaning recurses
        for folder in reversed(folders):
            os.rmdir(folder)


def test_printable_names_show_what_a_terminal_would_obey():
    assert printable(Path("a\nerror: x\x1b[2J\u202egnp.md")) == "a\\nerror: x\\x1b[2J\\u202egnp.md"
    assert printable("\udcff") == "\\udcff"
    assert printable("Größe 退款.md") == "Größe 退款.md"
