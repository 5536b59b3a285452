"""Cases of concurrent commands on one run, and of a run whose corpus changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nmt.grammar import generate
from torture_cases.interruptions import check_completed
from torture_cases.run_state import differences, newest_step
from torture_cases.sandbox import SAVE_EVERY, CommandResult, Sandbox, Trial, first_problem


def shared_run(sandbox: Sandbox, quick: bool) -> Iterator[Trial]:
    """Two concurrent commands on one run (training, preparing), and a changed corpus."""
    yield _concurrent(sandbox, "run")
    yield _concurrent(sandbox, "prepare")
    yield _changed_corpus(sandbox)


def _concurrent(sandbox: Sandbox, name: str) -> Trial:
    """Check that one command completes and the other reports that the run is in use, or finds it complete."""
    run, reference = sandbox.new_run(), sandbox.reference()[0]
    commands = [sandbox.start(sandbox.training(run, command=name)) for _ in range(2)]
    results = [command.finish() for command in commands]
    problem = "neither command succeeded" if all(result.status for result in results) else None
    for result in results:
        says_in_use = len(result.error_lines) == 1 and "in use" in result.error_lines[0]
        if result.status != 0 and not (result.status == 1 and says_in_use):
            problem = f"expected success or a one-line error that the run is in use ({result.summary})"
    last = sandbox.run(sandbox.training(run, command="run"))
    return Trial(f"two concurrent nmt {name}", first_problem(problem, check_completed(last, run, reference)), run)


def _changed_corpus(sandbox: Sandbox) -> Trial:
    """Check that a started run rejects changed text, is not modified, and resumes with the original text."""
    run, corpus = sandbox.new_run(), [sandbox.folder / f"corpus.{side}" for side in ("en", "de")]
    pairs = list(generate("train", 120, 1))
    for path, lines in zip(corpus, zip(*((pair.src, pair.tgt) for pair in pairs), strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    texts = f'data.train=[{{kind="text", src="{corpus[0]}", tgt="{corpus[1]}"}}]'
    begun = sandbox.run(sandbox.training(run, texts, f"train.max_steps={SAVE_EVERY}"))
    before = corpus[0].read_bytes()
    corpus[0].write_bytes(before.replace(b"The", b"A", 1))
    changed = sandbox.run(sandbox.training(run, texts, f"train.max_steps={2 * SAVE_EVERY}"))
    unchanged = newest_step(run) == SAVE_EVERY
    corpus[0].write_bytes(before)
    again = sandbox.run(sandbox.training(run, texts, f"train.max_steps={2 * SAVE_EVERY}"))
    straight = sandbox.new_run()
    sandbox.run(sandbox.training(straight, texts, f"train.max_steps={2 * SAVE_EVERY}"))
    problem = first_problem(
        None if begun.status == 0 else f"the run failed ({begun.summary})",
        _refuses_text(changed, corpus),
        None if unchanged else "it continued with the changed text",
        None if again.status == 0 else f"it failed with the original text ({again.summary})",
        ", ".join(differences(run, straight)) or None,
    )
    return Trial("changed corpus", problem, run)


def _refuses_text(result: CommandResult, corpus: list[Path]) -> str | None:
    if result.status in (0, None) or result.has_traceback or len(result.error_lines) != 1:
        return f"expected a one-line error about the changed corpus ({result.summary})"
    named = any(path.name in result.error_lines[0] for path in corpus) or "corpus" in result.error_lines[0]
    return None if named else f"the error does not name the corpus ({result.summary})"
