"""A mixture of experts: each token uses a few of many feed-forward layers."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp

from flaxformer_lite.config import ConfigError, Count, Execution, OneOf, choices, parts
from flaxformer_lite.config.rules import NotNegative, Positive, Size
from flaxformer_lite.nn.attentions.mask_structure import structure_of
from flaxformer_lite.nn.feed_forwards.mlp import FeedForward, MlpConfig
from flaxformer_lite.nn.functions import masks, quantized
from flaxformer_lite.nn.functions.activations import ACTIVATIONS
from flaxformer_lite.nn.functions.grouped_matmul import grouped_matmul
from flaxformer_lite.nn.functions.ragged_exchange import MeshAxis, exchange
from flaxformer_lite.nn.functions.routing import (
    balance_loss,
    expert_counts,
    route_tokens,
    router_sums,
    with_gradient,
    z_loss,
)
from flaxformer_lite.nn.functions.sharding import ActivationSharding, adapter_of, sharding_of
from flaxformer_lite.nn.modules.context import Context
from flaxformer_lite.nn.modules.einsum import IN_LAYER, Einsum, QuantizedKernel, make_initializer

ROUTER_BIAS = "choice_bias"  # training/optimizer.py moves it by the sign of its gradient
LOSSES = "losses"  # the collection of auxiliary losses
ROUTED = "routed"  # the collection of what the losses of whole stacks are made of
LOADS = "loads"  # the collection of how many choices of tokens fell on each expert
Matrices = dict[str, dict[str, jax.Array]]
# the weighted sums of experts, of tokens, their weights and their experts
Mix = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True, kw_only=True)
class MoeConfig(parts.FeedForwardConfig):
    """The record of a Moe.

    Attributes:
      num_experts: X.
      experts_per_token: A; the likeliest of them are used, and no token is dropped.
      mlp_dim: F of each expert; 0 takes it from the layer that this one replaces.
      shared_dim: F of an expert that all tokens use; 0 leaves it out.
      shared_gate: whether a sigmoid of a product with the token scales the shared expert
        (Qwen2-MoE).
      score: how the router's logits become scores, see nn/functions/routing.py.
      normalize: whether the weights of a token's experts sum to one.
      router_bias: whether the router has a bias.
      limit: the gate is clipped to at most this, and what it multiplies to [-limit, limit]
        (gpt-oss); 0 for none.
      up_offset: added to what the gate multiplies (1 in gpt-oss).
      scale: factor on the weights.
      groups: the number of groups of neighbouring experts.
      groups_per_token: the number of groups that a token's experts are of; 0 for all.
      router_bias_update_rate: how much one step of training moves a bias of each expert, up if it
        has fewer tokens than the mean and down if it has more; the bias counts in the choice of
        experts, not in their weights (DeepSeek-V3, section 2.1.2). 0 leaves it out.
      balance: factor on the loss that evens out the load.
      z_loss: factor on the square of the router's normalizer.
      losses_over: the tokens that both losses are means over: those of a `layer`, summed over the
        layers; those of all layers of a `stack` together, as transformers has it; or those of a
        `row` in all layers of a stack, padding too, as transformers has it for Switch. In the last
        two the shares of the experts sum to experts_per_token, in the first to one.
      expert: the layer that the experts have the shape of; in a model, the one that its config
        describes.
    """

    low_precision: ClassVar[tuple[str, ...]] = ("quantize",)
    reads_context: ClassVar[bool] = True
    reads_one_token: ClassVar[bool] = True
    added: ClassVar[tuple[str, ...]] = (r"/mlp/router/(kernel|bias)$", rf"/mlp/{ROUTER_BIAS}$")

    num_experts: Size = 8
    experts_per_token: Size = 2
    mlp_dim: Count = 0
    shared_dim: Count = 0
    shared_gate: bool = False
    score: Annotated[str, OneOf(choices.ROUTER_SCORES)] = "softmax"
    normalize: bool = True
    router_bias: bool = False
    limit: NotNegative = 0.0
    up_offset: float = 0.0
    scale: Positive = 1.0
    groups: Size = 1
    groups_per_token: Count = 0
    router_bias_update_rate: NotNegative = 0.0
    balance: NotNegative = 0.01
    z_loss: NotNegative = 0.0
    losses_over: Annotated[str, OneOf(choices.ROUTER_LOSSES)] = "layer"
    expert: MlpConfig = field(default_factory=MlpConfig, metadata={"internal": True})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.experts_per_token > self.num_experts:
            raise ConfigError(
                f"experts_per_token={self.experts_per_token}: must be at most"
                f" num_experts={self.num_experts}."
            )
        if self.groups_per_token:
            self._check_groups()
        if self.shared_gate and not self.shared_dim:
            raise ConfigError("shared_gate=True: needs a shared expert; set shared_dim.")

    def _check_groups(self) -> None:
        size, rest = divmod(self.num_experts, self.groups)
        if rest or size < 2 or not self.groups_per_token <= self.groups:
            raise ConfigError(
                f"groups={self.groups}, groups_per_token={self.groups_per_token}:"
                f" {self.num_experts} experts must divide into groups of two or more, of which a"
                " token takes some."
            )
        if self.groups_per_token * size < self.experts_per_token:
            raise ConfigError(
                f"experts_per_token={self.experts_per_token}: groups_per_token="
                f"{self.groups_per_token} groups of {size} have too few; raise it."
            )

    def for_model(self, standard: parts.Part) -> "MoeConfig":
        assert isinstance(standard, MlpConfig)
        if (self.limit or self.up_offset) and not standard.gated:
            raise ConfigError(
                f"limit={self.limit}, up_offset={self.up_offset}: are of gated experts; set"
                " model.mlp=gated."
            )
        return dataclasses.replace(self, expert=standard)

    def module(self, execution: Execution, *, name: str | None = None) -> "Moe":
        return Moe(self, execution, name=name)

    def partition_rules(self) -> parts.PartitionRules:
        rules: tuple = (
            (r"mlp/router/kernel$", ()),
            (r"mlp/experts/(up|gate)/kernel$", ("expert", "fsdp", "tensor")),
            (r"mlp/experts/down/kernel$", ("expert", "tensor", "fsdp")),
        )
        if self.router_bias:
            rules += ((r"mlp/router/bias$", ()),)
        if self.expert.bias:
            rules += (
                (r"mlp/experts/(up|gate)/bias$", ("expert", "tensor")),
                (r"mlp/experts/down/bias$", ("expert", None)),
            )
        if self.shared_dim:
            for pattern, axes in self.shared.partition_rules():
                rules += ((pattern.replace("mlp/", "mlp/shared/"), axes),)
        if self.shared_gate:
            rules += ((r"mlp/shared_gate/kernel$", ()),)
        if self.router_bias_update_rate:
            rules += ((rf"mlp/{ROUTER_BIAS}$", ()),)
        return rules

    @property
    def at_inference(self) -> Self:
        # The rate no longer matters, but the layer keeps its parameter.
        has_bias = float(self.router_bias_update_rate > 0)
        return dataclasses.replace(
            self, balance=0.0, z_loss=0.0, losses_over="layer", router_bias_update_rate=has_bias
        )

    def copied_from(self, path: str) -> str:
        """Returns the name of the dense layer's matrix from which each expert is copied at first.

        With normalized weights the model then computes what the dense model did (Komatsuzaki et al.
        2022, "Sparse Upcycling", arXiv:2212.05055).
        """
        if not self.normalize:
            return ""
        return path.replace("/mlp/experts/", "/mlp/")

    def route(self, logits_X: jax.Array, bias_X: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """Returns the weights of each token's experts and their numbers (nn/functions/routing.py).

        Args:
          logits_X: of the router, [..., X].
          bias_X: the bias of the choice, if the layer has one.
        """
        return route_tokens(
            logits_X,
            self.experts_per_token,
            score=self.score,
            normalize=self.normalize,
            scale=self.scale,
            bias_X=bias_X,
            groups=self.groups,
            groups_per_token=self.groups_per_token,
        )

    def mix(
        self,
        matrices: "Matrices",
        sharding: ActivationSharding,
        x_LD: jax.Array,
        weights_LA: jax.Array,
        chosen_LA: jax.Array,
    ) -> jax.Array:
        """Returns the weighted sums of experts for the tokens of one device (`mix_sorted`)."""
        return mix_sorted(self, matrices, sharding, x_LD, weights_LA, chosen_LA)

    @property
    def shared(self) -> MlpConfig:
        """The record of the shared expert."""
        return dataclasses.replace(self.expert, mlp_dim=self.shared_dim)


class Moe(nn.Module):
    """y = sum over a token's experts of weight * expert(x), plus the shared expert.

    In training, the losses of the router are sown into the collection `losses`, the sums of those
    over a whole stack into `routed`, and the load of each expert into `loads`. The gradient of the
    bias of the choice is then how many choices more than the mean fell on each expert, which adds
    up over microbatches and devices.

    Reference: Shazeer et al. 2017 (arXiv:1701.06538), section 2; Jiang et al. 2024, "Mixtral of
    Experts" (arXiv:2401.04088), section 2.1.
    """

    cfg: MoeConfig = MoeConfig()
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, x_BTD: jax.Array, context: Context | None = None) -> jax.Array:
        cfg = self.cfg
        run = self.execution
        if "mlp" in run.dropout_at and run.dropout > 0 and self.has_rng("dropout"):
            raise ConfigError(
                "dropout_at: has 'mlp', and experts drop nothing between their two matrices; leave"
                " it out, 'branch' drops of their output."
            )
        width = x_BTD.shape[-1]
        sizes = {"D": width, "X": cfg.num_experts}
        router = Einsum(
            "BTD,DX->BTX",
            sizes,
            bias=cfg.router_bias,
            initial=cfg.expert.initial,
            execution=run,
            name="router",
        )
        logits_BTX = router(self.router_input(x_BTD))
        bias_X = None
        if cfg.router_bias_update_rate:
            # in float32, as steps of training are smaller than bfloat16 resolves
            shape = (cfg.num_experts,)
            bias_X = self.param(ROUTER_BIAS, nn.initializers.zeros, shape, jnp.float32)

        # By hand, as the partitioner gathers all logits for a top_k.
        on_shards = sharding_of(run).per_shard(cfg.route, ("BT", ""), ("BT", "BT"))
        weights_BTA, chosen_BTA = on_shards(logits_BTX, bias_X)
        self._sow_losses(logits_BTX, chosen_BTA, context)
        combined = self.combine_weights(weights_BTA, chosen_BTA, logits_BTX, context)
        y_BTD = Experts(cfg, run, name="experts")(self.norm_of("experts_in", x_BTD), *combined)
        y_BTD = self.norm_of("experts_out", y_BTD)
        if self._trains:
            chosen_LA = chosen_BTA.reshape(-1, cfg.experts_per_token)
            # Of the choices and not of what had room, or full experts would never lose their
            # excess.
            count_X = expert_counts(chosen_LA, cfg.num_experts, kept_tokens(context, logits_BTX))
            self.sow(LOADS, "load", count_X)
            if bias_X is not None:
                y_BTD = with_gradient(y_BTD, bias_X, count_X - count_X.mean())
        if not cfg.shared_dim:
            return y_BTD
        shared = FeedForward(cfg.shared, run, name="shared")
        shared_BTD = self.norm_of("shared_out", shared(self.norm_of("shared_in", x_BTD)))
        if cfg.shared_gate:
            gate = Einsum(
                "BTD,DC->BTC",
                {"D": width, "C": 1},
                initial=cfg.expert.initial,
                execution=run,
                name="shared_gate",
            )
            shared_BTD = jax.nn.sigmoid(gate(x_BTD)) * shared_BTD
        return y_BTD + shared_BTD

    @property
    def _trains(self) -> bool:
        """Whether a step asks for what only training reads."""
        return self.is_mutable_collection(LOSSES) and not self.is_initializing()

    def router_input(self, x_BTD: jax.Array) -> jax.Array:
        """Returns what the router reads."""
        return x_BTD

    @nn.nowrap
    def norm_of(self, slot: str, x_BTD: jax.Array) -> jax.Array:
        """Returns x: the slots of this layer have no norms."""
        return x_BTD

    def combine_weights(
        self,
        weights_BTA: jax.Array,
        chosen_BTA: jax.Array,
        logits_BTX: jax.Array,
        context: Context | None,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the combine weights of each token (GShard, 2.2) and the experts they are of."""
        return weights_BTA, chosen_BTA

    def _sow_losses(
        self, logits_BTX: jax.Array, chosen_BTA: jax.Array, context: Context | None
    ) -> None:
        cfg = self.cfg
        if not self._trains:
            return
        if cfg.losses_over != "layer":
            self._sow_sums(logits_BTX, chosen_BTA, context)
            return
        keep_L = kept_tokens(context, logits_BTX)
        logits_LX = logits_BTX.reshape(-1, cfg.num_experts)
        if cfg.balance:
            chosen_LA = chosen_BTA.reshape(-1, cfg.experts_per_token)
            loss = balance_loss(logits_LX, chosen_LA, keep_L)
            self.sow(LOSSES, "load_balancing", cfg.balance * loss)
        if cfg.z_loss:
            self.sow(LOSSES, "router_z", cfg.z_loss * z_loss(logits_LX, keep_L))

    def _sow_sums(
        self, logits_BTX: jax.Array, chosen_BTA: jax.Array, context: Context | None
    ) -> None:
        cfg = self.cfg
        keep_BT = jnp.ones(logits_BTX.shape[:2], jnp.float32)
        if cfg.losses_over == "row":
            sums = router_sums(logits_BTX, chosen_BTA, keep_BT, cfg.balance, cfg.z_loss)
        else:
            keep_L = kept_tokens(context, logits_BTX)
            if keep_L is not None:
                keep_BT = keep_L.astype(jnp.float32)
            sums = router_sums(
                logits_BTX.reshape(1, -1, cfg.num_experts),
                chosen_BTA.reshape(1, -1, cfg.experts_per_token),
                keep_BT.reshape(1, -1),
                cfg.balance,
                cfg.z_loss,
            )
        for name, value in sums.items():
            self.sow(ROUTED, name, value)


