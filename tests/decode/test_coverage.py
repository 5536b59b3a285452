"""The coverage penalty by hand, and the attention of real models against their full forward."""

import math

import pytest
import torch
from plain_search import AttentiveTableModel, random_attention
from test_scoring import SOURCES, make_batch, random_transformer
from test_search import Prefix, TableModel, random_table, source_of
from torch import Tensor

from nmt.decode.coverage import Coverage
from nmt.decode.ensemble import Ensemble
from nmt.decode.options import SearchOptions, length_penalty
from nmt.decode.search import beam_search
from nmt.model import attention as attention_module
from nmt.model.transformer import Transformer
from nmt.packed import PackedSequences
from nmt.recipe import UserError
from nmt.special_ids import BOS_ID, EOS_ID


def test_it_is_equation_14_of_wu_et_al() -> None:
    src = PackedSequences.from_lists([[4, 5, 6, EOS_ID], [7, EOS_ID], [EOS_ID]])
    steps = torch.tensor(
        [
            [[0.5, 0.3, 0.1, 0.1], [0.2, 0.8, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]],
            [[0.7, 0.1, 0.1, 0.1], [0.4, 0.6, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]],
        ]
    )  # (steps, sentences, src_len)
    coverage = Coverage.start(0.2, src, groups=1, width=1)
    for step in steps:
        coverage = coverage.look(step[:, None])
    expected = [0.2 * (math.log(1.0) + math.log(0.4) + math.log(0.2)), 0.2 * math.log(0.6), 0.0]
    assert coverage.penalty().flatten().tolist() == pytest.approx(expected, rel=1e-6)


def test_a_token_never_looked_at_costs_much_but_not_everything() -> None:
    src = PackedSequences.from_lists([[4, 5, EOS_ID]])
    coverage = Coverage.start(1.0, src, groups=1, width=1).look(torch.tensor([[[1.0, 0.0, 0.0]]]))
    assert coverage.penalty().item() == pytest.approx(math.log(torch.finfo(torch.float32).tiny))


def test_padding_does_not_change_a_bit() -> None:
    torch.manual_seed(0)
    sentence, neighbour = [4] * 37 + [EOS_ID], [5] * 300 + [EOS_ID]
    attention = torch.rand(1, 6, 38) * 0.9
    alone = Coverage.start(0.3, PackedSequences.from_lists([sentence]), 1, 6).look(attention).penalty()
    padded = torch.zeros(2, 6, 301)
    padded[:1, :, :38] = attention
    together = Coverage.start(0.3, PackedSequences.from_lists([sentence, neighbour]), 1, 6).look(padded).penalty()
    assert torch.equal(together[:1], alone)


def test_the_output_that_looks_at_everything_wins() -> None:
    """4 is likelier but looks at the first token alone; 5 looks at the second."""

    def table(_source: Prefix, prefix: Prefix) -> list[float]:
        row = [0.0, 0.0, 0.0, 0.02, 0.6, 0.38] if len(prefix) < 2 else [0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
        return [math.log(p) if p else -math.inf for p in row]

    def attention(_source: Prefix, prefix: Prefix) -> list[float]:
        return [0.02, 0.98, 0.0] if prefix[-1:] == (5,) else [0.98, 0.02, 0.0]

    src = PackedSequences.from_lists([source_of(2, 0)])
    for beta, expected in ((0.0, [4, 4]), (0.5, [4, 5])):
        options = SearchOptions(
            beam_size=4, length_penalty="none", max_extra_tokens=0, coverage_beta=beta, min_tokens=2
        )
        [[found]] = beam_search(AttentiveTableModel(table, attention), src, options)
        assert found.tokens == expected
    assert found.log_prob == pytest.approx(math.log(0.6 * 0.38), rel=1e-5)
    looks = [0.98 + 0.98 + 0.02, 0.02 + 0.02 + 0.98]
    assert found.score == pytest.approx(found.log_prob + 0.5 * sum(math.log(min(look, 1)) for look in looks), rel=1e-5)


def test_a_model_without_attention_is_refused_only_when_it_is_needed() -> None:
    model, src = TableModel(random_table(1, 3)), PackedSequences.from_lists([source_of(2, 0)])
    assert beam_search(model, src, SearchOptions())
    for one in (model, Ensemble([AttentiveTableModel(random_table(1, 3), random_attention(1)), model])):
        with pytest.raises(UserError, match=r"^[^\n]*;[^\n]*;[^\n]*$"):
            beam_search(one, src, SearchOptions(coverage_beta=0.1))


# --- Real models -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def full_attention(model: Transformer, src: list[int], tgt: list[int], monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """The mean over the heads of the last layer at every step, (tgt_len + 1, src_len), of one pass over all of it."""
    kept: list[Tensor] = []
    equation = attention_module.scaled_dot_product

    def listening(*arguments: Tensor) -> tuple[Tensor, Tensor]:
        out, weights = equation(*arguments)
        kept.append(weights)
        return out, weights

    with monkeypatch.context() as patch:
        patch.setattr(attention_module, "scaled_dot_product", listening)
        batch = make_batch([(src, tgt)])
        model(batch.src, batch.tgt)
    assert len(kept) == 2 + 2 * 2  # one in each encoder layer, two in each decoder layer: the last is the one
    return kept[-1].mean(dim=1)[0, : len(tgt) + 1, : len(src) + 1]


@pytest.mark.parametrize("members", [1, 2])
def test_attention_in_search_is_that_of_the_full_forward(members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [random_transformer(order).double() for order in ("post", "pre")[:members]]
    model = models[0] if members == 1 else Ensemble(models)
    sources = [[*src, EOS_ID] for src in SOURCES]
    options = SearchOptions(beam_size=3, n_best=3, max_extra_tokens=4, coverage_beta=0.3)
    found = beam_search(model, PackedSequences.from_lists(sources), options)
    for src, hypotheses in zip(SOURCES, found, strict=True):
        assert [h.score for h in hypotheses] == sorted([h.score for h in hypotheses], reverse=True)
        for h in hypotheses:
            of_members = torch.stack([full_attention(one, src, h.tokens, monkeypatch) for one in models])
            looks = of_members.mean(dim=0).sum(dim=0)[:-1]  # the end token of the source needs no translation
            coverage = 0.3 * looks.clamp(max=1.0).log().sum().item()
            penalty = length_penalty(len(h.tokens) + 1, "gnmt", 0.6)
            assert h.score == pytest.approx(h.log_prob / penalty + coverage, rel=1e-4, abs=1e-4)


def test_attention_sums_to_one_and_not_behind_the_end() -> None:
    model = random_transformer("post")
    src = PackedSequences.from_lists([[5, 6, 7, EOS_ID], [8, EOS_ID]])
    with torch.no_grad():
        state = model.start(src, beam_size=2)
        model.step(torch.full((2, 2), BOS_ID), state)
    attention = state.attention()
    assert attention.shape == (2, 2, 4) and attention.dtype == torch.float32
    torch.testing.assert_close(attention.sum(dim=2), torch.ones(2, 2))
    assert (attention[1, :, 2:] == 0).all()


def test_the_penalty_changes_what_a_real_model_says() -> None:
    model = random_transformer("post")
    src = PackedSequences.from_lists([[*src, EOS_ID] for src in SOURCES])
    outputs = [
        [h.tokens for [h] in beam_search(model, src, SearchOptions(max_extra_tokens=8, coverage_beta=beta))]
        for beta in (0.0, 2.0)
    ]
    assert outputs[0] != outputs[1]
