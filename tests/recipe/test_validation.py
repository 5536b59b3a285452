"""Errors of options, and of options that contradict each other."""

import re
from pathlib import Path

import pytest

from nmt.errors import RecipeError
from nmt.recipe import (
    DecodeRecipe,
    ModelRecipe,
    Section,
    TextCorpus,
    dump_recipe,
    load_recipe,
    load_saved_recipe,
    parse_recipe,
)
from tests.recipe.small_recipe import SMALL, message_for

RATIO = "data.max_length_ratio=2"


@pytest.mark.parametrize("name", ["wmt14/full", "../x", ""])
def test_the_name_of_a_test_set_must_be_a_file_name(name: str) -> None:
    text = SMALL + f'[data.test."{name}"]\nkind = "toy"\n'
    assert f"data.test has a set {name!r}; a name must be a file name without '/'" in message_for(text)


def test_the_name_of_a_test_set_fits_a_file_name() -> None:
    longest = "ä" * 110
    assert list(parse_recipe(SMALL + f'[data.test."{longest}"]\nkind = "toy"\n').data.test) == [longest]
    expected = "data.test has a set whose name has 221 bytes; its translations are written to a file of this name"
    assert expected in message_for(SMALL + f'[data.test."{longest}x"]\nkind = "toy"\n')