class Experts(nn.Module):
    """The weighted sum of each token's experts."""

    cfg: MoeConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self, x_BTD: jax.Array, weights_BTA: jax.Array, chosen_BTA: jax.Array
    ) -> jax.Array:
        """Returns the sum [B, T, D].

        Args:
          x_BTD: the tokens.
          weights_BTA: weights of the experts of each token.
          chosen_BTA: int32, their numbers.
        """
        cfg = self.cfg
        run = self.execution
        width = x_BTD.shape[-1]
        hidden = cfg.mlp_dim or cfg.expert.mlp_dim or 4 * width
        shapes = {"up": (width, hidden), "down": (hidden, width)}
        if cfg.expert.gated:
            shapes["gate"] = (width, hidden)
        matrices = {}
        for name, (fan_in, fan_out) in shapes.items():
            matrix = ExpertMatrices(cfg, run, fan_in, fan_out, name=name)
            matrices[name] = matrix(x_BTD)
        placed = {}
        for name, leaves in matrices.items():
            letters = {"kernel": "XDF", "bias": "XF"}
            if name == "down":
                letters = {"kernel": "XFD", "bias": "XD"}
            placed[name] = {leaf: letters[leaf] for leaf in leaves}
        sharding = sharding_of(run)
        mix = functools.partial(_mix_on_shard, cfg, sharding, x_BTD.shape[0], hidden)
        on_shards = sharding.per_shard(mix, ("BTD", "BTA", "BTA", placed), "BTD")
        y_BTD = on_shards(x_BTD, weights_BTA, chosen_BTA, matrices)
        if not cfg.expert.bias:
            return y_BTD
        # Added out here, once: devices that share a hidden layer sum their outputs.
        bias_XD = matrices["down"]["bias"]
        weights_BTA = weights_BTA.astype(x_BTD.dtype)
        bias_BTAD = bias_XD.at[chosen_BTA].get(mode="clip")
        return y_BTD + jnp.einsum("BTAD,BTA->BTD", bias_BTAD, weights_BTA)


