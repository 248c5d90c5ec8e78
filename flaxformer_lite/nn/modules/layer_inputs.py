"""Vectors of each token for each layer, which a layer reads beside the stream (Gemma 4)."""

import flax.linen as nn
import jax

from flaxformer_lite.config import Execution, NormConfig
from flaxformer_lite.nn.modules.einsum import Einsum
from flaxformer_lite.nn.modules.embed import EmbedConfig, TokenEmbed
from flaxformer_lite.nn.modules.norms import Norm


class LayerInputs(nn.Module):
    """p_l = (norm(W_l x / sqrt(D)) + sqrt(P) E_l[token]) / sqrt(2) for each layer l.

    Attributes:
      tokens: the record of the table E of all layers, L P wide.
      width: P.
      norm: normalizes the projected vectors.
      execution: how it runs.
    """

    tokens: EmbedConfig
    width: int
    norm: NormConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, input_ids_BT: jax.Array, x_BTD: jax.Array) -> jax.Array:
        """Returns the vectors of all layers, [B, T, L, P], from the embedded tokens x."""
        width = x_BTD.shape[-1]
        layers = self.tokens.width // self.width
        sizes = {"D": width, "L": layers, "P": self.width}
        initial = self.tokens.initial
        project = Einsum(
            "BTD,DLP->BTLP", sizes, initial=initial, execution=self.execution, name="project"
        )
        seen_BTLP = Norm(self.norm, self.execution, name="norm")(project(x_BTD) * width**-0.5)
        found_BTU = TokenEmbed(self.tokens, self.execution, name="token_embed")(input_ids_BT)
        return (seen_BTLP + found_BTU.reshape(seen_BTLP.shape)) * 2**-0.5
