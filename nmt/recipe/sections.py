"""The sections of the recipe and their defaults; what can be computed is never an option."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt, ValidationInfo, field_validator, model_validator

from nmt.recipe.corpora import Corpus, NonNegativeFloat, PositiveFloat, Probability, Section, SgmCorpus, TextCorpus
from nmt.recipe.decoding import DecodeRecipe
from nmt.recipe.evaluation import EvaluateRecipe

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
LANGUAGE_PATTERN = r"^[a-z]{2,3}$"


class DataRecipe(Section):
    """Which text, and which pairs of it are kept for training."""

    root: Path = Path()
    """Folder that relative corpus paths start from; by default the current folder."""
    train: tuple[Corpus, ...] = Field(min_length=1)
    """Training corpora, used one after the other."""
    valid: tuple[Corpus, ...] = Field(min_length=1)
    """Development text: chooses the best checkpoint, never reported as a result. It is not filtered."""
    test: dict[str, Corpus] = Field(default_factory=dict)
    """Test sets by name; translated and scored at the end of `nmt run`; before that, only looked for in the training
    text."""
    unicode_form: Literal["NFC", "NFKC", "none"] = "NFC"
    """Unicode normalisation of all text, also at translation."""
    invalid_utf8: Literal["error", "replace"] = "error"
    """What to do with bytes that are not UTF-8: stop with file and line, or put U+FFFD in their place."""
    max_tokens: PositiveInt = 256
    """Longest training sentence, in subword tokens of either side; longer pairs are dropped and counted."""
    max_length_ratio: PositiveFloat = 9.0
    """A pair is dropped when one side has more than this many times the words of the other (only beyond 10 words)."""
    drop_duplicates: bool = True
    """Keep only the first of several equal pairs."""
    drop_identical: bool = True
    """Drop pairs whose two sides are the same text of more than 3 words: untranslated passages teach copying."""
    drop_wrong_script: bool = True
    """Drop pairs in which most letters of a side are of another script than its language is written in."""
    temperature: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = 1.0
    """How much small corpora gain when several are mixed: a corpus of n pairs gets a share of an epoch proportional to
    weight * n^(1/temperature). At 1, with all weights 1, an epoch holds every pair once."""
    reverse_target: bool = False
    """Train to write from right to left: the tokens of every target sentence are stored in reverse. Such a model prints
    text as any other does; it is for `nmt rerank`."""
    workers: NonNegativeInt = 0
    """Processes that clean and encode text; 0 means one for each processor core."""

    @model_validator(mode="after")
    def _only_tests_have_several_references(self) -> DataRecipe:
        for split, corpora in (("train", self.train), ("valid", self.valid)):
            for place, corpus in enumerate(corpora):
                if isinstance(corpus, TextCorpus | SgmCorpus) and isinstance(corpus.tgt, tuple):
                    raise ValueError(
                        f"data.{split}.{place}.tgt is a list of {len(corpus.tgt)}; only test sets have several "
                        "references; give one file"
                    )
        return self

    @model_validator(mode="after")
    def _only_training_is_mixed(self) -> DataRecipe:
        others = {f"data.valid.{place}": corpus for place, corpus in enumerate(self.valid)}
        others |= {f"data.test.{name}": corpus for name, corpus in self.test.items()}
        for name, corpus in others.items():
            if corpus.weight != 1.0:
                raise ValueError(f"{name}.weight has no effect; only training corpora have one; remove it")
            if corpus.tag is not None:
                raise ValueError(
                    f"{name}.tag has no effect; only training corpora have one; remove it, and set decode.tag to "
                    "translate with a tag"
                )
        return self

    @model_validator(mode="after")
    def _only_tests_have_labels(self) -> DataRecipe:
        for split, corpora in (("train", self.train), ("valid", self.valid)):
            for place, corpus in enumerate(corpora):
                for option in ("label_column", "label_field"):
                    if getattr(corpus, option, None) is not None:
                        raise ValueError(
                            f"data.{split}.{place}.{option} has no effect; only test sets have labels; remove it"
                        )
        return self


class TokenizerRecipe(Section):
    """The SentencePiece subword model."""

    algorithm: Literal["bpe", "unigram"] = "bpe"
    """Byte-pair encoding (Sennrich et al. 2016, the paper's) or unigram language model (Kudo 2018)."""
    vocab_size: PositiveInt = 32_000
    """Number of pieces, special tokens and 256 byte pieces included."""
    joint: bool = True
    """One model for both languages (needed for three-way tied embeddings), or one each of `vocab_size`."""
    character_coverage: Annotated[float, Field(gt=0.9, le=1.0)] = 1.0
    """Share of characters that get their own piece; the others are spelled in bytes."""
    lowercase: bool = False
    """Lower-case all text, sources to be translated too: translations then are in lower case, and test sets are scored
    without regard to case. For small corpora whose published scores are of lower-cased text. A subword model that is
    taken from elsewhere (`start_from`) decides this itself."""
    user_symbols: tuple[str, ...] = ()
    """Strings that are always one token, such as tags."""
    start_from: Path | None = None
    """A model directory whose subword model is taken instead of training one; `train.start_from` implies it."""
    training_pairs: PositiveInt = 2_000_000
    """At most this many pairs, spread evenly over the corpora in the proportion in which an epoch shows them, train the
    subword model."""


class ModelRecipe(Section):
    """The Transformer (Vaswani et al. 2017, section 3); the defaults are the paper's base model."""

    d_model: PositiveInt = 512
    """Width of the residual stream."""
    d_ff: PositiveInt = 2048
    """Inner width of the feed-forward sub-layer."""
    num_heads: PositiveInt = 8
    """Attention heads; must divide `d_model`, unless `d_head` is given."""
    d_head: PositiveInt | None = None
    """Width of the queries, keys and values of a head; by default `d_model / num_heads`. These are d_k and d_v of the
    paper, whose table 3 changes d_k alone in row B."""
    num_encoder_layers: PositiveInt = 6
    """Layers of the encoder."""
    num_decoder_layers: PositiveInt = 6
    """Layers of the decoder."""
    dropout: Probability = 0.1
    """Dropout on each sub-layer's output and on the sum of embeddings and positions (paper, section 5.4)."""
    attention_dropout: Probability = 0.0
    """Dropout on attention weights; not in the paper, tensor2tensor used 0.1."""
    activation_dropout: Probability = 0.0
    """Dropout after the activation of the feed-forward sub-layer; not in the paper."""
    activation: Literal["relu", "gelu", "swish", "swiglu"] = "relu"
    """Activation of the feed-forward sub-layer. `swiglu` adds a gate: SwiGLU(x) = (swish(x W1) * x V) W2 (Shazeer
    2020). V has the size of W1, so two thirds of `d_ff` keep the number of parameters."""
    norm_order: Literal["post", "pre"] = "post"
    """Layer normalisation after the residual sum (the paper) or before the sub-layer (easier to train deep)."""
    norm: Literal["layer", "rms"] = "layer"
    """Layer normalization (the paper) or RMSNorm, which neither subtracts a mean nor adds a bias (Zhang and Sennrich
    2019)."""
    tied_embeddings: Literal["three-way", "decoder", "none"] = "three-way"
    """One matrix for source, target and output (the paper), for target and output, or three matrices."""
    output_bias: bool = False
    """A bias for each target piece before the softmax, as Marian's models have one; not in the paper."""
    positions: Literal["sinusoidal", "learned", "rotary", "relative"] = "sinusoidal"
    """Sines and cosines added to embeddings (the paper), a learned vector for each of `max_positions` added there (the
    paper's table 3, row E), rotations of the queries and keys of self-attention (Su et al. 2021), or learned vectors of
    relative positions there, added to keys and values (Shaw et al. 2018)."""
    max_distance: PositiveInt = 16
    """With relative positions: the distance from which on all are one (k of Shaw et al., who find 2 to 64 alike)."""
    max_positions: PositiveInt = 1024
    """Longest sentence in tokens that the model accepts."""

    @property
    def head_width(self) -> int:
        """`d_head`, or its default."""
        return self.d_head or self.d_model // self.num_heads

    @field_validator("d_head")
    @classmethod
    def _none_for_the_default(cls, d_head: int | None, info: ValidationInfo) -> int | None:
        """Recipes of equal models are equal."""
        is_default = d_head is not None and d_head * info.data.get("num_heads", 0) == info.data.get("d_model")
        return None if is_default else d_head

    @model_validator(mode="after")
    def _heads_divide_width(self) -> ModelRecipe:
        if self.d_head is None and self.d_model % self.num_heads:
            step = math.lcm(self.num_heads, 2)
            raise ValueError(
                f"model.d_model is {self.d_model}; it must be a multiple of model.num_heads ({self.num_heads}); "
                f"try {max(self.d_model // step, 1) * step}"
            )
        if self.positions == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"model.d_model is {self.d_model}; it must be even, half sine and half cosine")
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(
                f"model.positions is 'rotary', but heads are {self.head_width} wide; their width must be even, because "
                f"features are rotated in pairs; set model.d_head to {self.head_width + 1}"
            )
        if "max_distance" in self.model_fields_set and self.max_distance != 16 and self.positions != "relative":
            raise ValueError(
                f"model.max_distance has no effect on {self.positions} positions; set model.positions to 'relative', "
                "or leave it out"
            )
        return self