class ExpertMatrices(nn.Module):
    """One matrix of every expert, and its bias."""

    cfg: MoeConfig
    execution: Execution
    fan_in: int
    fan_out: int

    @nn.compact
    def __call__(self, x: jax.Array) -> dict[str, jax.Array]:
        """Returns the kernel [X, I, O], and the bias [X, O] if the experts have one.

        Both are in the dtype of the tokens x. Quantized kernels are dequantized, once x is
        computed: the outputs of all experts of the layer, whichever the tokens use.
        """
        cfg = self.cfg
        run = self.execution
        path = "/".join((*self.path, "kernel"))
        adapter = adapter_of(run)
        if adapter is not None and adapter.adapts(path):
            raise ConfigError(
                f"adapter.targets: match {'/'.join(self.path)}, and experts cannot be adapted; name"
                " the matrices of attention only."
            )
        is_residual = self.name == "down"
        init = make_initializer(cfg.expert.initial, self.fan_in, self.fan_out, residual=is_residual)
        stored = jnp.dtype(run.param_dtype)
        shape = (cfg.num_experts, self.fan_in, self.fan_out)
        if run.quantize != "none" and IN_LAYER.search(path):
            quantized_kernel = QuantizedKernel(
                shape, 1, run.quantize, init, stacked=True, name="kernel"
            )
            codes, scale = quantized_kernel()
            frozen = jax.lax.stop_gradient(scale)
            kernel = quantized.dequantize_after(x, codes, frozen, run.quantize)
        else:
            kernel = self.param("kernel", init, shape, stored).astype(x.dtype)
            kernel = sharding_of(run).gather_weight(kernel, path)
        made = {"kernel": kernel}
        if cfg.expert.bias:
            bias = self.param("bias", nn.initializers.zeros, (shape[0], shape[2]), stored)
            made["bias"] = bias.astype(x.dtype)
        return made


