"""Cases in which something else works on a run: a second process of the same name, or an edit of its corpus."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nmt.grammar import generate
from torture_cases.evidence import differences, newest_step
from torture_cases.interruptions import completed
from torture_cases.trial import Trial, first_problem
from torture_cases.workshop import SAVE_EVERY, Ended, Workshop


def shared_run(shop: Workshop, quick: bool) -> Iterator[Trial]:
    """Two commands on one run at a time, training and preparing, and another corpus under a run that has begun."""
    yield _two_at_a_time(shop, "run")
    yield _two_at_a_time(shop, "prepare")
    yield _changed_corpus(shop)


def _two_at_a_time(shop: Workshop, command: str) -> Trial:
    """One of them does the work; the other ends with a line that says who is there, or finds the work done."""
    run, reference = shop.new_run(), shop.reference()[0]
    both = [shop.start(shop.training(run, command=command)) for _ in range(2)]
    ended = [one.end() for one in both]
    problem = "neither of them succeeded" if all(one.status for one in ended) else None
    for one in ended:
        if one.status and not (one.status == 1 and len(one.error_lines) == 1 and "in use" in one.error_lines[0]):
            problem = f"it must succeed or say in one line that the run is in use ({one.summary})"
    last = shop.do(shop.training(run, command="run"))
    return Trial(f"two nmt {command} at a time", first_problem(problem, completed(last, run, reference)), run)


def _changed_corpus(shop: Workshop) -> Trial:
    """A run that has begun refuses the text once one line has changed, stays as it is, and goes on with the old one."""
    run, corpus = shop.new_run(), [shop.folder / f"corpus.{side}" for side in ("en", "de")]
    pairs = list(generate("train", 120, 1))
    for path, lines in zip(corpus, zip(*((pair.src, pair.tgt) for pair in pairs), strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    texts = f'data.train=[{{kind="text", src="{corpus[0]}", tgt="{corpus[1]}"}}]'
    begun = shop.do(shop.training(run, texts, f"train.max_steps={SAVE_EVERY}"))
    before = corpus[0].read_bytes()
    corpus[0].write_bytes(before.replace(b"The", b"A", 1))
    changed = shop.do(shop.training(run, texts, f"train.max_steps={2 * SAVE_EVERY}"))
    stayed = newest_step(run) == SAVE_EVERY
    corpus[0].write_bytes(before)
    again = shop.do(shop.training(run, texts, f"train.max_steps={2 * SAVE_EVERY}"))
    straight = shop.new_run()
    shop.do(shop.training(straight, texts, f"train.max_steps={2 * SAVE_EVERY}"))
    problem = first_problem(
        None if begun.status == 0 else f"the run failed ({begun.summary})",
        _refuses_text(changed, corpus),
        None if stayed else "it trained on with other text",
        None if again.status == 0 else f"with the old text it failed ({again.summary})",
        ", ".join(differences(run, straight)) or None,
    )
    return Trial("a changed corpus under a run", problem, run)


def _refuses_text(ended: Ended, corpus: list[Path]) -> str | None:
    if ended.status in (0, None) or ended.traceback or len(ended.error_lines) != 1:
        return f"it must refuse the changed corpus in one line ({ended.summary})"
    named = any(path.name in ended.error_lines[0] for path in corpus) or "corpus" in ended.error_lines[0]
    return None if named else f"it does not name the corpus ({ended.summary})"
