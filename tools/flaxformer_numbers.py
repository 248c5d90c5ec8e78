"""Writes the numbers of tests/contrib/t5x/test_flaxformer.py with flaxformer's own modules.

    python tools/flaxformer_numbers.py FLAXFORMER tests/contrib/t5x/flaxformer.json

FLAXFORMER is a checkout of google/flaxformer. It runs with jax 0.4.30, flax 0.8.5, aqtp 0.2.0, gin
and an older NumPy, not in this project's environment; TensorFlow, which only aqtp's cost estimates
import, is left out.

For each model it stores the name and shape of each parameter, and flaxformer's outputs when each
parameter holds `values(name, shape)`.
"""

import importlib.machinery
import json
import sys
import zlib
from functools import partial
from pathlib import Path
from unittest import mock

import jax
import numpy as np
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict

IDS = np.array([[5, 3, 8, 2, 9, 7], [4, 4, 21, 11, 0, 0]])
TARGETS = np.array([[0, 6, 3, 17], [0, 9, 2, 5]])  # 0 starts a decoder
WIDTH = 8
HEADS = 2
HEAD_WIDTH = 6
VOCABULARY = 40


def values(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Draws an array from its name, the same here and in the test."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return (0.5 * random.standard_normal(shape)).astype(np.float32)


class NoTensorFlow:
    """An importer that makes empty modules of TensorFlow."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "tensorflow":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return mock.MagicMock(__path__=[], __spec__=spec, __name__=spec.name)

    def exec_module(self, module):
        pass


def models() -> dict:
    """Returns each model with the arguments of its call."""
    from flaxformer.architectures.longt5 import (
        long_attention,
        longt5_architecture,
        relative_position_biases_general,
    )
    from flaxformer.architectures.moe import moe_architecture, moe_layers, routing
    from flaxformer.architectures.t5 import t5_architecture
    from flaxformer.components import dense, embedding, layer_norm, relative_position_biases
    from flaxformer.components.attention import dense_attention

    def no_dropout():
        return nn.Dropout(rate=0.0)

    def positions():
        return relative_position_biases.RelativePositionBiases(
            num_buckets=8, max_distance=128, num_heads=HEADS, dtype=np.float32
        )

    def embed(name=None):
        return embedding.Embed(num_embeddings=VOCABULARY, features=WIDTH, name=name)

    def mlp(activations, fuse=False, **fields):
        return dense.MlpBlock(
            use_bias=False,
            intermediate_dim=12,
            activations=activations,
            fuse_kernels=fuse,
            **fields,
        )

    def attention(fuse=None, **fields):
        return dense_attention.MultiHeadDotProductAttention(
            num_heads=HEADS,
            head_dim=HEAD_WIDTH,
            use_bias=False,
            split_head_kernel=fuse is not None,
            kernels_to_fuse=fuse,
            rescale_logits=fuse is not None,
            **fields,
        )

    def logits():
        return dense.DenseGeneral(features=VOCABULARY, use_bias=False)

    stack = dict(layer_norm_factory=layer_norm.T5LayerNorm)
    layer = dict(layer_norm_factory=layer_norm.T5LayerNorm, dropout_factory=no_dropout)

    def biases(scanned):
        """Returns the positions of a stack, and those of its layers."""
        if scanned:
            return {}, {"relative_position_bias_factory": positions}
        return {"shared_relative_position_bias_factory": positions}, {}

    def encoder(shared_token_embedder, activations, scanned=False, fuse=False, **fields):
        of_stack, of_layer = biases(scanned)

        def make_layer(shared_relative_position_bias):
            return t5_architecture.EncoderLayer(
                attention=attention("qkv" if fuse else None),
                mlp=mlp(activations, fuse),
                shared_relative_position_bias=shared_relative_position_bias,
                scanned=scanned,
                **layer,
                **of_layer,
            )

        return t5_architecture.Encoder(
            num_layers=2,
            layer_factory=make_layer,
            shared_token_embedder=shared_token_embedder,
            input_dropout_factory=no_dropout,
            output_dropout_factory=no_dropout,
            scan_layers=scanned,
            **stack,
            **of_stack,
            **fields,
        )

    def decoder(
        shared_token_embedder,
        activations,
        scanned=False,
        fuse=False,
        tied=False,
        **fields,
    ):
        of_stack, of_layer = biases(scanned)

        def make_layer(shared_relative_position_bias):
            return t5_architecture.DecoderLayer(
                self_attention=attention("qkv" if fuse else None),
                encoder_decoder_attention=attention("kv" if fuse else None),
                mlp=mlp(activations, fuse),
                shared_relative_position_bias=shared_relative_position_bias,
                scanned=scanned,
                **layer,
                **of_layer,
            )

        return t5_architecture.Decoder(
            num_layers=3,
            layer_factory=make_layer,
            shared_token_embedder=shared_token_embedder,
            dropout_factory=no_dropout,
            output_logits_factory=None if tied else logits,
            scan_layers=scanned,
            **stack,
            **of_stack,
            **fields,
        )

    def encoder_decoder(activations, tied=False, **fields):
        return t5_architecture.EncoderDecoder(
            shared_token_embedder_factory=partial(embed, "token_embedder"),
            encoder_factory=lambda *, shared_token_embedder: encoder(
                shared_token_embedder, activations, **fields
            ),
            decoder_factory=lambda *, shared_token_embedder: decoder(
                shared_token_embedder, activations, tied=tied, **fields
            ),
        )

    def experts():
        router = routing.TokensChooseMaskedRouter(
            router_weights=routing.RouterWeights(use_bias=False, dtype=np.float32),
            num_selected_experts=1,
            jitter_noise=0.0,
            batch_prioritized_routing=False,
            dtype=np.float32,
            ignore_padding_tokens=False,
        )
        return moe_layers.MoeLayer(
            num_experts=4,
            num_expert_partitions=4,
            num_model_partitions=1,
            router=router,
            max_group_size=64,
            train_capacity_factor=8.0,
            eval_capacity_factor=8.0,
            expert=mlp(("relu",)),
            dtype=np.float32,
        )

    def switch(scanned):
        of_stack, of_layer = biases(scanned)

        def encoder_layer(sparse, shared_relative_position_bias):
            kind = t5_architecture.EncoderLayer
            if sparse:
                kind = moe_architecture.SparseEncoderLayer
            return kind(
                attention=attention(),
                mlp=experts() if sparse else mlp(("relu",)),
                shared_relative_position_bias=shared_relative_position_bias,
                **layer,
                **of_layer,
            )

        def decoder_layer(sparse, shared_relative_position_bias):
            kind = t5_architecture.DecoderLayer
            if sparse:
                kind = moe_architecture.SparseDecoderLayer
            return kind(
                self_attention=attention(),
                encoder_decoder_attention=attention(),
                mlp=experts() if sparse else mlp(("relu",)),
                shared_relative_position_bias=shared_relative_position_bias,
                **layer,
                **of_layer,
            )

        def sparse_encoder(*, shared_token_embedder):
            return moe_architecture.SparseEncoder(
                num_layers=4,
                num_sparse_layers=2,
                layer_factory=partial(encoder_layer, False),
                sparse_layer_factory=partial(encoder_layer, True),
                shared_token_embedder=shared_token_embedder,
                input_dropout_factory=no_dropout,
                output_dropout_factory=no_dropout,
                scan_layers=scanned,
                **stack,
                **of_stack,
            )

        def sparse_decoder(*, shared_token_embedder):
            return moe_architecture.SparseDecoder(
                num_layers=2,
                num_sparse_layers=1,
                layer_factory=partial(decoder_layer, False),
                sparse_layer_factory=partial(decoder_layer, True),
                shared_token_embedder=shared_token_embedder,
                dropout_factory=no_dropout,
                output_logits_factory=None,
                scan_layers=scanned,
                **stack,
                **of_stack,
            )

        return t5_architecture.EncoderDecoder(
            shared_token_embedder_factory=partial(embed, "token_embedder"),
            encoder_factory=sparse_encoder,
            decoder_factory=sparse_decoder,
        )

    def longt5(attention_class, **fields):
        def general():
            return relative_position_biases_general.RelativePositionBiasesGeneral(
                num_buckets=8, max_distance=128, num_heads=HEADS, dtype=np.float32
            )

        tables = {"shared_relpos_bias_factory": general}
        if "tokens_per_block" in fields:
            tables["shared_side_relpos_bias_factory"] = general

        def make_attention(**given):
            return attention_class(
                num_heads=HEADS, head_dim=HEAD_WIDTH, use_bias=False, **fields, **given
            )

        def make_layer(**given):
            return longt5_architecture.LongEncoderLayer(
                attention_factory=make_attention, mlp=mlp(("gelu", "linear")), **layer, **given
            )

        def long_encoder(*, shared_token_embedder):
            return longt5_architecture.LongEncoder(
                num_layers=2,
                layer_factory=make_layer,
                shared_token_embedder=shared_token_embedder,
                input_dropout_factory=no_dropout,
                output_dropout_factory=no_dropout,
                **stack,
                **tables,
            )

        return longt5_architecture.LongEncoderDecoder(
            shared_token_embedder_factory=partial(embed, "token_embedder"),
            encoder_factory=long_encoder,
            decoder_factory=lambda *, shared_token_embedder: decoder(
                shared_token_embedder, ("gelu", "linear")
            ),
        )

    gated = ("gelu", "linear")
    both = (IDS, TARGETS, np.ones_like(TARGETS))
    return {
        "t5_1_1": (encoder_decoder(gated), both, {}),
        "t5_tied": (encoder_decoder(("relu",), tied=True), both, {}),
        "t5_scanned": (encoder_decoder(gated, scanned=True), both, {}),
        "t5_fused": (encoder_decoder(gated, scanned=True, fuse=True), both, {}),
        "t5_encoder": (encoder(None, gated, token_embedder_factory=embed), None, {}),
        "longt5_local": (
            longt5(long_attention.EncoderLocalSelfAttention, local_radius=2),
            both,
            {},
        ),
        "longt5_global": (
            longt5(
                long_attention.EtcTransientGlobalSelfAttention, local_radius=2, tokens_per_block=2
            ),
            both,
            {},
        ),
        "switch": (switch(False), both, {}),
        "switch_scanned": (switch(True), both, {}),
    }


def main(checkout: str, target: str) -> None:
    sys.path.insert(0, checkout)
    sys.meta_path.insert(0, NoTensorFlow())
    from flaxformer.components.attention import dense_attention

    written = {}
    for name, (model, args, fields) in models().items():
        if args is None:  # an encoder alone does not make its mask
            args = (IDS,)
            fields = {"encoder_mask": dense_attention.make_attention_mask(IDS > 0, IDS > 0)}
        init = partial(model.init, enable_dropout=False)
        shapes = jax.eval_shape(partial(init, jax.random.PRNGKey(0), *args, **fields))["params"]
        flat = {path: leaf.shape for path, leaf in flatten_dict(shapes, sep="/").items()}
        params = {path: values(path, shape) for path, shape in flat.items()}
        outputs = model.apply(
            {"params": unflatten_dict(params, sep="/")}, *args, enable_dropout=False, **fields
        )
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        written[name] = {
            "arrays": {path: list(shape) for path, shape in flat.items()},
            "outputs": [np.round(np.asarray(x, np.float64), 6).tolist() for x in outputs],
        }
    Path(target).write_text(json.dumps(written) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