class TrainRecipe(Section):
    """How the weights are found (paper, section 5)."""

    start_from: Path | None = None
    """A model directory, checkpoint or run to go on from (fine-tuning): its weights and its tokenizer are taken."""
    start_optimizer: Literal["fresh", "kept"] = "fresh"
    """With `start_from` a checkpoint: whether the optimiser's moments are kept too. The schedule begins anew."""
    freeze: tuple[str, ...] = ()
    """Weights that are not trained: `encoder`, `decoder`, `embeddings`, or patterns such as `encoder.layers.0.*`."""

    max_steps: PositiveInt = 100_000
    """Number of updates."""
    max_minutes: PositiveFloat | None = None
    """Stop after this many minutes of training, whatever the step; the schedule still reckons with `max_steps`."""
    max_epochs: PositiveInt | None = None
    """Stop after this many passes over the training pairs."""
    batch_tokens: PositiveInt = 25_000
    """Most target tokens of one update, over all processes and micro-batches; its source tokens are limited to about as
    many as come with these in the whole training text."""
    micro_batch_tokens: PositiveInt | Literal["auto"] = 4_096
    """Most source tokens, and most target tokens, in one forward and backward pass: what must fit in memory. `auto`
    tries at the start which is the most that fits, again when the number of processes changes."""
    micro_batches: PositiveInt | Literal["auto"] = "auto"
    """Micro-batches of an update over all processes. `auto`: the fewest that fit `micro_batch_tokens` and give all
    processes equally many. A number, or a multiple of it where so few do not fit: 8 splits updates alike on 1, 2, 4 and
    8 processes. Gradients are the same for every split but for rounding; dropout masks only for the same split."""
    activation_checkpointing: bool = False
    """Recompute the activations inside the layers in the backward pass: less memory, about a third more computation."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """Adam (the paper) or Adam with decoupled weight decay."""
    adam_betas: tuple[Probability, Probability] = (0.9, 0.98)
    """Decay of the two moment estimates."""
    adam_epsilon: PositiveFloat = 1e-9
    """Added to the denominator."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of matrices (not of biases and norms); needs `adamw`."""
    schedule: Literal["noam", "inverse-sqrt", "cosine", "linear", "constant"] = "noam"
    """Learning rate over time: the paper's, or warm-up to `learning_rate` and then one of the named decays."""
    learning_rate: PositiveFloat = 1.0
    """Factor on the paper's rate for `noam`; the peak rate for every other schedule."""
    warmup_steps: NonNegativeInt = 4_000
    """Updates of linear warm-up."""
    schedule_start: NonNegativeInt = 0
    """The schedule, warm-up included, begins behind this update: a warm restart (Loshchilov and Hutter 2017), for a run
    that has ended and is to be trained further."""
    final_rate_ratio: Probability = 0.0
    """`cosine` and `linear` end at this share of the peak rate, at `max_steps`."""
    dropout_ramp_steps: NonNegativeInt = 0
    """Dropout, attention and activation dropout too, begins at 0 and rises by quarters to its full value after so many
    updates. With `compile` each of the five levels is compiled. 0: it is full from the start, as in the paper."""
    label_smoothing: Probability = 0.1
    """Mass of the target distribution spread evenly over the whole vocabulary, gold token included."""
    rdrop: NonNegativeFloat = 0.0
    """Weight of R-Drop (Liang et al. 2021): each batch passes twice with other dropout, and the two distributions are
    pulled together; their paper uses 5 for translation. Twice the work."""
    subword_sampling: Probability = 0.0
    """Subword regularisation: new segmentations of the training text in every epoch. For bpe the probability with which
    each possible merge is dropped at each step (BPE-dropout, Provilkov et al. 2020, who use 0.1); for unigram the
    exponent of the sampling (Kudo 2018, who uses 0.1 to 0.5). 0 keeps the one best segmentation."""
    subword_sampling_sides: Literal["both", "src", "tgt"] = "both"
    """Which side is sampled."""
    clip_norm: NonNegativeFloat = 0.0
    """Largest gradient norm; 0 does not clip (the paper)."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of matrix products; `auto` takes bf16 where the processor or GPU computes it natively (GPUs of
    compute capability 8.0 or higher), else fp32. fp16, with scaled loss, is for GPUs without bf16."""
    device: str = "auto"
    """`auto` (a GPU if there is one), `cpu`, `cuda` or `cuda:N`."""
    threads: NonNegativeInt = 0
    """Processor threads of the computation on a CPU; 0 shares the cores evenly among the processes."""
    compile: bool = False
    """Compile with torch.compile: faster steps after a wait of a minute or so. One GPU of compute capability 8.0 or
    higher in bf16 or fp16 gets one graph of model and loss (not with R-Drop or attention dropout), everything else a
    graph for each kind of layer."""
    shapes: Literal["auto", "packed", "fixed"] = "auto"
    """Micro-batches as large as their sentences are, or all padded to one size, which of WMT14 in updates of 25,000 are
    0.2 % more target and 2.2 % more source tokens. `auto` pads where that one graph is compiled, which needs it."""
    log_every: PositiveInt = 50
    """Updates between two lines of metrics."""
    validate_every: PositiveInt = 1_000
    """Updates between two measurements of validation loss."""
    validate_bleu_every: NonNegativeInt = 0
    """Updates between two decodings of the development text; a multiple of `validate_every`; 0 means never."""
    validate_bleu_sentences: PositiveInt = 500
    """How many development sentences are decoded for it."""
    save_every: PositiveInt = 1_000
    """Updates between two checkpoints."""
    keep_last: PositiveInt = 5
    """How many of the newest checkpoints stay on disk."""
    keep_best: NonNegativeInt = 1
    """How many of the best checkpoints stay on disk besides."""
    best_metric: Literal["loss", "bleu"] = "loss"
    """What makes a checkpoint the best: validation loss or validation BLEU."""
    patience: NonNegativeInt = 0
    """Stop after this many validations without a new best; 0 means never."""
    ema_decay: Probability = 0.0
    """Keep an exponential moving average of the weights: after update t, average += (1 - d) (weights - average), where
    d is the smaller of this decay and (1 + t) / (10 + t), which soon forgets the initial weights. 0 keeps none; 0.999
    is a common choice."""
    average: Literal["last", "best", "ema"] = "last"
    """What `nmt run` translates with: the average of the last or of the best `average_count` checkpoints, or the moving
    average at the last update."""
    average_count: PositiveInt = 5
    """How many checkpoints are averaged (paper, section 6.1: the last 5 for base, the last 20 for big)."""

    @model_validator(mode="after")
    def _choices_fit_together(self) -> TrainRecipe:
        if self.weight_decay and self.optimizer != "adamw":
            raise ValueError("train.weight_decay needs decoupled decay; set train.optimizer to 'adamw'")
        if self.schedule == "noam" and not self.warmup_steps:
            raise ValueError(
                "train.warmup_steps is 0, but the noam schedule divides by it; it must be at least 1; "
                "set it to 4_000 as in the paper"
            )
        if self.schedule_start >= self.max_steps:
            raise ValueError(
                f"train.schedule_start is {self.schedule_start}; it must be less than train.max_steps "
                f"({self.max_steps}); raise that"
            )
        if self.validate_bleu_every % self.validate_every:
            raise ValueError(
                f"train.validate_bleu_every is {self.validate_bleu_every}; "
                f"it must be a multiple of train.validate_every ({self.validate_every}), or 0"
            )
        if self.best_metric == "bleu" and self.validate_bleu_every != self.validate_every:
            raise ValueError(
                "train.best_metric is 'bleu'; BLEU must then be measured at every validation; "
                f"set train.validate_bleu_every to {self.validate_every}"
            )
        kept = {"last": ("keep_last", self.keep_last), "best": ("keep_best", self.keep_best)}
        if self.average in kept and self.average_count > kept[self.average][1]:
            option, count = kept[self.average]
            raise ValueError(
                f"train.average_count is {self.average_count}, but only {count} of these checkpoints stay on disk; "
                f"set train.{option} to {self.average_count} or more"
            )
        if self.average == "ema" and not self.ema_decay:
            raise ValueError(
                "train.average is 'ema', but no moving average is kept; set train.ema_decay, e.g. to 0.999"
            )
        if self.start_optimizer == "kept" and self.start_from is None:
            raise ValueError(
                "train.start_optimizer is 'kept', but there is nothing to start from; set train.start_from"
            )
        return self


