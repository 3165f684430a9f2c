"""What `warmdesk pml ...` prints for people, of the JSON documents that `app.pml` makes."""

from itertools import groupby
from typing import Any

from rich.console import Console
from rich.table import Table


def print_facts(found: dict[str, Any]) -> None:
    """The layout as a table, then what a prompt takes from the cache and what it computes."""
    table = Table("ids", "kind", "path", box=None, pad_edge=False)
    for item in sorted(found["layout"], key=lambda item: (item["start"], item["path"].count("/"), -item["length"])):
        ids = f"{item['start']}-{item['start'] + item['length'] - 1}" if item["length"] else "none"
        table.add_row(ids, item["kind"], item["path"] or "(root)")
    Console().print(table)
    print(f"schema {found['schema']}: {found['length']} position ids")
    if "fed" in found:
        print(f"from the cache: {ranges(found['cached'])}")
        print(f"computed:       {ranges(found['fed'])}")
        print(f"the answer begins at {found['first_generated']}")


def ranges(ids: list[int]) -> str:
    """Ascending ids as `0-2, 6`, with their number."""
    runs = [[at for _, at in run] for _, run in groupby(enumerate(ids), lambda pair: pair[1] - pair[0])]
    shown = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"{shown} ({len(ids)} tokens)" if ids else "nothing"


def print_completion(result: dict[str, Any]) -> None:
    """The answer, then where the prompt came from."""
    print(result["text"])
    usage, timings = result["usage"], result["timings_ms"]
    print(
        f"\n{usage['prompt_tokens']} prompt tokens, {usage['computed_tokens']} computed; "
        f"first token after {timings['ttft']:.0f} ms; {'exact' if result['exact'] else 'approximate'}"
    )
    for use in result["modules"]:
        why = f" ({use['miss_reason']})" if use["miss_reason"] else ""
        print(f"{use['tokens']:6d} tokens at {use['position']:6d}  {use['source']}{why}  {use['name']}")


def print_advice(advice: dict[str, Any]) -> None:
    """The findings, most expensive first as they come, then the sums."""
    for finding in advice["findings"]:
        place = f"line {finding['line']}: " if finding["line"] else ""
        print(f"{place}{finding['what']}\n    {finding['tokens']} tokens; {finding['cure']}")
    if not advice["findings"]:
        print("nothing found that breaks reuse")
    if advice["kind"] == "prompt" and advice["schema"] is None:
        print(f"new text and arguments: {advice['tokens']} tokens, computed in every request")
    else:
        print(f"{advice['reusable']} of {advice['tokens']} tokens can be reused")