def _mix_on_shard(
    cfg: MoeConfig,
    sharding: ActivationSharding,
    batch: int,
    hidden: int,
    x_BTD: jax.Array,
    weights_BTA: jax.Array,
    chosen_BTA: jax.Array,
    matrices: Matrices,
) -> jax.Array:
    """Computes the weighted sums of experts for the tokens of one device of a mesh.

    Devices along the axis of experts have tokens and experts of their own. With `gather` each
    gathers the tokens of all of them, computes those of its experts, and the sums are scattered
    back. With `all_to_all` each token is sent to the devices that have its experts, and their sums
    are sent back. Devices along the axis of the hidden layer have a part of each expert.

    Args:
      cfg: the record.
      sharding: of the mesh.
      batch: B over all devices.
      hidden: F over all devices.
      x_BTD, weights_BTA, chosen_BTA: the device's tokens.
      matrices: the device's experts.
    """
    local, part = matrices["down"]["kernel"].shape[:2]
    axis = sharding.num_shards("X").mesh_axis
    has_other_experts = local < cfg.num_experts
    has_other_tokens = has_other_experts and x_BTD.shape[0] < batch
    x_LD = x_BTD.reshape(-1, x_BTD.shape[-1])
    weights_LA = weights_BTA.reshape(-1, cfg.experts_per_token)
    chosen_LA = chosen_BTA.reshape(-1, cfg.experts_per_token)
    inside = sharding.inside_shard()
    mix = functools.partial(cfg.mix, matrices, inside)
    if not has_other_experts:
        y_LD = mix(x_LD, weights_LA, chosen_LA)
    elif not has_other_tokens:
        first = jax.lax.axis_index(axis) * local
        y_LD = jax.lax.psum(mix(x_LD, weights_LA, chosen_LA - first), axis)
    else:
        # The choices of all tokens are few numbers beside the tokens.
        weights_GA = jax.lax.all_gather(weights_LA, axis, tiled=True)
        chosen_GA = jax.lax.all_gather(chosen_LA, axis, tiled=True)
        if sharding.expert_dispatch == "all_to_all":
            meet = functools.partial(_exchange_tokens, local, axis, inside)
        else:
            meet = functools.partial(_gather_tokens, local, axis)
        y_LD = meet(mix, x_LD, weights_GA, chosen_GA)
    if part < hidden:
        y_LD = jax.lax.psum(y_LD, sharding.num_shards("F").mesh_axis)
    return y_LD.reshape(x_BTD.shape)