@pytest.mark.parametrize(
    ("section", "options", "expected"),
    [
        (DecodeRecipe, {"beam_size": 0}, "beam_size = 0; it must be greater than 0"),
        (DecodeRecipe, {"beam_size": 100_000}, "beam_size = 100000; it must be less than or equal to 5000"),
        (DecodeRecipe, {"n_best": 100_000, "sampling": True}, "n_best = 100000; it must be less than or equal to 5000"),
        (DecodeRecipe, {"bean_size": 4}, "unknown option 'bean_size'; did you mean 'beam_size'?"),
        (
            DecodeRecipe,
            {"n_best": 9, "beam_size": 4},
            "decode.n_best is 9; it must be at most decode.beam_size (4); increase beam_size",
        ),
        (ModelRecipe, {"d_model": "wide"}, "d_model = 'wide'; it must be an integer"),
        (TextCorpus, {"src": 1, "tgt": "x"}, "src = 1; it must be "),
    ],
)
def test_sections_in_python_have_one_line_errors(
    section: type[Section], options: dict[str, object], expected: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(expected)) as caught:
        section(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("tag", ["<s>", "<0x41>"])
def test_a_tag_that_is_a_special_token_names_its_option(tag: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(f"data.train.0.tag: {tag!r} is a special token or a byte token")):
        parse_recipe(SMALL, [f"data.train=[{{kind='toy', tag='{tag}'}}]"])


@pytest.mark.parametrize(
    ("addition", "message"),
    [
        ("[trian]\nmax_steps = 1", "recipe: unknown option 'trian'; did you mean 'train'?"),
        ("[train]\nmax_step = 1", "recipe: unknown option 'train.max_step'; did you mean 'max_steps'?"),
        ("[model]\nxyzzy = 1", "recipe: unknown option 'model.xyzzy'; known options: architecture, d_model, d_ff,"),
        (
            "[data.test.t]\nkind = 'text'\nsrc = 'a'\ntgt = 'b'\nsource = 'c'",
            "recipe: unknown option 'data.test.t.source'; did you mean 'src'?",
        ),
        ("[data.test.t]\nkind = 'text'\nsrc = 'a'", "recipe: option 'data.test.t.tgt' is missing; set it"),
        (
            "[data.test.t]\nkind = 'txt'",
            "recipe: data.test.t.kind is 'txt'; it must be one of text, tsv, sgm, tmx, parquet, jsonl, hugging",
        ),
        ("[data.test.t]\nkind = ['text']", "recipe: data.test.t.kind is ['text']; it must be one of text, tsv,"),
        (
            "[data.test.t]\nkind = 'text'\nsrc = 'a'\ntgt = 3",
            "recipe: data.test.t.tgt = 3; it must be text in quotes or a list in brackets",
        ),
        (
            "[data.test.t]\nkind = 'text'\nsrc = 'a'\ntgt = []",
            "recipe: data.test.t.tgt = []; it must be text in quotes or have 1 or more items",
        ),
        (
            "[evaluate]\ntokenize = 'mecab'",
            "recipe: evaluate.tokenize = 'mecab'; it must be '13a', 'intl', 'zh', 'ja-mecab', 'ko-mecab',",
        ),
        ("[[data.valid]]\npath = 'x'", "recipe: data.valid.1.kind is None; it must be one of text, tsv,"),
        (
            "[model]\nactivation = 'rule'",
            "recipe: model.activation = 'rule'; it must be 'relu', 'gelu', 'swish' or 'swiglu'",
        ),
        ("[model]\ndropout = 1.0", "recipe: model.dropout = 1.0; it must be less than 1"),
        ("[train]\nmax_steps = 0", "recipe: train.max_steps = 0; it must be greater than 0"),
        ("[train]\nlearning_rate = inf", "recipe: train.learning_rate = inf; it must be a finite number"),
        ("[train]\nadam_betas = [0.9]", "recipe: option 'train.adam_betas.1' is missing; set it"),
    ],
)
def test_errors_name_file_and_option(addition: str, message: str) -> None:
    assert message_for(SMALL + addition).startswith(message)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.num_heads=7"], "model.d_model is 512; it must be a multiple of model.num_heads (7); try "),
        (
            ["model.max_distance=4"],
            "model.max_distance has no effect on sinusoidal positions; set model.positions to 'relative', or "
            "remove model.max_distance",
        ),
        (
            ["model.architecture=gru", "model.num_heads=4"],
            "model.num_heads has no effect on architecture 'gru'; set model.architecture to 'transformer', or "
            "remove model.num_heads",
        ),
        (
            ["model.attention=multiplicative"],
            "model.attention has no effect on architecture 'transformer'; set model.architecture to 'gru', or "
            "remove model.attention",
        ),
        (["model.architecture=gru", "model.d_model=9"], "model.d_model is 9; it must be even, half for each direction"),
        (
            ["model.architecture=gru", "train.compile=true"],
            "train.compile is true; architecture 'gru' runs in torch's own kernels, which are not compiled; set "
            "train.compile to false",
        ),
        (
            ["model.architecture=gru", "train.shapes=fixed"],
            "train.shapes is 'fixed', which architecture 'gru' does not support; set it to 'auto'",
        ),
        (
            ["model.architecture=gru", "decode.alignment_layer=1"],
            "decode.alignment_layer is 1; the decoder has layers 0 to 0; choose one of them",
        ),
        (
            ["model.positions=rotary", "model.d_head=5"],
            "model.positions is 'rotary', but the head dimension is 5; it must be even, because features are rotated "
            "in pairs; set model.d_head to 6",
        ),
        (["model.d_model=33", "model.num_heads=1"], "model.d_model is 33; it must be even, half sine and half cosine"),
        (
            ["model.num_decoder_layers=2", "decode.alignment_layer=9"],
            "decode.alignment_layer is 9; the decoder has layers 0 to 1; choose one of them",
        ),
        (
            ["decode.alignment_heads=[0, 8]"],
            "decode.alignment_heads names head 8; layers have heads 0 to 7; choose from these",
        ),
        (
            ["decode.alignment_heads=[0, 1, 0]"],
            "decode.alignment_heads names head 0 twice; a head counts once; remove one",
        ),
        (
            ["train.final_rate_ratio=0.1"],
            "train.final_rate_ratio has no effect on this schedule; set train.schedule to",
        ),
        (["train.plateau_patience=5"], "train.plateau_patience has no effect on this schedule; set train.schedule to"),
        (
            ["train.validate_bleu_sentences=100"],
            "train.validate_bleu_sentences has no effect without validation BLEU; set train.validate_bleu_every, or",
        ),
        (
            ["train.subword_sampling_sides=src"],
            "train.subword_sampling_sides has no effect without sampled segmentations; set train.subword_sampling, or",
        ),
        (
            ["train.subword_sampling=0.1", "tokenizer.algorithm=char"],
            "train.subword_sampling has no effect on characters or bytes; set tokenizer.algorithm to 'bpe' or",
        ),
        (
            ["train.subword_sampling=0.1", "tokenizer.joint=false", "data.train=[{kind='trees', path='a.mrg'}]"],
            "train.subword_sampling has no effect on trees, which have a token per bracket; set train.subword_",
        ),
        (
            ["tokenizer.algorithm=byte", "tokenizer.character_coverage=0.99"],
            "tokenizer.character_coverage has no effect on bytes, which cover all characters; set tokenizer.algorithm",
        ),
        (
            ["tokenizer.algorithm=byte", "tokenizer.training_pairs=10"],
            "tokenizer.training_pairs has no effect on bytes, which need no training; set tokenizer.algorithm to",
        ),
        (
            ["train.average=ema", "train.ema_decay=0.9", "train.average_count=3"],
            "train.average_count has no effect on the EMA; set train.average to 'last' or 'best', or remove "
            "train.average_count (on the command line: train.average_count=)",
        ),
        (
            ["train.guided_alignment_weight=0.2"],
            "train.guided_alignment_weight has no effect without guided alignment; set train.guided_alignment to true",
        ),
        (["train.start_optimizer=kept"], "train.start_optimizer has no effect without a checkpoint; set train.start_f"),
        (
            ["train.rdrop=5", "model.dropout=0"],
            "train.rdrop has no effect without dropout; set model.dropout, or remove train.rdrop",
        ),
        (
            ["data.temperature=5"],
            "data.temperature has no effect on a single training corpus; add another corpus, or remove data.temp",
        ),
        (["data.root=new"], "data.root has no effect, because no corpus has a relative path; name files relative"),
        (
            ["data.root=new", "data.train=[{kind='text', src='/data/a', tgt='/data/b'}]"],
            "data.root has no effect, because no corpus has a relative path;",
        ),
        (
            ["data.train=[{kind='toy', weight=2.0}]"],
            "data.train.0.weight has no effect on a single training corpus; add another corpus, or remove "
            "data.train.0.weight",
        ),
        (
            ["data.train=[{kind='toy', alignment='links'}]"],
            "data.train.0.alignment has no effect without guided alignment or glossary markup; set",
        ),
        (
            ["evaluate.metrics=['chrf']", "evaluate.tokenize=intl"],
            "evaluate.tokenize has no effect without metric 'bleu'; add 'bleu' to evaluate.metrics, or remove "
            "evaluate.tokenize",
        ),
        (["evaluate.metrics=[]"], "evaluate.metrics is empty; it must name at least one metric, such as 'bleu'"),
        (
            ["tokenizer.user_symbols=['<web>', 'New York']"],
            "tokenizer.user_symbols has 'New York'; a symbol must have characters and no white space; correct or",
        ),
        (
            ["tokenizer.user_symbols=['x\u200by']"],
            r"tokenizer.user_symbols has 'x\u200by', but normalized text has no '\u200b'; remove this character",
        ),
        *(
            (
                [f"tokenizer.user_symbols=['{symbol}']"],
                f"tokenizer.user_symbols has {symbol!r}, which is a special token",
            )
            for symbol in ("<pad>", "</s>", "<0xAB>")
        ),
        (["tokenizer.user_symbols=['a', 'b', 'a']"], "tokenizer.user_symbols has 'a' twice; symbols must be distinct;"),
        (["tokenizer.user_symbols=['']"], "tokenizer.user_symbols has ''; a symbol must have characters and no white"),
        (
            ["tokenizer.user_symbols=['\u2460']", "data.unicode_form=NFKC"],
            "tokenizer.user_symbols has '\u2460', which data.unicode_form (NFKC) changes to '1'; write it in that form",
        ),
        (["evaluate.metrics=['ter', 'bleu', 'ter']"], "evaluate.metrics names 'ter' twice; remove one"),
        (["evaluate.resamples=1"], "evaluate.resamples is 1, which gives no interval; it must be 0 or at least 2"),
        (["decode.mbr_metric=chrf"], "decode.mbr_metric has no effect without n_best above 1; change that, or remove"),
        (["decode.beam_size=1", "decode.stop=exact"], "decode.stop has no effect without a beam (beam_size above 1);"),
        (["decode.diversity_penalty=1"], "decode.diversity_penalty has no effect without beam_groups above 1; change"),
        (["decode.sampling_seed=3"], "decode.sampling_seed has no effect without sampling=true; change that"),
        (
            [
                "src_lang=zxx",
                *(f"data.{split}=[{{kind='monolingual', path='a'}}]" for split in ("train", "valid")),
                RATIO,
            ],
            "data.max_length_ratio has no effect on a language model, which has no source; set src_lang, or "
            "remove data.max_length_ratio",
        ),
        (
            [
                "src_lang=zxx",
                *(f"data.{split}=[{{kind='monolingual', path='a'}}]" for split in ("train", "valid")),
                "decode.split_sentences=true",
            ],
            "decode.split_sentences has no effect on a language model, which has no source; set src_lang, or",
        ),
        (["train.weight_decay=0.1"], "train.weight_decay needs decoupled decay; set train.optimizer to 'adamw'"),
        (
            ["data.valid=[{kind='toy', split='valid', weight=2.0}]"],
            "data.valid.0.weight has no effect; only training corpora use it; remove data.valid.0.weight",
        ),
        (
            ["data.test={news={kind='toy', split='test', tag='<web>'}}"],
            "data.test.news.tag is '<web>'; it must be the tag of a training corpus; add it to a corpus, or correct it",
        ),
        (
            ["data.valid=[{kind='tsv', path='a', label_column=2}]"],
            "data.valid.0.label_column has no effect; only test sets have labels; remove data.valid.0.label_column",
        ),
        (
            ["data.train=[{kind='jsonl', path='a', src_field='en', tgt_field='de', label_field='domain'}]"],
            "data.train.0.label_field has no effect; only test sets have labels; remove data.train.0.label_field",
        ),
        (
            ["data.valid=[{kind='text', src='a', tgt=['b']}]"],
            "data.valid.0.tgt is a list of 1; only test sets have several references; give one file",
        ),
        (
            ["data.train=[{kind='sgm', src='a', tgt=['b', 'c']}]"],
            "data.train.0.tgt is a list of 2; only test sets have several references; give one file",
        ),
        (
            ["decode.temperature=0.5"],
            "decode.temperature has no effect on beam search; set decode.sampling to true",
        ),
        (["decode.top_k=5"], "decode.top_k has no effect on beam search"),
        (["decode.top_p=0.5"], "decode.top_p has no effect on beam search"),
        (["decode.sampling=true", "decode.temperature=1e-300"], "decode.temperature = 1e-300; it must be greater than"),
        (["decode.sampling=true", "decode.temperature=1e300"], "decode.temperature = 1e+300; it must be less than"),
        (["decode.min_p=0.5"], "decode.min_p has no effect on beam search"),
        (
            ["decode.sampling=true", "decode.n_best=9", "decode.stop=patience"],
            "decode.stop has no effect with decode.sampling; remove one of them",
        ),
        (
            ["decode.sampling=true", "decode.patience=2"],
            "decode.patience has no effect with decode.sampling; remove one of them",
        ),
        (["train.schedule_start=100_000"], "train.schedule_start is 100000; it must be less than train.max_steps"),
        (["train.warmup_steps=0"], "train.warmup_steps is 0, but the noam schedule divides by it; it must be"),
        (["train.validate_bleu_every=1500"], "train.validate_bleu_every is 1500; it must be a multiple of"),
        (["train.best_metric=bleu"], "train.best_metric is 'bleu'; it needs BLEU at every validation;"),
        (
            ["train.average_count=6"],
            "train.average_count is 6; it must be at most train.keep_last (5); set train.keep_last to 6",
        ),
        (["decode.n_best=5"], "decode.n_best is 5; it must be at most decode.beam_size (4); increase beam_size"),
        (["decode.tag=<web>"], "decode.tag is '<web>'; it must be the tag of a training corpus;"),
        (["tokenizer.joint=false"], "tokenizer.joint is false, but three-way tied embeddings need one vocabulary;"),
        (
            ["model.max_positions=256"],
            "data.max_tokens is 256; the model also needs a position for EOS; set",
        ),
        (
            ["train.micro_batch_tokens=256"],
            "train.micro_batch_tokens is 256; the longest sentence must fit; set train.micro_batch_tokens to 257",
        ),
    ],
)
def test_inconsistent_options_are_errors(overrides: list[str], message: str) -> None:
    assert message_for(SMALL, *overrides).startswith(message)


