"""Validation loss, compared with a direct computation; sample translations; precision; signals."""

import math
import os
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from markdown_it import MarkdownIt
from torch import Tensor, nn
from torch.nn import functional as F

from nmt import validation_bleu
from nmt.bench.random_model import numbered_word_tokenizers
from nmt.data.epoch_plan import plan_by_length
from nmt.data.loader import make_batch
from nmt.data.store import PairStore, PairWriter, token_dtype
from nmt.data.test_sets import TestSet
from nmt.devices.precision import autocast, choose_precision
from nmt.model.transformer import Transformer
from nmt.packing.packed import Batch
from nmt.processes import interruption
from nmt.processes.distributed import World
from nmt.processes.interruption import EXIT_STATUS
from nmt.recipe import Recipe
from nmt.train.loss import TrainingLoss
from nmt.train.signals import stop_requests
from nmt.train.validate import Validation, perplexity, validate
from nmt.validation_bleu import validation_translator

CPU = torch.device("cpu")


def test_sample_translations_are_cells_of_a_table(tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny_recipe.model_copy(update={"train": tiny_recipe.train.model_copy(update={"validate_bleu_every": 1})})
    valid = SimpleNamespace(src=["a | b", "c"], ref=["x | y", "*z*"], previous=None, tags=None)
    tokenizers = SimpleNamespace(tgt=SimpleNamespace(lowercases=lambda: False))
    prepared: Any = SimpleNamespace(valid_set=lambda: valid, tokenizers=tokenizers)
    translator = SimpleNamespace(translate=lambda lines, context: ["x | y", "<z>"][: len(lines)])
    monkeypatch.setattr(validation_bleu, "_translator_of", lambda *_: translator)
    translate = validation_translator(recipe, prepared, World(0, 1, CPU))
    assert translate is not None
    found = translate(Transformer(recipe.model, 40, 40), lambda: None)
    assert found is not None
    html = MarkdownIt("commonmark").enable("table").render(found.samples)
    cells = re.findall(r"<t[dh]>(.*?)</t[dh]>", html)
    assert cells[3:] == ["a | b", "x | y", "x | y", "c", "&lt;z&gt;", "*z*"]


def test_each_sentence_is_translated_with_its_tag(tiny_recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny_recipe.model_copy(update={"train": tiny_recipe.train.model_copy(update={"validate_bleu_every": 1})})
    lines = ["a", "b", "c"]
    valid = TestSet("valid", lines, [["<x>a", "b", "<x>c"]], tags=["<x>", "", "<x>"])
    tokenizers = SimpleNamespace(tgt=SimpleNamespace(lowercases=lambda: False))
    prepared: Any = SimpleNamespace(valid_set=lambda: valid, tokenizers=tokenizers)

    def translator(tag: str) -> Any:
        return SimpleNamespace(
            translate=lambda lines, context: [tag + line for line in lines], with_constraints=translator
        )

    monkeypatch.setattr(validation_bleu, "_translator_of", lambda *_: translator(""))
    translate = validation_translator(recipe, prepared, World(0, 1, CPU))
    assert translate is not None
    found = translate(Transformer(recipe.model, 40, 40), lambda: None)
    assert found is not None
    cells = re.findall(r"<td>(.*?)</td>", MarkdownIt("commonmark").enable("table").render(found.samples))
    assert cells[1::3] == cells[2::3] == ["&lt;x&gt;a", "b", "&lt;x&gt;c"]


def test_translations_of_a_right_to_left_model_are_in_reading_order(tiny_recipe: Recipe) -> None:
    torch.manual_seed(0)  # with other seeds, the model repeats one word or writes nothing
    model = Transformer(tiny_recipe.model, 40, 40).eval()
    backwards = tiny_recipe.model_copy(update={"data": tiny_recipe.data.model_copy(update={"reverse_target": True})})
    prepared: Any = SimpleNamespace(tokenizers=numbered_word_tokenizers(40))
    one, other = (
        validation_bleu._translator_of(model, recipe, prepared, World(0, 1, CPU)).translate(["w1 w2", "w3 w4 w5"])
        for recipe in (tiny_recipe, backwards)
    )
    assert other == [" ".join(reversed(text.split())) for text in one] != one


@pytest.fixture
def valid_store(tmp_path: Path) -> PairStore:
    """20 pairs, whose targets are about twice as long as their sources."""
    random = np.random.Generator(np.random.PCG64(7))
    with PairWriter(tmp_path, "valid", {"src": token_dtype(40), "tgt": token_dtype(40)}) as writer:
        src_lengths, tgt_lengths = random.integers(1, 6, 20), random.integers(1, 11, 20)
        writer.append("src", random.integers(4, 40, src_lengths.sum()), src_lengths)
        writer.append("tgt", random.integers(4, 40, tgt_lengths.sum()), tgt_lengths)
    return PairStore(tmp_path, "valid")


@pytest.mark.parametrize("budget", [25, 10_000])
def test_validation_is_the_mean_over_all_tokens_without_dropout(
    tiny_recipe: Recipe, valid_store: PairStore, budget: int
) -> None:
    model, store = Transformer(tiny_recipe.model, 40, 40), valid_store
    loss = TrainingLoss(model, 0.1).train()
    found = validate(loss, store, World(0, 1, CPU), budget, lambda: None)
    assert loss.training
    loss.eval()
    parts: list[Tensor] = []  # sums of loss, nll and tokens of each process

    def collect(sums: Tensor) -> Tensor:
        parts.append(sums)
        return torch.ones_like(sums)

    for rank in range(2):
        world: Any = SimpleNamespace(rank=rank, size=2, device=CPU, sum=collect)
        validate(loss, store, world, budget, lambda: None)
    assert not loss.training
    total = torch.stack(parts).sum(dim=0)
    assert [found.loss, found.nll] == pytest.approx((total[:2] / total[2]).tolist(), rel=1e-6)
    logits, labels = [], []
    for pair in range(len(store)):
        batch = make_batch(store, np.array([pair]))
        logits.append(model.logits(model(batch.src, batch.tgt)))
        labels.append(batch.labels)
    flat, gold = torch.cat(logits).detach(), torch.cat(labels)
    assert found.nll == pytest.approx(F.cross_entropy(flat, gold).item(), rel=1e-5)
    assert found.loss == pytest.approx(F.cross_entropy(flat, gold, label_smoothing=0.1).item(), rel=1e-5)
    assert found.perplexity == pytest.approx(math.exp(found.nll))


def test_perplexity_far_above_that_of_a_uniform_distribution_is_infinite() -> None:
    assert Validation(loss=1e9, nll=1e9).perplexity == float("inf")
    assert Validation(loss=60.0, nll=60.0).perplexity == float("inf")
    assert Validation(loss=40.0, nll=40.0).perplexity == pytest.approx(math.exp(40))
    assert [perplexity(nll) for nll in (math.nan, 50.0, math.nextafter(50.0, 0), 0.0)] == pytest.approx(
        [math.inf, math.inf, math.exp(50), 1.0]
    )


@pytest.mark.parametrize("was_training", [True, False])
def test_an_interrupted_validation_restores_the_mode(was_training: bool, valid_store: PairStore) -> None:
    modes: list[tuple[bool, bool]] = []

    class Loss(nn.Module):
        def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
            modes.append((self.training, torch.is_grad_enabled()))
            return torch.tensor(1.0), torch.tensor(2.0)

    def stop_before_the_third() -> None:
        if len(modes) == 2:
            raise InterruptedError

    loss: Any = Loss().train(was_training)
    with pytest.raises(InterruptedError):
        validate(loss, valid_store, World(0, 1, CPU), 25, stop_before_the_third)
    assert modes == [(False, False)] * 2 and loss.training is was_training


def test_every_process_asks_to_stop_before_each_micro_batch_also_without_one(valid_store: PairStore) -> None:
    """Otherwise the all-reduces of the processes would not match."""
    num_batches = len(plan_by_length(valid_store.src.lengths, valid_store.tgt.lengths, micro_batch_tokens=25))
    size = num_batches - 1  # one process has two micro-batches, the others one
    for rank in (0, 1, size - 1):
        calls: list[str] = []
        seen: list[Batch] = []

        class Loss(nn.Module):
            def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
                seen.append(batch)  # noqa: B023
                calls.append("loss")  # noqa: B023
                return torch.tensor(6.0), torch.tensor(4.0)

        world: Any = SimpleNamespace(rank=rank, size=size, device=CPU, sum=lambda sums: sums)
        loss: Any = Loss()
        found = validate(loss, valid_store, world, 25, lambda: calls.append("check"))  # noqa: B023
        assert calls == (["check", "loss", "check", "loss"] if rank == 0 else ["check", "loss", "check"])
        tokens = sum(batch.tgt_tokens for batch in seen)
        assert (found.loss, found.nll) == pytest.approx((6 * len(seen) / tokens, 4 * len(seen) / tokens))


@pytest.mark.parametrize(
    ("avx512", "amx", "expected"), [(False, False, "fp32"), (True, False, "bf16"), (False, True, "bf16")]
)
def test_precision_follows_the_processor(
    avx512: bool, amx: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert choose_precision("auto", CPU) == expected
    assert choose_precision("fp32", CPU) == "fp32"


def test_autocast_computes_matmuls_in_its_precision() -> None:
    a = torch.randn(4, 4)
    with autocast("bf16", CPU):
        assert (a @ a).dtype == torch.bfloat16
    with autocast("fp32", CPU):
        assert (a @ a).dtype == torch.float32


@pytest.mark.parametrize(("number", "status"), EXIT_STATUS.items())
def test_a_signal_is_recorded_and_handlers_are_restored(number: signal.Signals, status: int) -> None:
    before = signal.getsignal(number)
    with stop_requests() as request:
        assert request.status == 0
        os.kill(os.getpid(), number)
        assert request.status == status
    assert signal.getsignal(number) is before


def test_a_second_interrupt_acts_at_once_but_a_copy_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    with stop_requests() as request:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        assert request.status == 130
        monkeypatch.setattr(interruption, "COPY_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
