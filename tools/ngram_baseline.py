"""An n-gram language model with interpolated Kneser-Ney smoothing; see `tools/ngram-baseline`."""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from nmt.data.prepare import Prepared, load_prepared
from nmt.data.store import PairStore
from nmt.decode.scoring import Likelihood, PairScore
from nmt.errors import UserError
from nmt.recipe.context import SEPARATOR
from nmt.special_ids import BOS_ID, EOS_ID
from nmt.text.clean import normalize
from nmt.text.context import after_last
from nmt.text.lines import read_lines

# Padding, unknown and BOS are never predicted.
NEVER_PREDICTED = 3
MAX_ORDER = 10
# Keeps the probability of an unseen token above 0 where the estimate of a discount is not positive.
MIN_DISCOUNT = 1e-4

EPILOG = """\
The n-gram model is trained on the tokens of the training text of a run. `nmt prepare RECIPE` is enough for this; no
training is needed. Smoothing: interpolated Kneser-Ney with three discounts for each order (Chen and Goodman 1998).
Choose the order on the validation set. `nmt score` prints the same values for a language model.

exit status: 0 success, 2 invalid input or command line
"""

Gram = tuple[int, ...]


class KneserNey:
    """Interpolated Kneser-Ney smoothing with three discounts for each order (Chen and Goodman 1998).

    p_k(w | h) = (c(hw) - D(c(hw)) + gamma(h) p_{k-1}(w | h without its first token)) / c(h), and p_0 is uniform. The
    count c of a lower order is the number of distinct tokens before hw; for the highest order, and where hw begins the
    sentence, it is the number of occurrences.
    """

    def __init__(self, sentences: Iterable[Sequence[int]], order: int, vocab_size: int) -> None:
        """sentences: token ids without BOS and EOS; vocab_size: number of tokens that can be predicted."""
        self._order, self._uniform = order, 1.0 / vocab_size
        occurrences: list[Counter[Gram]] = [Counter() for _ in range(order)]
        for sentence in sentences:
            padded = (BOS_ID, *sentence, EOS_ID)
            for length, counter in enumerate(occurrences, start=1):
                counter.update(padded[end - length : end] for end in range(max(2, length), len(padded) + 1))
        self._counts: list[Counter[Gram]] = []
        for shorter, longer in pairwise(occurrences):
            distinct = Counter(gram[1:] for gram in longer)
            self._counts.append(distinct | Counter({gram: n for gram, n in shorter.items() if gram[0] == BOS_ID}))
        self._counts.append(occurrences[-1])
        self._discounts = [_discounts(counter.values()) for counter in self._counts]
        self._totals: list[defaultdict[Gram, int]] = [defaultdict(int) for _ in range(order)]
        self._reserved: list[defaultdict[Gram, float]] = [defaultdict(float) for _ in range(order)]
        for level, counter in enumerate(self._counts):
            for gram, count in counter.items():
                self._totals[level][gram[:-1]] += count
                self._reserved[level][gram[:-1]] += self._discounts[level][min(count, 3)]

    def probability(self, history: Gram, token: int) -> float:
        """Return the probability of a token given all preceding tokens of its sentence, BOS included."""
        result = self._uniform
        for level in range(min(self._order, len(history) + 1)):
            context = history[len(history) - level :]
            total = self._totals[level].get(context)
            if total is None:  # longer contexts have not been seen either
                break
            count = self._counts[level].get((*context, token), 0)
            discounted = count - self._discounts[level][min(count, 3)]
            result = (discounted + self._reserved[level][context] * result) / total
        return result

    def log_probs(self, sentence: Sequence[int]) -> list[float]:
        """Return the natural logarithm of the probability of each token and of EOS."""
        tokens = (BOS_ID, *sentence, EOS_ID)
        return [math.log(self.probability(tokens[:end], tokens[end])) for end in range(1, len(tokens))]


def _discounts(counts: Iterable[int]) -> tuple[float, float, float, float]:
    """Estimate the discounts of counts 0, 1, 2, and 3 or more, from the numbers of n-grams with counts 1 to 4."""
    numbers = Counter(count for count in counts if count <= 4)
    if not all(numbers[count] for count in range(1, 5)):
        return 0.0, 0.5, 0.5, 0.5  # too little text for an estimate
    ratio = numbers[1] / (numbers[1] + 2 * numbers[2])
    one, two, more = (n - (n + 1) * ratio * numbers[n + 1] / numbers[n] for n in (1, 2, 3))
    return 0.0, one, max(two, MIN_DISCOUNT), max(more, MIN_DISCOUNT)  # the first estimate is always positive


def training_sentences(prepared: Prepared) -> Iterator[list[int]]:
    """Yield the target tokens of each training sentence in reading order, without the sentences of its context."""
    store = PairStore(prepared.directory, "train").tgt
    tokens, step = store.tokens.tolist(), -1 if prepared.report["recipe"]["data"].get("reverse_target") else 1
    separator = prepared.tokenizers.tgt.user_symbols().get(SEPARATOR)
    for start, end in pairwise(store.offsets.tolist()):
        sentence = tokens[start:end][::step]
        yield sentence[after_last(sentence, separator) :]


def score(model: KneserNey, prepared: Prepared, text: Path) -> Likelihood:
    """Score the lines of a file."""
    form, tokenizer, total = prepared.report["recipe"]["data"]["unicode_form"], prepared.tokenizers.tgt, Likelihood()
    for line in read_lines(text):
        tokens = tokenizer.encode(normalize(line, form))
        log_probs = model.log_probs(tokens)
        total.add(PairScore(math.fsum(log_probs), log_probs), len(tokenizer.decode(tokens).encode()))
    if not total.tokens:
        raise UserError(f"{text} is empty; it must have one sentence per line; check the file")
    return total


def main(arguments: Sequence[str]) -> int:
    """Print the scores of each order; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="tools/ngram-baseline",
        description="Score text with n-gram models of the training tokens of a run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="a run directory with prepared text")
    parser.add_argument("text", type=Path, nargs="+", help="text, one sentence per line, plain or compressed")
    parser.add_argument("--order", type=int, action="append", metavar="N", help="length of n-grams (default: 2 to 6)")
    options = parser.parse_args(arguments)
    try:
        orders = options.order or range(2, 7)
        if wrong := [order for order in orders if not 1 <= order <= MAX_ORDER]:
            raise UserError(f"--order must be from 1 to {MAX_ORDER}, got {wrong[0]}")
        prepared = load_prepared(options.run / "data")
        prepared.verify()
        vocab_size = prepared.tokenizers.tgt.vocab_size - NEVER_PREDICTED
        sys.stdout.write("| order | text | tokens | perplexity | bits per byte |\n|---|---|---|---|---|\n")
        for order in orders:
            model = KneserNey(training_sentences(prepared), order, vocab_size)
            for text in options.text:
                total = score(model, prepared, text)
                values = f"{total.tokens:,} | {total.perplexity:.2f} | {total.bits_per_byte:.4f}"
                sys.stdout.write(f"| {order} | {text} | {values} |\n")
    except UserError as error:
        sys.stderr.write(f"ngram-baseline: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
