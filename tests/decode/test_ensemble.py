"""Ensembles in the translator, compared with scores of their members."""

from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from nmt.decode.scoring import TextScorer
from nmt.decode.translator import Translator
from nmt.recipe import DecodeRecipe
from tests.decode.test_fusion import LINES, write_model


@pytest.mark.slow
@pytest.mark.parametrize("mean", ["linear", "log"])
def test_probabilities_are_means_over_the_members(mean: Literal["linear", "log"], tmp_path: Path) -> None:
    small = ("model.max_positions=24", "data.max_tokens=12")
    paths = [write_model(tmp_path / str(seed), f"seed={seed}", *(small if seed == 3 else ())) for seed in (1, 2, 3)]
    translator = Translator.load(paths[0], "cpu", "fp32", DecodeRecipe(ensemble_mean=mean), ensemble=paths[1:])
    members = [TextScorer.load(path, "cpu") for path in paths]
    for line in filter(None, LINES):
        ((found,),) = translator.translate_n_best([line])
        own = np.array(found.token_log_probs)
        log_probs = np.array([member.score([line], [found.text])[0].token_log_probs for member in members])
        arithmetic, geometric = np.log(np.exp(log_probs).mean(axis=0)), log_probs.mean(axis=0)
        if mean == "linear":
            assert own == pytest.approx(arithmetic, abs=1e-5)
        else:  # renormalized
            assert (own > geometric).all() and np.abs(own - arithmetic).max() > 1e-3
    translator.translate(["w1 " * 20])
    assert translator.lines_split == 1, "the smallest member sets the length of parts"


def test_the_mean_of_a_loaded_ensemble_may_change(tmp_path: Path) -> None:
    paths = [write_model(tmp_path / str(seed), f"seed={seed}") for seed in (1, 2)]
    linear, log = (
        Translator.load(paths[0], "cpu", "fp32", DecodeRecipe(ensemble_mean=mean), ensemble=paths[1:])
        for mean in ("linear", "log")
    )
    changed = linear.with_decode(DecodeRecipe(ensemble_mean="log"))
    assert changed.translate_n_best(LINES) == log.translate_n_best(LINES) != linear.translate_n_best(LINES)
    with pytest.raises(ValueError, match="ensemble_mean has no effect without an ensemble"):
        Translator.load(paths[0], "cpu").with_decode(DecodeRecipe(ensemble_mean="log"))


def test_members_of_different_unicode_forms_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forms = ("NFC", "NFKC", "NFC")
    paths = [write_model(tmp_path / str(seed), f"data.unicode_form={form}") for seed, form in enumerate(forms)]
    Translator.load(paths[0], "cpu", ensemble=paths[1:])
    warning = f"warning: {paths[1]} was trained on text in Unicode form NFKC, but this ensemble uses NFC, the form of"
    assert capsys.readouterr().err == f"{warning} {paths[0]}\n"