def _gather_tokens(
    local: int,
    axis: MeshAxis,
    mix: Mix,
    x_LD: jax.Array,
    weights_GA: jax.Array,
    chosen_GA: jax.Array,
) -> jax.Array:
    """Computes the experts of this device for the tokens of all devices along the axis.

    Args:
      local: the number of experts of a device.
      axis: of the mesh.
      mix: computes the device's experts; those outside 0..local count as zero.
      x_LD: the device's tokens.
      weights_GA, chosen_GA: of the tokens of all devices.
    """
    x_GD = jax.lax.all_gather(x_LD, axis, tiled=True)
    y_GD = mix(x_GD, weights_GA, chosen_GA - jax.lax.axis_index(axis) * local)
    return jax.lax.psum_scatter(y_GD, axis, tiled=True)


def _exchange_tokens(
    local: int,
    axis: MeshAxis,
    sharding: ActivationSharding,
    mix: Mix,
    x_LD: jax.Array,
    weights_GA: jax.Array,
    chosen_GA: jax.Array,
) -> jax.Array:
    """Computes what `_gather_tokens` does, sending each token only where it has experts.

    A token goes once to a device, whichever number of its experts is there. Even if every token
    goes to the same device none is lost, as there is space for all.
    """
    me = jax.lax.axis_index(axis)
    tokens = len(x_LD)
    devices = len(chosen_GA) // tokens
    copies = chosen_GA.shape[1]
    device_GA = chosen_GA // local  # one that does not exist if the expert does not
    goes_GP = (device_GA[:, :, None] == jnp.arange(devices)[None, None]).any(axis=1)
    goes_PLP = goes_GP.reshape(devices, tokens, devices)
    counts_PP = goes_PLP.sum(axis=1, dtype=jnp.int32)

    goes_PL = goes_PLP[me].T
    # A token goes at most once to each device. What is left is filled with token 0, which is not
    # sent, and for which zeros come back.
    (sent_M,) = jnp.nonzero(goes_PL.reshape(-1), size=tokens * min(copies, devices))
    token_M = sent_M % tokens
    # Filled with a row behind the last, which reads weight zero and an expert that does not exist.
    (read_G,) = jnp.nonzero(goes_GP[:, me], size=len(chosen_GA), fill_value=len(chosen_GA))
    x_GD = exchange(x_LD[token_M], counts_PP, len(chosen_GA), axis, sharding)
    weights_GA = weights_GA.at[read_G].get(mode="fill", fill_value=0)
    chosen_GA = chosen_GA.at[read_G].get(mode="fill", fill_value=devices * local)
    y_GD = mix(x_GD, weights_GA, chosen_GA - me * local)
    y_MD = exchange(y_GD, counts_PP.T, len(token_M), axis, sharding)
    return jnp.zeros_like(x_LD).at[token_M].add(y_MD)