class Recipe(Section):
    """A whole run, from text to scores."""

    name: str = Field(pattern=NAME_PATTERN)
    """Name of the run; its files go to `runs/<name>` unless `run_dir` says otherwise."""
    src_lang: str = Field(pattern=LANGUAGE_PATTERN)
    """Source language, ISO 639 code."""
    tgt_lang: str = Field(pattern=LANGUAGE_PATTERN)
    """Target language, ISO 639 code."""
    seed: int = 1
    """Seed of data order, initial weights and dropout."""
    run_dir: Path | None = None
    """Folder of the run; by default `runs/<name>`."""
    data: DataRecipe
    tokenizer: TokenizerRecipe = Field(default_factory=TokenizerRecipe)
    model: ModelRecipe = Field(default_factory=ModelRecipe)
    train: TrainRecipe = Field(default_factory=TrainRecipe)
    decode: DecodeRecipe = Field(default_factory=DecodeRecipe)
    evaluate: EvaluateRecipe = Field(default_factory=EvaluateRecipe)

    @model_validator(mode="after")
    def _sections_fit_together(self) -> Recipe:
        if self.model.tied_embeddings == "three-way" and not self.tokenizer.joint:
            raise ValueError(
                "tokenizer.joint is false, but three-way tied embeddings need one vocabulary; "
                "set tokenizer.joint to true or model.tied_embeddings to 'decoder'"
            )
        layers, heads = self.model.num_decoder_layers, self.model.num_heads
        if self.decode.alignment_layer is not None and self.decode.alignment_layer >= layers:
            raise ValueError(
                f"decode.alignment_layer is {self.decode.alignment_layer}; a decoder of {layers} layers has layers 0 "
                f"to {layers - 1}; choose one of them"
            )
        if too_high := [head for head in self.decode.alignment_heads if head >= heads]:
            raise ValueError(
                f"decode.alignment_heads names head {too_high[0]}; a layer of {heads} heads has heads 0 to "
                f"{heads - 1}; choose of them"
            )
        tags = {*self.tokenizer.user_symbols, *(corpus.tag for corpus in self.data.train)}
        takes_tokenizer = self.tokenizer.start_from is not None or self.train.start_from is not None
        if self.decode.tag not in {None, *tags} and not takes_tokenizer:
            raise ValueError(
                f"decode.tag is {self.decode.tag!r}; it must be the tag of a training corpus; "
                "give one of them this tag, or correct it"
            )
        if self.data.max_tokens + 1 > self.model.max_positions:
            raise ValueError(
                f"data.max_tokens is {self.data.max_tokens}; the model must also hold the end token; "
                f"set model.max_positions to {self.data.max_tokens + 1} or more"
            )
        if self.train.micro_batch_tokens != "auto" and self.data.max_tokens + 1 > self.train.micro_batch_tokens:
            raise ValueError(
                f"train.micro_batch_tokens is {self.train.micro_batch_tokens}; the longest sentence must fit; "
                f"set it to {self.data.max_tokens + 1} or more, or lower data.max_tokens"
            )
        return self

    @property
    def directory(self) -> Path:
        """The folder of the run."""
        return self.run_dir if self.run_dir is not None else Path("runs") / self.name

    @property
    def data_directory(self) -> Path:
        """The folder of the prepared corpus."""
        return self.directory / "data"
