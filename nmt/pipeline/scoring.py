"""Translate and score the test sets of a run."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from nmt.data.test_sets import TestSet, test_sets
from nmt.decode.documents import translate_documents
from nmt.decode.requirements import decoding_files
from nmt.decode.scoring import TextScorer
from nmt.decode.translator import Translator
from nmt.diagnostics.leaks import SetLeaks
from nmt.evaluate.baselines import find_baseline
from nmt.evaluate.hints import hint_at_lowercase_output
from nmt.evaluate.likelihood import score_test_set
from nmt.evaluate.metrics import Score, score_corpus, score_labels, scoring_options
from nmt.evaluate.report import ScoredTestSet, choose_samples, describe_machine, describe_software
from nmt.evaluate.translated import (
    TranslatedSet,
    context_digest,
    find_translated,
    output_name,
    references_digest,
    text_digest,
    translation_digest,
)
from nmt.logs import counted, progress, say, warn
from nmt.processes.distributed import World
from nmt.recipe import Recipe
from nmt.storage.sealed import manifest_digest, remove_partial_files, write_file

# Test sentences per window; GPU batches are up to 16 times as large as CPU batches.
_TEST_WINDOW, _TEST_GPU_FACTOR = 256, 16


def translate_tests(
    recipe: Recipe, world: World, leaks: Mapping[str, SetLeaks]
) -> tuple[tuple[ScoredTestSet, ...], int]:
    """Translate and score the test sets; return the scores and the number of parameters."""
    translator = Translator.load(recipe.directory / "model", str(world.device), decode=recipe.decode.all_given())
    window = _TEST_WINDOW * (_TEST_GPU_FACTOR if world.device.type == "cuda" else 1)
    model = manifest_digest(recipe.directory / "model")  # includes search options
    origin = repr([model, str(world.device), describe_machine(), describe_software()])
    if files := decoding_files(recipe.decode):
        origin += repr(files)
    tests = tuple(
        _translate_and_score(recipe, translator, test, window, origin, leaks.get(f"data.test.{name}"))
        for name, test in test_sets(recipe).items()
    )
    return tests, translator.num_parameters


def _translate_and_score(
    recipe: Recipe, translator: Translator, test: TestSet, window: int, origin: str, leaks: SetLeaks | None
) -> ScoredTestSet:
    """Translate a test set to `translations/NAME.LANG` in the run directory, unless up to date, and score it."""
    if (tag := recipe.data.test[test.name].tag) is not None:
        translator, origin = translator.with_constraints(tag), f"{origin} {tag}"
    translated = _translate(recipe, translator, test, window, origin)
    lines = translated.lines
    evaluate = recipe.evaluate
    metrics = evaluate.metrics
    options = scoring_options(recipe, translator.lowercases, test.name)
    hint_at_lowercase_output(f"data.test.{test.name}", lines, test.refs, metrics, **options)

    def score(texts: Sequence[str], indices: Sequence[int]) -> tuple[Score, ...]:
        chosen_texts = [texts[index] for index in indices]
        refs = [[stream[index] for index in indices] for stream in test.refs]
        return tuple(score_corpus(chosen_texts, refs, metrics, resamples=evaluate.resamples, **options))

    baseline = find_baseline(test.src, test.ref, metrics, evaluate.lead_sentences)
    every = range(len(lines))
    clean = [] if leaks is None else leaks.clean()
    return ScoredTestSet(
        name=test.name,
        sentences=len(test.src),
        seconds=translated.seconds,
        search=f"torch, {translator.precision}",
        digest=translated.digest,
        source=text_digest(test.src),
        references=references_digest(test.refs),
        context=context_digest(test.previous),
        output=text_digest(lines),
        scores=score(lines, every),
        groups=score_labels(test.refs, test.labels, lines, options),
        samples=choose_samples(test.src, test.ref, lines, evaluate.samples),
        leaks=None if leaks is None else leaks.counts(),
        clean_scores=score(lines, clean) if 0 < len(clean) < len(lines) else (),
        baseline="" if baseline is None else baseline.name,
        baseline_description="" if baseline is None else baseline.description,
        baseline_scores=() if baseline is None else score(baseline.outputs, every),
    )


def _translate(recipe: Recipe, translator: Translator, test: TestSet, window: int, origin: str) -> TranslatedSet:
    out = recipe.directory / "translations" / output_name(recipe, test.name)
    if test.previous is not None:
        origin = f"{origin} {test.previous}"
    translated = find_translated(recipe.directory, test.name, out, origin, test.src)
    if translated is not None:
        say(f"{out} is up to date")
        return translated
    lines_split_before = translator.lines_split
    started = time.perf_counter()
    with progress(f"translating {test.name}", len(test.src), "sentences") as bar:
        lines = translate_documents(translator, test.src, test.previous, window, bar.advance)
    seconds = time.perf_counter() - started
    num_long = translator.lines_split - lines_split_before
    if num_long:
        were = "was" if num_long == 1 else "were"
        result = "truncated" if recipe.decode.long_lines == "truncate" else "translated in parts"
        warn(f"{counted(num_long, 'line')} of data.test.{test.name} {were} too long for the model and {were} {result}")
    out.parent.mkdir(exist_ok=True)
    remove_partial_files(out.parent)
    write_file(out, "".join(f"{line}\n" for line in lines).encode())
    return TranslatedSet(lines, seconds, translation_digest(origin, test.src, lines))


def score_texts(recipe: Recipe, world: World, leaks: Mapping[str, SetLeaks]) -> tuple[tuple[ScoredTestSet, ...], int]:
    """Score the test sets with a language model; return the scores and the number of parameters."""
    model, device = recipe.directory / "model", str(world.device)
    scorer = TextScorer.load(model, device)
    tests = []
    for name, test in test_sets(recipe).items():
        tag = recipe.data.test[name].tag
        tagged = scorer if tag is None else TextScorer.load(model, device, tag)
        tests.append(score_test_set(tagged, test, leaks.get(f"data.test.{name}")))
    return tuple(tests), scorer.num_parameters


def warn_of_outdated(translations: Path, current: set[str]) -> None:
    """Warn of translations of test sets that the recipe no longer has."""
    outdated = sorted(path.name for path in translations.glob("*") if path.name not in current)
    if outdated:
        warn(f"{translations} also has {', '.join(outdated)} from an earlier run, which may be outdated")
