"""Jina's BERT in torch: a reference for tools/scoreboard.py, as transformers has no such classes.

Written from section 3.1 of the paper (arXiv:2310.19923) and the names of the published tensors.
"""

import math
from typing import Any

import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertPreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.models.bert.modeling_bert import BertPooler

FAR = -1e30


def slopes_of(heads: int) -> list[float]:
    """Returns ALiBi's slopes: a geometric sequence, and between its terms if that is too short."""
    power = 2 ** int(math.log2(heads))
    first = [2 ** (-8 * (i + 1) / power) for i in range(power)]
    if power == heads:
        return first
    return first + slopes_of(2 * power)[0::2][: heads - power]


class Layer(nn.Module):
    def __init__(self, config: Any):
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        inner = {name: nn.Linear(width, width) for name in ("query", "key", "value")}
        norm = nn.LayerNorm(width, config.layer_norm_eps)
        after = nn.ModuleDict({"dense": nn.Linear(width, width), "LayerNorm": norm})
        self.attention = nn.ModuleDict({"self": nn.ModuleDict(inner), "output": after})
        self.mlp = nn.ModuleDict(
            {
                "gated_layers": nn.Linear(width, 2 * config.intermediate_size, bias=False),
                "wo": nn.Linear(config.intermediate_size, width),
                "layernorm": nn.LayerNorm(width, config.layer_norm_eps),
            }
        )

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = []
        for name in ("query", "key", "value"):
            heads = self.attention["self"][name](x).view(batch, length, self.heads, -1)
            split.append(heads.transpose(1, 2))
        query, key, value = split
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads) + bias
        read = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        out = self.attention["output"]
        x = out["LayerNorm"](out["dense"](read) + x)
        gate, up = self.mlp["gated_layers"](x).chunk(2, dim=-1)
        return self.mlp["layernorm"](self.mlp["wo"](nn.functional.gelu(gate) * up) + x)


class JinaBertModel(BertPreTrainedModel):
    config_class = BertConfig

    def __init__(self, config: Any, add_pooling_layer: bool = True):
        super().__init__(config)
        width = config.hidden_size
        self.embeddings = nn.ModuleDict(
            {
                "word_embeddings": nn.Embedding(config.vocab_size, width),
                "token_type_embeddings": nn.Embedding(config.type_vocab_size, width),
                "LayerNorm": nn.LayerNorm(width, config.layer_norm_eps),
            }
        )
        layers = [Layer(config) for _ in range(config.num_hidden_layers)]
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(layers)})
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings["word_embeddings"]

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings["word_embeddings"] = value

    def forward(
        self, input_ids: Any, attention_mask: Any = None, token_type_ids: Any = None, **_: Any
    ) -> BaseModelOutputWithPooling:
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        x = self.embeddings["word_embeddings"](input_ids)
        x = x + self.embeddings["token_type_embeddings"](token_type_ids)
        x = self.embeddings["LayerNorm"](x)
        places = torch.arange(x.shape[1])
        distance = (places[:, None] - places[None]).abs()
        slopes = torch.tensor(slopes_of(self.config.num_attention_heads))
        bias = -slopes[None, :, None, None] * distance[None, None]
        if attention_mask is not None:
            bias = bias.masked_fill(attention_mask[:, None, None] == 0, FAR)
        for layer in self.encoder["layer"]:
            x = layer(x, bias)
        pooled = None if self.pooler is None else self.pooler(x)
        return BaseModelOutputWithPooling(last_hidden_state=x, pooler_output=pooled)


class JinaBertForMaskedLM(BertForMaskedLM):
    def __init__(self, config: Any):
        super().__init__(config)
        self.bert = JinaBertModel(config, add_pooling_layer=False)
        self.post_init()


class JinaBertForSequenceClassification(BertForSequenceClassification):
    def __init__(self, config: Any):
        super().__init__(config)
        self.bert = JinaBertModel(config)
        self.post_init()


CLASSES = {
    "base": "JinaBertModel",
    "masked_lm": "JinaBertForMaskedLM",
    "sequence": "JinaBertForSequenceClassification",
}