@pytest.mark.parametrize(
    ("num_heads", "advice"),
    [(7, "model.num_heads=4 or model.d_model=504"), (1000, "model.num_heads=512 or model.d_model=1000")],
)
def test_a_wrong_number_of_heads_has_three_remedies(num_heads: int, advice: str) -> None:
    assert message_for(SMALL, f"model.num_heads={num_heads}").endswith(f"try {advice}, or set model.d_head")


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.num_heads=7", "model.d_model=504"],
        ["model.num_heads=1000", "model.d_model=1000"],
        ["train.weight_decay=0.1", "train.optimizer=adamw"],
        ["train.warmup_steps=0", "train.schedule=inverse-sqrt"],
        ["train.final_rate_ratio=0.1", "train.schedule=linear"],
        ["train.validate_bleu_sentences=100", "train.validate_bleu_every=1000"],
        ["train.subword_sampling_sides=src", "train.subword_sampling=0.1"],
        ["data.temperature=5", "data.train=[{kind='toy'}, {kind='toy', weight=2.0}]"],
        ["evaluate.metrics=['chrf']", "evaluate.tokenize=intl", "train.validate_bleu_every=1000"],
        ["decode.mbr_metric=chrf", "decode.n_best=4"],
        ["train.best_metric=bleu", "train.validate_bleu_every=1000"],
        ["train.average_count=6", "train.keep_last=6"],
        ["tokenizer.joint=false", "model.tied_embeddings=decoder"],
        ["decode.tag=<web>", "tokenizer.user_symbols=['<web>']"],
        ["decode.tag=<web>", "train.start_from=model"],  # its tokenizer may have the tag
        ["model.max_positions=257"],
        ["train.micro_batch_tokens=257"],
    ],
)
def test_remedies_in_error_messages_work(overrides: list[str]) -> None:
    parse_recipe(SMALL, overrides)