def mix_sorted(
    cfg: MoeConfig,
    matrices: Matrices,
    sharding: ActivationSharding,
    x_LD: jax.Array,
    weights_LA: jax.Array,
    chosen_LA: jax.Array,
) -> jax.Array:
    """Sorts the copies of tokens by expert, multiplies each group, and sums the weighted results.

    Experts outside the range of the matrices count as zero. The sum lacks the bias of `down`, which
    must be added once where devices share a hidden layer.
    """
    tokens, copies = chosen_LA.shape
    experts = len(matrices["down"]["kernel"])
    expert_S = chosen_LA.reshape(-1)
    is_here_S = (expert_S >= 0) & (expert_S < experts)
    expert_S = jnp.where(is_here_S, expert_S, experts)
    order_S = jnp.argsort(expert_S, stable=True)
    place_S = jnp.argsort(order_S)
    # A token has no more copies here than there are experts.
    order_S = order_S[: tokens * min(copies, experts)]
    sizes_X = jnp.bincount(expert_S, length=experts + 1)[:experts]
    is_row_S1 = is_here_S[order_S][:, None]

    def times(x_SI: jax.Array, matrix: dict[str, jax.Array]) -> jax.Array:
        y_SO = grouped_matmul(x_SI, matrix["kernel"], sizes_X, sharding)
        if "bias" not in matrix:
            return y_SO
        return y_SO + matrix["bias"].at[expert_S[order_S]].get(mode="clip")

    # Rows beyond the last group have no meaning, and their gradients have none: both are cut off.
    x_SD = jnp.where(is_row_S1, x_LD[order_S // copies], 0)
    up_SF = times(x_SD, matrices["up"])
    gate_SF = None
    if cfg.expert.gated:
        gate_SF = times(x_SD, matrices["gate"])
    h_SF = hidden_of_experts(cfg, up_SF, gate_SF)
    # Weighted before `down` and not after, so that the gradient of the weights does not read its
    # products, which a layer that is computed again would have to make again.
    weights_S1 = jnp.where(is_row_S1, weights_LA.reshape(-1, 1)[order_S], 0)
    h_SF *= weights_S1.astype(h_SF.dtype)
    y_SD = grouped_matmul(h_SF, matrices["down"]["kernel"], sizes_X, sharding)
    y_SD = jnp.where(is_row_S1, y_SD, 0)
    y_LAD = y_SD.at[place_S].get(mode="fill", fill_value=0).reshape(tokens, copies, -1)
    return y_LAD.sum(axis=1)


def hidden_of_experts(cfg: MoeConfig, up_SF: jax.Array, gate_SF: jax.Array | None) -> jax.Array:
    act = ACTIVATIONS[cfg.expert.activation]
    if gate_SF is None:
        return act(up_SF)
    if cfg.limit:
        gate_SF = jnp.minimum(gate_SF, cfg.limit)
        up_SF = jnp.clip(up_SF, -cfg.limit, cfg.limit)
    if cfg.up_offset:
        up_SF += cfg.up_offset
    return act(gate_SF) * up_SF


def kept_tokens(context: Context | None, x_BTD: jax.Array) -> jax.Array | None:
    """Returns which tokens are no padding, [L]; None for all, or if the mask does not say it."""
    if context is None or isinstance(context.mask, jax.Array):
        return None
    batch, length = x_BTD.shape[:2]
    structure = structure_of(context.mask)
    if structure is None:
        array_BTS = _array_of(context.mask)
        if array_BTS is None or array_BTS.shape[1:] != (length, length):
            return None
        # a mask that a stack holds whole for all its layers; no row sees padding
        return jnp.broadcast_to(array_BTS.any(axis=1), (batch, length)).reshape(-1)
    keep_BT = structure.keep_BS
    if structure.q_segments_BT is not None:
        real_BT = structure.q_segments_BT != 0
        keep_BT = real_BT if keep_BT is None else keep_BT & real_BT
    if keep_BT is None or keep_BT.shape[1] != length:
        return None
    return jnp.broadcast_to(keep_BT, (batch, length)).reshape(-1)


def _array_of(mask: masks.Mask | None) -> jax.Array | None:
    if isinstance(mask, masks.And):
        first = _array_of(mask.a)
        return _array_of(mask.b) if first is None else first
    return mask.mask_BTS if isinstance(mask, masks.Dense) else None
