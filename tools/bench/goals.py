"""Speed goals of nmt and how they are measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Unit = Literal["ratio", "fraction", "minutes", "seconds", "BLEU"]
"""ratio: of the rates in a comparison, ours to theirs; the other units are for measurements of nmt alone."""

# Formats of targets and of measured values.
_FORMATS: dict[Unit, tuple[str, str]] = {
    "ratio": ("at least {:g}x", "{:.2f}x"),
    "fraction": ("at least {:.0%}", "{:.1%}"),
    "minutes": ("at most {:g} min", "{:.1f} min"),
    "seconds": ("at most {:g} s", "{:.2f} s"),
    "BLEU": ("at least {:g} BLEU", "{:.1f} BLEU"),
}


@dataclass(frozen=True)
class Goal:
    """A goal with its target: a minimum, or for times a maximum.

    command: measures it; comparisons also add an entry to the ledger, others need `tools/bench/run record NAME VALUE`
    limits:  where the time goes and the next step; shown while the goal is not reached
    """

    name: str
    text: str
    unit: Unit
    target: float
    command: str
    limits: str = ""

    def is_reached(self, value: float) -> bool:
        """Return whether a value reaches the target."""
        return value <= self.target if self.unit in ("minutes", "seconds") else value >= self.target

    @property
    def target_text(self) -> str:
        """The target in words."""
        return _FORMATS[self.unit][0].format(self.target)

    def format_value(self, value: float) -> str:
        """Format a measured value with its unit."""
        return _FORMATS[self.unit][1].format(value)


_NO_GPU = "No GPU was available for this measurement."
_NO_GPU_FOR_SEARCH = (
    f"{_NO_GPU} Decoder steps are captured as CUDA graphs (`nmt/inference/captured.py`), with continuous batching; "
    "everything but the capture itself is tested on a CPU."
)

_FILE = "tools/bench/run file --model runs/multi30k-en-de-wide --source FILE"
_BASE = "tools/bench/run file --model runs/base --source FILE"
# Systems come first in commands of GPU goals; `gpu_check` replaces model and file.
_FILE_GPU = "--model RUN --source FILE --device cuda"
_CTRANSLATE2_GPU = "ctranslate2:compute_type=float16,inter_threads=1,batch_sentences=256"
_FILE_LIMITS = (
    "Startup takes 0.31 s, that of CTranslate2 0.15 s. Python takes about 60 µs per line: normalization, checks, "
    "limits, and the record for `--resume`."
)
_SMALL_STEPS = (
    "One decoder step of a small model is hundreds of operations of a few microseconds, which torch launches one by "
    "one. `nmt/guide/benchmarks.md` has a profile of beam 5 and lists what was tried."
)
_BASE_STEPS = "`nmt/guide/benchmarks.md` has a profile and the matmul rates of each precision and lists what was tried."

GOALS = (
    Goal(
        "train-cpu-eole-bf16",
        "base on Multi30k, CPU: eole in bf16",
        "ratio",
        2.0,
        "tools/bench/run train nmt:precision=bf16 eole:precision=bf16 --goal train-cpu-eole-bf16",
        "On the AMD EPYC, matmuls at their full rate take two thirds of an update and cost both systems the same; the "
        "ratio would be 2.2 if everything else took no time. Next step: as for `train-cpu-fp32`.",
    ),
    Goal(
        "train-cpu-fp32",
        "base on Multi30k, CPU: our fastest against the best fp32 peer",
        "ratio",
        4.0,
        "tools/bench/run train nmt:precision=bf16 transformers --goal train-cpu-fp32",
        "transformers is the fastest fp32 system here; nmt in bf16 reaches 3.6 times the rate of eole and OpenNMT-py, "
        "4.3 times that of Sockeye and 9.0 times that of JoeyNMT (five rounds each, below). Matmuls take half of an "
        "update's CPU time; those for weight gradients run at half the rate of the others, because one operand is "
        "transposed (480 instead of 1,000 GFLOP/s per core, 2,048 x 512 by 2,048 x 2,048). The rest is copies and "
        "casts (13%), attention (8%), and sums, norms, dropout and the optimizer. Transposing the narrower operand "
        "first saves 3 to 5 ms of 11 in isolation and nothing in a whole update, where no operand is in cache. Next "
        "step: cast, clip and update the weights as one tensor instead of 130. On the AMD EPYC, bf16 is only three "
        "times as fast as float32, and matmuls take two thirds of an update.",
    ),
    Goal(
        "train-cpu-linear",
        "base on Multi30k, CPU: fraction of the measured F.linear rate",
        "fraction",
        0.60,
        "nmt bench train base --lengths RUN --vocab-size 8000 --batch-tokens 2048 --precision bf16 --json train.json",
        "AMX reaches 2.3 TFLOP/s on two cores, so memory-bound operations take half of the time: casts between "
        "bf16 and float32, dropout, residuals, norms, transposes for attention. With the small Multi30k model, the "
        "second core is idle two fifths of the time while the first launches about 5,000 operations. torch.compile by "
        "layer gained nothing (1,930 ms of CPU time per update against 1,760). Next step: as for `train-cpu-fp32`.",
    ),
    Goal(
        "train-gpu-big",
        "big, WMT14 lengths, H200 bf16: fraction of the F.linear rate (0.28 million tokens/s)",
        "fraction",
        0.45,
        "nmt bench train big --device cuda --precision bf16 --compile --json big.json",
        _NO_GPU,
    ),
    Goal(
        "train-gpu-base",
        "base, WMT14 lengths, H200 bf16: fraction of the F.linear rate (0.74 million tokens/s)",
        "fraction",
        0.35,
        "nmt bench train base --device cuda --precision bf16 --compile --json base.json",
        _NO_GPU,
    ),
    Goal(
        "train-gpu-rows",
        "positions that are tokens, not padding, WMT14 lengths in updates of 25,000; the same on any device",
        "fraction",
        0.99,
        "nmt bench train tiny --vocab-size 100 --precision fp32 --batch-tokens 25000 --micro-batch-tokens 4096 "
        "--json rows.json train.shapes=fixed",
    ),
    Goal(
        "train-gpu-eole",
        "H200 bf16: eole",
        "ratio",
        1.5,
        "tools/bench/run train nmt:precision=bf16,compile=true eole:precision=bf16 --device cuda --batch-tokens 25000 "
        "--goal train-gpu-eole",
        _NO_GPU,
    ),
    Goal(
        "train-gpu-transformers",
        "H200 bf16: transformers",
        "ratio",
        1.5,
        "tools/bench/run train nmt:precision=bf16,compile=true transformers:precision=bf16 --device cuda "
        "--batch-tokens 25000 --goal train-gpu-transformers",
        _NO_GPU,
    ),
    Goal(
        "file-int8",
        "5,000 lines, Multi30k model, beam 5, complete command: CTranslate2 itself with its best settings (int8)",
        "ratio",
        1.0,
        f"{_FILE} nmt ctranslate2 --goal file-int8",
        "`nmt translate` also normalizes lines, records progress for `--resume`, and imports six packages.",
    ),
    Goal(
        "file-int8-ctranslate2",
        "the same with `--engine ctranslate2`",
        "ratio",
        0.95,
        f"{_FILE} nmt:engine=ctranslate2,precision=int8 ctranslate2 --goal file-int8-ctranslate2",
    ),
    Goal(
        "file-int8-beam4",
        "5,000 lines, Multi30k model, beam 4, complete command: CTranslate2 itself (int8)",
        "ratio",
        1.0,
        f"{_FILE} nmt ctranslate2 --beam-size 4 --goal file-int8-beam4",
        _FILE_LIMITS,
    ),
    Goal(
        "file-int8-greedy",
        "5,000 lines, Multi30k model, greedy search, complete command: CTranslate2 itself (int8)",
        "ratio",
        1.0,
        f"{_FILE} nmt ctranslate2 --beam-size 1 --goal file-int8-greedy",
        _FILE_LIMITS,
    ),
    Goal(
        "file-base-int8",
        "a base model, beam 5, complete command: CTranslate2 itself with its best settings (int8)",
        "ratio",
        1.0,
        f"{_BASE} nmt ctranslate2:batch_sentences=32 --goal file-base-int8",
        _FILE_LIMITS,
    ),
    Goal(
        "loaded-int8-ctranslate2",
        "the Multi30k model, loaded, one thread each, beam 5, int8: our CTranslate2 engine",
        "ratio",
        0.95,
        f"{_FILE} nmt:engine=ctranslate2,precision=int8 ctranslate2:inter_threads=1 --loaded "
        "--goal loaded-int8-ctranslate2",
    ),
    Goal(
        "loaded-int8-torch",
        "the same with our torch engine in int8",
        "ratio",
        0.9,
        f"{_FILE} nmt:precision=int8 ctranslate2:inter_threads=1 --loaded --goal loaded-int8-torch",
        _SMALL_STEPS,
    ),
    Goal(
        "loaded-fp32-torch",
        "the same, both in fp32",
        "ratio",
        0.9,
        f"{_FILE} nmt:precision=fp32 ctranslate2:compute_type=float32,inter_threads=1 --loaded "
        "--goal loaded-fp32-torch",
        _SMALL_STEPS,
    ),
    Goal(
        "loaded-int8-greedy",
        "the same with greedy search, both in int8",
        "ratio",
        0.9,
        f"{_FILE} nmt:precision=int8 ctranslate2:inter_threads=1 --loaded --beam-size 1 --goal loaded-int8-greedy",
        _SMALL_STEPS,
    ),
    Goal(
        "loaded-base-int8",
        "a base model, loaded, one thread each: our torch engine against CTranslate2, both in int8",
        "ratio",
        1.1,
        f"{_BASE} nmt:precision=int8 ctranslate2:inter_threads=1,batch_sentences=32 --loaded --goal loaded-base-int8",
        _BASE_STEPS,
    ),
    Goal(
        "loaded-base-fp32",
        "the same, both in fp32",
        "ratio",
        1.1,
        f"{_BASE} nmt:precision=fp32 ctranslate2:compute_type=float32,inter_threads=1,batch_sentences=32 --loaded "
        "--goal loaded-base-fp32",
        _BASE_STEPS,
    ),
    Goal(
        "loaded-base-bf16",
        "the same, our torch engine in bf16 against itself in fp32",
        "ratio",
        1.9,
        f"{_BASE} nmt:precision=bf16 nmt:precision=fp32 --loaded --goal loaded-base-bf16",
        _BASE_STEPS,
    ),
    Goal(
        "file-transformers",
        "Multi30k model, complete command, fp32: `generate` of transformers",
        "ratio",
        4.0,
        f"{_FILE} nmt:precision=fp32 transformers --goal file-transformers",
    ),
    Goal(
        "file-int8-newstest",
        "3,000 lines of newstest2013, small English-German model, beam 5, complete command: CTranslate2 itself (int8)",
        "ratio",
        1.0,
        "tools/bench/run file --model RUN --source newstest2013.en nmt ctranslate2 --goal file-int8-newstest",
    ),
    Goal(
        "file-int8-50000",
        "50,000 Tatoeba sentences, small English-German model, beam 5, complete command: CTranslate2 itself (int8)",
        "ratio",
        1.0,
        "tools/bench/run file --model RUN --source FILE nmt ctranslate2 --goal file-int8-50000",
        f"{_FILE_LIMITS} Windows of 1,024, 4,096 and 16,384 lines take the same time.",
    ),
    Goal(
        "one-line",
        "one line, complete command, the model converted beforehand",
        "seconds",
        0.4,
        f"{_FILE} nmt ctranslate2",
        "Python itself, typer, pydantic and sentencepiece take most of the time.",
    ),
    Goal(
        "serve-one-call",
        "`nmt serve` with a base model, 32 clients, one line per request: a server that calls CTranslate2 for each "
        "request",
        "ratio",
        1.5,
        "tools/bench/run serve --model runs/base --source FILE nmt one-call --goal serve-one-call",
        "With a model of half the width and depth, batches save less: 1.07 (1.03 to 1.12).",
    ),
    Goal(
        "serve-translate",
        "`nmt serve`, 200 clients, one line per request: `nmt translate` with the same lines in a file",
        "ratio",
        0.9,
        "tools/bench/run serve --model runs/multi30k-en-de-wide --source FILE nmt translate --clients 200 "
        "--goal serve-translate",
        "In Python, a request takes about a millisecond of CPU time on the same cores.",
    ),
    Goal(
        "decode-gpu-batch32",
        "GPU, beam 4, batch 32: CTranslate2 in float16",
        "ratio",
        1.5,
        "tools/bench/run decode nmt:precision=bf16 ctranslate2:compute_type=float16 --device cuda "
        "--goal decode-gpu-batch32",
        _NO_GPU_FOR_SEARCH,
    ),
    Goal(
        "decode-gpu-best",
        "GPU, beam 4, best batch size of each: CTranslate2 in float16",
        "ratio",
        2.0,
        "tools/bench/run decode nmt:precision=bf16,batch_sentences=512 "
        "ctranslate2:compute_type=float16,batch_sentences=512 --device cuda --num-sentences 1000 "
        "--goal decode-gpu-best",
        _NO_GPU_FOR_SEARCH,
    ),
    Goal(
        "decode-gpu-latency",
        "GPU, beam 4, one sentence at a time: CTranslate2 in float16",
        "ratio",
        1.0,
        "tools/bench/run decode nmt:precision=bf16 ctranslate2:compute_type=float16 --device cuda --batch-sentences 1 "
        "--goal decode-gpu-latency",
        _NO_GPU_FOR_SEARCH,
    ),
    Goal(
        "file-gpu-float16",
        "GPU, a file with outputs until EOS, complete command, beam 5: CTranslate2 itself in float16",
        "ratio",
        1.0,
        f"tools/bench/run file nmt {_CTRANSLATE2_GPU} {_FILE_GPU} --goal file-gpu-float16",
        _NO_GPU_FOR_SEARCH,
    ),
    Goal(
        "file-gpu-int8",
        "GPU, a file, complete command, beam 5: CTranslate2 itself in int8_float16",
        "ratio",
        1.0,
        f"tools/bench/run file nmt {_CTRANSLATE2_GPU.replace('float16', 'int8_float16')} {_FILE_GPU} "
        "--goal file-gpu-int8",
        _NO_GPU_FOR_SEARCH,
    ),
    Goal(
        "file-gpu-loaded-bf16",
        "GPU, a file, loaded models, beam 5, our torch engine in bf16: CTranslate2 in float16",
        "ratio",
        1.0,
        f"tools/bench/run file nmt:precision=bf16 {_CTRANSLATE2_GPU} {_FILE_GPU} --loaded --goal file-gpu-loaded-bf16",
        _NO_GPU_FOR_SEARCH,
    ),
    Goal(
        "file-gpu-loaded-fp16",
        "GPU, a file, loaded models, beam 5, both in float16: CTranslate2",
        "ratio",
        1.0,
        f"tools/bench/run file nmt:precision=fp16 {_CTRANSLATE2_GPU} {_FILE_GPU} --loaded --goal file-gpu-loaded-fp16",
        _NO_GPU_FOR_SEARCH,
    ),
    Goal(
        "file-gpu-greedy",
        "GPU, a file, loaded models, greedy search, both in float16: CTranslate2",
        "ratio",
        1.0,
        f"tools/bench/run file nmt:precision=fp16 {_CTRANSLATE2_GPU} {_FILE_GPU} --loaded --beam-size 1 "
        "--goal file-gpu-greedy",
        _NO_GPU_FOR_SEARCH,
    ),
    Goal(
        "file-gpu-transformers",
        "GPU, a file, loaded models, beam 5, both in float16: `generate` of transformers",
        "ratio",
        4.0,
        f"tools/bench/run file nmt:precision=fp16 transformers:precision=fp16,batch_sentences=256 {_FILE_GPU} --loaded "
        "--rounds 5 --goal file-gpu-transformers",
        _NO_GPU_FOR_SEARCH,
    ),
    Goal(
        "prepare-sentencepiece",
        "preparation against SentencePiece's own multithreaded encoding",
        "ratio",
        0.9,
        "tools/bench/run prepare nmt sentencepiece --goal prepare-sentencepiece",
    ),
    Goal(
        "multi30k-41",
        "Multi30k En-De after 30 minutes on 2 cores, from raw text: tokenized lowercase BLEU",
        "BLEU",
        41.0,
        "nmt run recipes/multi30k-en-de-wide.toml data.root=FOLDER",
        "The 40.5 on the Xeon is from the recipe with its former options `model.activation_dropout=0.2 "
        "train.optimizer=adamw train.weight_decay=0.05`: 23 min 20 s at 11,800 target tokens per second. The 39.8 on "
        "the AMD EPYC is from the current options: 41 min 18 s at 6,500, more than half an hour; on one core each, "
        "seeds 1, 2 and 3 gave 40.5, 40.6 and 40.4 in 7,200 updates. [multi30k.md](multi30k.md) lists other lengths, "
        "seeds and settings. Single runs differ by half a point or more. More updates help, but few more fit in half "
        "an hour: on the Xeon, the second core is idle two fifths of the time while the first "
        "launches about 5,000 operations. In another trial of torch.compile, kernels that store or read a boolean "
        "mask took 8 ns per element, ten times as long as torch's own; the other kernels saved little. On the AMD "
        "EPYC, single-threaded matmuls take 72% of the time of an update. Two processes of one thread sharing an "
        "update are no faster than two threads (5% faster, 14% and 12% slower in three alternating pairs); two Python "
        "threads with half an update each were 21% and 3% faster while the machine's speed varied by as much. "
        "Pre-norm (with the former initial weights), the batch size and the cosine schedule were each confirmed with "
        "three seeds. Next step: fewer operations per update.",
    ),
    Goal(
        "quickstart",
        "tools/quickstart after installation",
        "minutes",
        3.0,
        "tools/quickstart",
    ),
)
BY_NAME = {goal.name: goal for goal in GOALS}