TREES = ["tokenizer.joint=false", "model.tied_embeddings=decoder", "data.train=[{kind='trees', path='a.mrg'}]"]


@pytest.mark.parametrize(
    "overrides",
    [
        # the toy corpus has labels, which are scored with BLEU
        ["evaluate.metrics=['chrf']", "evaluate.tokenize=intl", "data.test={news={kind='toy', split='test'}}"],
        ["train.rdrop=5", "model.dropout=0", "model.attention_dropout=0.1"],
        ["train.rdrop=5", "model.dropout=0", "model.activation_dropout=0.1"],
        [*TREES, "train.subword_sampling=0.1", "train.subword_sampling_sides=src"],
        [*TREES, "train.subword_sampling=0.1", "tokenizer.start_from=model"],  # its tokenizer may have subwords
        [*TREES, "tokenizer.algorithm=byte", "tokenizer.training_pairs=10"],  # to find the brackets
        ["data.train=[{kind='toy', alignment='links'}]", "train.glossary_markup=0.1"],
        ["data.train=[{kind='toy', alignment='links'}]", "train.guided_alignment=true", "data.root=new"],
        ["data.train=[{kind='huggingface', dataset='owner/name'}]", "data.root=new"],
        ["data.train=[{kind='text', src='/data/a', tgt='b'}]", "data.root=new"],
        ["decode.sampling=true", "decode.beam_size=8"],  # for commands that override `sampling`
        ["decode.ensemble_mean=log"],
        ["decode.alignment_layer=1"],
        ["tokenizer.user_symbols=['\u2460']", "data.unicode_form=none"],
    ],
)
def test_options_that_may_have_an_effect_are_accepted(overrides: list[str]) -> None:
    parse_recipe(SMALL, overrides)


