"""The tiny reference checkpoints as data, one row per fixture, read by make_fixtures.py."""

from dataclasses import dataclass, field
from typing import Any

from fixture_configs import (
    ALBERT,
    BART,
    BERT,
    DECODERS,
    ENCODERS,
    GATED,
    GPT,
    HALF,
    LLAMA3,
    LLAMA3_ROPE,
    MARIAN,
    NEOX,
    OPT,
    PEGASUS,
    T5,
    UNTIED,
    WITH_CAUSAL_LM,
    WITH_PRETRAINING,
    WITH_TOKEN_TYPES,
    WITHOUT,
)

ENCODER_HEADS = {
    "base": "AutoModel",
    "masked_lm": "AutoModelForMaskedLM",
    "pretraining": "AutoModelForPreTraining",
    "sequence_classification": "AutoModelForSequenceClassification",
    "token_classification": "AutoModelForTokenClassification",
    "question_answering": "AutoModelForQuestionAnswering",
    "multiple_choice": "AutoModelForMultipleChoice",
    "causal_lm": "AutoModelForCausalLM",
}
OTHER_HEADS = {
    "lm": "AutoModelForCausalLM",
    "conditional_generation": "AutoModelForSeq2SeqLM",
    "encoder": "AutoModelForTextEncoding",
}
TWO_SIDED = ("t5", "mt5", "umt5", "bart", "mbart")  # families whose bare model has a decoder
AUTO_CLASSES = ENCODER_HEADS | OTHER_HEADS


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One fixture: a checkpoint of `model_type` under `config`, with `head` on top.

    Attributes:
        published: keys written into config.json as published checkpoints spell them; None deletes a
          key.
        file_dtype: dtype of the tensors in the file; outputs are always computed in float32 from
          those values. Families that store their sinusoids (RoFormer, Pegasus) stay in float32, so
          that computing them anew is as good.
        token_types: whether the model takes token_type_ids.
        untied: parameters cut loose from the tensor they would share, and stored.
        cases: extra forward passes: `positions` gives explicit position_ids, `plain` gives
          input_ids alone.
        shard_size: when set, the checkpoint is split into shards of at most this size, with an
          index.
    """

    name: str
    model_type: str
    head: str
    config: dict[str, Any]
    published: dict[str, Any] = field(default_factory=dict)
    file_dtype: str = "float32"
    token_types: bool = False
    untied: tuple[str, ...] = ()
    cases: tuple[str, ...] = ()
    grads: bool = False
    penalties: bool = False
    shard_size: str = ""

    @property
    def kind(self) -> str:
        """encoder, decoder or seq2seq (what is called with decoder_input_ids)."""
        # T5 and mT5 shift the question right themselves; UMT5 is given what its decoder reads.
        is_encoder_decoder = self.head == "base" or (
            self.head == "question_answering" and self.model_type == "umt5"
        )
        if self.head == "conditional_generation" or (
            is_encoder_decoder and self.model_type in TWO_SIDED
        ):
            return "seq2seq"
        is_decoder = self.model_type in DECODERS or self.without_encoder
        return "decoder" if is_decoder else "encoder"

    @property
    def without_encoder(self) -> bool:
        """Whether it is the decoder of an encoder-decoder alone."""
        return self.head == "lm" and self.model_type in ("bart", "mbart", "marian", "pegasus")


def specs() -> list[Spec]:
    """Lists all fixtures in the order of the parity table: encoders, decoders, encoder-decoders."""
    return [*_encoders(), *_decoders(), *_seq2seq()]


def _encoders() -> list[Spec]:
    rows = []
    for family, config in ENCODERS.items():
        common = {
            "model_type": family.replace("xlm_roberta", "xlm-roberta"),
            "token_types": family in WITH_TOKEN_TYPES,
        }
        for head in ENCODER_HEADS:
            if head == "pretraining" and family not in WITH_PRETRAINING:
                continue
            if head == "causal_lm" and family not in WITH_CAUSAL_LM:
                continue
            causal = {"is_decoder": True} if head == "causal_lm" else {}
            labels = (
                {"num_labels": 3}
                if head in ("sequence_classification", "token_classification")
                else {}
            )
            on_top = head not in ("base", "masked_lm", "pretraining", "causal_lm")
            cases = ("plain",) if head == "masked_lm" else ()
            if head == "base" and family in ("bert", "roberta", "distilbert", "electra", "albert"):
                cases = ("plain", "positions")
            rows.append(
                Spec(
                    name=f"{family}_{head}",
                    head=head,
                    config=config | labels | causal,
                    cases=cases,
                    grads=(family, head) == ("bert", "pretraining"),
                    file_dtype=(
                        "float32"
                        if family == "roformer"
                        or (head != "causal_lm" and family in ("bert", "roberta") and not on_top)
                        else "float16"
                    ),
                    **common,
                )
            )
    group = {"num_hidden_layers": 4, "num_hidden_groups": 2, "inner_group_num": 2}
    rows += [
        Spec(
            name="electra_square_base",
            model_type="electra",
            head="base",
            config=BERT | {"embedding_size": 16},
            token_types=True,
            **HALF,
        ),
        Spec(
            name="albert_groups_base",
            model_type="albert",
            head="base",
            config=ALBERT | group,
            token_types=True,
            **HALF,
        ),
        Spec(
            name="albert_square_base",
            model_type="albert",
            head="base",
            config=ALBERT | {"embedding_size": ALBERT["hidden_size"]},
            **HALF,
        ),
        Spec(
            name="albert_unshared_base",
            model_type="albert",
            head="base",
            config=ALBERT | {"num_hidden_groups": 2},
            **HALF,
        ),
        Spec(
            name="roformer_value_base",
            model_type="roformer",
            head="base",
            config=BERT | {"rotary_value": True},
        ),
    ]
    return rows


def _decoders() -> list[Spec]:
    rows = []
    for family, (config, published, dtype) in DECODERS.items():
        common = {"model_type": family, "published": published, "file_dtype": dtype}
        rows.append(
            Spec(
                name=f"{family}_lm",
                head="lm",
                config=config,
                cases=("plain",) + (("positions",) if family in ("gpt2", "llama", "opt") else ()),
                grads=family == "gpt2",
                penalties=family in ("gpt2", "llama"),
                shard_size="12KB" if family == "qwen2" else "",
                **common,
            )
        )
        for head in ("sequence_classification", "token_classification", "question_answering"):
            labels = {} if head == "question_answering" else {"num_labels": 3}
            if head not in WITHOUT.get(family, ()):
                rows.append(
                    Spec(
                        name=f"{family}_{head}",
                        head=head,
                        config=config | labels | _one_layer(config),
                        **common,
                    )
                )
    post_norm = OPT | {"do_layer_norm_before": False, "word_embed_proj_dim": 12}
    llama3 = {
        "model_type": "llama",
        "config": LLAMA3,
        "published": LLAMA3_ROPE,
        "file_dtype": "bfloat16",
    }
    sequential = NEOX | {"use_parallel_residual": False, "attention_bias": False}
    rows += [
        Spec(
            name="gpt2_base", model_type="gpt2", head="base", config=GPT, token_types=True, **HALF
        ),
        Spec(
            name="gpt_neox_sequential_lm",
            model_type="gpt_neox",
            head="lm",
            config=sequential,
            file_dtype="float16",
        ),
        Spec(
            name="opt_350m_lm", model_type="opt", head="lm", config=post_norm, file_dtype="float16"
        ),
        Spec(
            name="opt_350m_base",
            model_type="opt",
            head="base",
            config=post_norm | {"num_hidden_layers": 1},
            **HALF,
        ),
        Spec(name="llama3_lm", head="lm", grads=True, **llama3),
        Spec(name="llama3_base", head="base", **llama3),
    ]
    return rows


def _one_layer(config: dict[str, Any]) -> dict[str, Any]:
    """Reduces a config to one layer, as a decoder's classifier differs from its LM only at the
    top."""
    if "attention_types" in config:
        return {"num_layers": 1, "attention_types": [[["local"], 1]]}
    return {key: 1 for key in ("n_layer", "num_hidden_layers") if key in config}


def _seq2seq() -> list[Spec]:
    untied = {"untied": ("lm_head.weight",), "published": UNTIED}
    separate = {
        "share_encoder_decoder_embeddings": False,
        "decoder_vocab_size": 67,
        "tie_word_embeddings": False,
    }
    rows = [
        ("t5", "t5", T5, {"grads": True, "penalties": True}),
        ("t5_v1_1", "t5", GATED, untied),
        (
            "flan_t5",
            "t5",
            GATED | {"tie_word_embeddings": False},
            {"untied": ("lm_head.weight",), **HALF},
        ),
        (
            "mt5",
            "mt5",
            GATED | {"num_decoder_layers": 1},
            {"untied": ("lm_head.weight",), "published": {"tie_word_embeddings": False}, **HALF},
        ),
        ("byt5", "t5", GATED | {"num_layers": 3, "num_decoder_layers": 1}, untied | HALF),
        ("umt5", "umt5", GATED, {"untied": ("lm_head.weight",), **HALF}),
        ("bart", "bart", BART, {"penalties": True, **HALF}),
        (
            "mbart",
            "mbart",
            BART
            | {
                "scale_embedding": True,
                "activation_function": "relu",
                "decoder_start_token_id": 4,
            },
            HALF,
        ),
        ("marian", "marian", MARIAN, HALF),
        ("marian_separate", "marian", MARIAN | separate, HALF),
        ("pegasus", "pegasus", PEGASUS, {}),
    ]
    found = [
        Spec(
            name=f"{name}_conditional_generation",
            model_type=model_type,
            head="conditional_generation",
            config=config,
            **extra,
        )
        for name, model_type, config, extra in rows
    ]
    short = {"encoder_layers": 1, "decoder_layers": 1}
    for family, config in (
        ("bart", BART | short),
        ("mbart", BART | short | {"scale_embedding": True}),
    ):
        for head in ("base", "sequence_classification", "question_answering"):
            cases = ("plain",) if head == "base" else ()
            found.append(
                Spec(
                    name=f"{family}_{head}",
                    model_type=family,
                    head=head,
                    config=config,
                    cases=cases,
                    **HALF,
                )
            )
    for family, config, dtype in (
        ("bart", BART, "float16"),
        ("mbart", BART | {"scale_embedding": True, "activation_function": "relu"}, "float16"),
        ("pegasus", PEGASUS, "float32"),
        ("marian", MARIAN, "float32"),
    ):
        found.append(
            Spec(
                name=f"{family}_lm",
                model_type=family,
                head="lm",
                config=config | short,
                file_dtype=dtype,
            )
        )
    single = {"num_layers": 1}
    for family, config in (("t5", T5 | single), ("mt5", GATED | single), ("umt5", GATED | single)):
        for head in ("sequence_classification", "token_classification", "question_answering"):
            labels = {} if head == "question_answering" else {"num_labels": 3}
            found.append(
                Spec(
                    name=f"{family}_{head}",
                    model_type=family,
                    head=head,
                    config=config | labels,
                    **HALF,
                )
            )
    found.append(
        Spec(name="t5_base", model_type="t5", head="base", config=T5 | {"num_layers": 1}, **HALF)
    )
    found.append(
        Spec(name="t5_encoder", model_type="t5", head="encoder", config=T5, cases=("plain",))
    )
    found.append(
        Spec(name="umt5_encoder", model_type="umt5", head="encoder", config=GATED, cases=("plain",))
    )
    return found
