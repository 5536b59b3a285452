"""The statistical aligner on the toy corpus, whose true alignments are known."""

from collections import defaultdict
from itertools import count

import pytest

from nmt.alignment.lexical import agreed_links, best_sources
from nmt.grammar.sampler import Sampler
from tests.grammar.true_links import Links, alignment_error_rate, sure_links, true_links

SENTENCES = 800

Aligned = tuple[list[tuple[list[str], list[str]]], list[Links]]


@pytest.fixture(scope="module")
def corpus() -> Aligned:
    sampler = Sampler("train", seed=5)
    aligned = [true_links(sampler.sentence()) for _ in range(SENTENCES)]
    text = [(pair.src.lower().split(), pair.tgt.lower().split()) for pair, _ in aligned]
    return text, [links for _, links in aligned]


@pytest.mark.slow
def test_the_aligner_finds_true_links(corpus: Aligned) -> None:
    """Symmetrized links and those of one direction; most links on the diagonal are wrong."""
    text, true = corpus
    ids: dict[str, int] = defaultdict(count().__next__)
    pairs = [([ids[word] for word in src], [ids[word] for word in tgt]) for src, tgt in text]
    forward = [{(source, target) for target, source in enumerate(own) if source >= 0} for own in best_sources(pairs)]
    diagonal = [{(target * len(src) // len(tgt), target) for target in range(len(tgt))} for src, tgt in text]
    assert alignment_error_rate(agreed_links(pairs), true) < 0.27
    assert alignment_error_rate(forward, true) < 0.27
    assert alignment_error_rate(diagonal, true) > 0.6


def test_true_links_join_translations(corpus: Aligned) -> None:
    found = {
        (src[source].strip(".,?"), tgt[target].strip(".,?"))
        for (src, tgt), links in zip(*corpus, strict=True)
        for source, target in sure_links(links)
    }
    assert found >= {("woman", "frau"), ("house", "haus"), ("old", "alte"), ("peter", "peter")}
    assert not found & {("the", "die"), ("not", "nicht"), ("woman", "haus")}