def test_all_errors_are_reported_at_once() -> None:
    message = message_for(SMALL, "train.max_step=1", "decode.n_best=10", "seed=x")
    assert message.count(" | ") == 2


@pytest.mark.parametrize("name", ["name", "src_lang", "tgt_lang"])
def test_a_missing_option_is_named(name: str) -> None:
    text, removed = re.subn(rf"(?m)^{name} = .*\n", "", SMALL)
    assert removed == 1
    assert message_for(text).startswith(f"recipe: option '{name}' is missing")


def test_a_missing_section_is_named() -> None:
    without_data, _, _ = SMALL.partition("[[data.train]]")
    assert message_for(without_data).startswith("recipe: section [data] is missing; every recipe needs one")


def test_an_option_without_effect_may_have_its_default_or_be_saved(tmp_path: Path) -> None:
    parse_recipe(SMALL, ["train.validate_bleu_sentences=500", "data.temperature=1", "decode.sampling_seed=1"])
    recipe = parse_recipe(SMALL)
    train = recipe.train.model_copy(update={"validate_bleu_sentences": 100})  # as an earlier version accepted it
    saved = tmp_path / "recipe.toml"
    saved.write_text(dump_recipe(recipe.model_copy(update={"train": train})), encoding="utf-8")
    assert load_saved_recipe(saved).train == train
    with pytest.raises(RecipeError, match="validate_bleu_sentences has no effect"):
        load_recipe(saved)
