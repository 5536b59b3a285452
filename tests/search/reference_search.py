"""Reference implementation of search in plain Python: one sentence at a time, in double precision."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nmt.search.options import SearchOptions
from nmt.special_ids import EOS_ID
from tests.search.test_search import Prefix, Scored, Table, reference_penalty

NEG_INF = float("-inf")

Bias = Sequence[tuple[Prefix, float]]


@dataclass(frozen=True)
class Task:
    """One sentence with its options and constraints.

    required: requirements, lists of alternative phrases; the output contains a phrase of each list
    """

    table: Table
    source: Prefix
    options: SearchOptions
    prefix: Prefix = ()
    required: tuple[tuple[Prefix, ...], ...] = ()

    @property
    def longest(self) -> int:
        """Maximum output length, EOS excluded."""
        options, src_tokens = self.options, len(self.source) - 1
        longest = src_tokens + options.max_extra_tokens
        if options.max_length_ratio < math.inf:
            longest = min(longest, math.ceil(options.max_length_ratio * src_tokens))
        needed = len(self.prefix) + sum(min(map(len, phrases)) for phrases in set(map(frozenset, self.required)))
        if options.max_tokens is not None:
            longest, needed = min(longest, options.max_tokens), min(needed, options.max_tokens)
        return max(longest, needed, len(self.prefix))

    @property
    def shortest(self) -> int:
        """Minimum output length, EOS excluded."""
        by_ratio = math.floor(self.options.min_length_ratio * (len(self.source) - 1))
        return min(self.longest, max(self.options.min_tokens, by_ratio))

    def may_follow(self, tokens: Prefix, token: int) -> bool:
        """Return whether the constraints allow `token` after `tokens`."""
        if len(tokens) < len(self.prefix):
            return token == self.prefix[len(tokens)]
        if token == EOS_ID:
            return len(tokens) >= self.shortest and self.meets_all(tokens)
        if token < EOS_ID or len(tokens) == self.longest:
            return False
        grown, n = (*tokens, token), self.options.no_repeat_ngram
        if 0 < n <= len(tokens) and count(grown[-n:], tokens):
            return False
        return not any(grown[-len(phrase) :] == phrase for phrase in self.options.forbidden)

    def meets_all(self, tokens: Prefix) -> bool:
        return all(any(count(phrase, tokens) for phrase in phrases) for phrases in self.required)

    def log_probs(self, tokens: Prefix) -> list[float]:
        """Log-probabilities of the tokens of a complete output, and of EOS."""
        return [self.table(self.source, tokens[:i])[token] for i, token in enumerate((*tokens, EOS_ID))]

    def score(self, tokens: Prefix) -> float:
        """Score of a complete output."""
        total = sum(self.log_probs(tokens)) + total_bias(self.options.bias, tokens)
        return total / reference_penalty(len(tokens) + 1, self.options)

    def missing(self, tokens: Prefix) -> int:
        """Fewest tokens that meet all missing requirements one by one; one of them may already be in progress."""
        requirements = set(map(frozenset, self.required))
        unmet = [phrases for phrases in requirements if not any(count(phrase, tokens) for phrase in phrases)]
        shortest = [min(map(len, phrases)) for phrases in unmet]
        continued = [min(len(phrase) - begun(phrase, tokens) for phrase in phrases) for phrases in unmet]
        return min((sum(shortest) - whole + rest for whole, rest in zip(shortest, continued, strict=True)), default=0)


def total_bias(bias: Bias, tokens: Prefix) -> float:
    """Bias of an output: a positive value counts once, a negative one at every occurrence of its phrase."""
    counts = [count(phrase, tokens) for phrase, _ in bias]
    return sum(value * (min(found, 1) if value > 0 else found) for (_, value), found in zip(bias, counts, strict=True))


def max_credit(bias: Bias, tokens: Prefix) -> float:
    """Credit for the best partial match of a preferred phrase that the output does not contain."""
    absent = [(phrase, value) for phrase, value in bias if value > 0 and not count(phrase, tokens)]
    return max((value * begun(phrase, tokens) / len(phrase) for phrase, value in absent), default=0.0)


def count(phrase: Prefix, tokens: Prefix) -> int:
    return sum(tokens[i : i + len(phrase)] == phrase for i in range(len(tokens) - len(phrase) + 1))


def begun(phrase: Prefix, tokens: Prefix) -> int:
    """Length of the longest prefix of the phrase that is a suffix of the output."""
    return max(k for k in range(len(phrase) + 1) if tokens[len(tokens) - k :] == phrase[:k] and k <= len(tokens))


def best_outputs(task: Task) -> list[Scored]:
    """Enumerate all outputs, best first: the true optimum."""
    words = range(EOS_ID + 1, len(task.table(task.source, ())))
    found = []
    for length in range(task.longest + 1):
        for tokens in itertools.product(words, repeat=length):
            log_prob = sum(task.log_probs(tokens))
            allowed = all(task.may_follow(tokens[:i], token) for i, token in enumerate((*tokens, EOS_ID)))
            if allowed and log_prob > NEG_INF:
                found.append((task.score(tokens), log_prob, tokens))
    return sorted(found, reverse=True)[: task.options.n_best]


# --- Beam search with pruning ----------------------------------------------------------------------------------------

Live = tuple[float, Prefix]  # log-probability, tokens
Candidate = tuple[float, float, Prefix]  # rank, log-probability, tokens including EOS


def beam_outputs(task: Task) -> list[Scored]:
    """Beam search with all options; with `stop = "exact"`, it always runs to the maximum length."""
    options = task.options
    width = options.beam_size // options.beam_groups
    groups: list[list[Live]] = [[(0.0, ())] for _ in range(options.beam_groups)]
    ended: list[list[Scored]] = [[] for _ in groups]
    patience = max(1, math.floor(width * options.patience + 0.5))
    wanted = {"exact": math.inf, "first": width, "patience": patience}[options.stop]
    for length in range(1, task.longest + 2):
        taken: Counter[int] = Counter()
        for number, live in enumerate(groups):
            found = sorted(candidates(task, live, taken, width), key=lambda candidate: -candidate[0])
            chosen = list(order_by_bank(task, found, length))[: 2 * width if width > 1 else 1]
            is_open = len(ended[number]) < wanted
            for position, (_, log_prob, (*tokens, token)) in enumerate(chosen):
                if token == EOS_ID and is_open and (options.stop == "exact" or position < width):
                    ended[number].append((task.score(tuple(tokens)), log_prob, tuple(tokens)))
            groups[number] = [(log_prob, t) for _, log_prob, t in chosen if t[-1] != EOS_ID][:width]
            taken.update(tokens[-1] for _, tokens in groups[number])
        if all(len(group) >= wanted for group in ended):
            break
    kept = [sorted(group, reverse=True)[: min(options.n_best, width)] for group in ended]
    return merge_groups(kept, options.n_best)


def candidates(task: Task, live: Sequence[Live], taken: Counter[int], width: int) -> Iterator[Candidate]:
    """Yield the best extensions of each hypothesis, and all its extensions by a token of a required phrase."""
    required_tokens = {token for phrases in task.required for phrase in phrases for token in phrase}
    for log_prob, tokens in live:
        found = []
        for token, more in enumerate(task.table(task.source, tokens)):
            if more > NEG_INF and task.may_follow(tokens, token):
                grown = (*tokens, token)
                bias = total_bias(task.options.bias, grown)
                credit = max_credit(task.options.bias, grown) if token != EOS_ID else 0.0
                rank = log_prob + more + bias + credit - task.options.diversity_penalty * taken[token]
                found.append((rank, log_prob + more, grown))
        found.sort(key=lambda candidate: -candidate[0])
        num_best = 2 * width if width > 1 else 1
        yield from found[:num_best]
        yield from (candidate for candidate in found[num_best:] if candidate[2][-1] in required_tokens)


def order_by_bank(task: Task, found: Sequence[Candidate], length: int) -> Iterator[Candidate]:
    """Yield the best of each bank, then the second best of each, and so on.

    A bank has the candidates that lack the same number of required tokens. Those that cannot fit them come last.
    """
    if not task.required:
        yield from found
        return
    capacity = task.longest - length
    for fits in (True, False):
        banks: dict[int, list[Candidate]] = defaultdict(list)
        for candidate in found:
            tokens = candidate[2]
            missing = task.missing(tokens[:-1] if tokens[-1] == EOS_ID else tokens)
            if (missing <= capacity or tokens[-1] == EOS_ID) == fits:
                banks[missing].append(candidate)
        for turn in itertools.zip_longest(*(banks[missing] for missing in sorted(banks))):
            yield from filter(None, turn)


def merge_groups(groups: Sequence[Sequence[Scored]], n_best: int) -> list[Scored]:
    """Return the best of every group, then the second of every group, and so on, without duplicates."""
    merged: list[Scored] = []
    for rank in range(max(map(len, groups))):
        for output in sorted((group[rank] for group in groups if rank < len(group)), reverse=True):
            if output[2] not in [tokens for _, _, tokens in merged]:
                merged.append(output)
    return sorted(merged[:n_best], reverse=True)
