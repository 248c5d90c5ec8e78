"""A model that turns texts into vectors, with all that its directory says about them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import numpy as np

from flaxformer_lite import registry
from flaxformer_lite.config import ConfigError, ModelConfig
from flaxformer_lite.inference.embed import Vectors, embed, similarity
from flaxformer_lite.model_details import load_sentence_layers, load_tokenizer
from flaxformer_lite.model_folder import on_disk
from flaxformer_lite.nn.adapters.merge import merge_adapter
from flaxformer_lite.open_model import load_pretrained
from flaxformer_lite.pretrained.sentences import SentenceLayers
from flaxformer_lite.text.published_tokenizer import PublishedTokenizer
from flaxformer_lite.types import Params


class Embedder(NamedTuple):
    """A sentence model, as `load_embedder` returns it.

    Attributes:
      model: an encoder, a decoder, or an encoder-decoder to use the encoder of.
      params: its parameters.
      tokenizer: its tokenizer.
      layers: the layers after the encoder, and the prompts that its authors put before texts.
    """

    model: nn.Module
    params: Params
    tokenizer: PublishedTokenizer
    layers: SentenceLayers

    @property
    def cfg(self) -> ModelConfig:
        return self.model.cfg

    def encode(self, texts: Sequence[str], *, task: str = "", prompt: str | None = None) -> Vectors:
        """Computes the vectors of texts, as `encode` of sentence-transformers does.

        The first call compiles a program for each of at most eight lengths; `keep_compiled` keeps
        them for later processes.

        Args:
          texts: the texts, in any order and of any length; what is longer than the model reads is
            cut, with a warning in the log.
          task: `query` or `document`, for models that treat the two differently; "" is neither.
          prompt: what to put before each text; None is the prompt of the task, or the default one.

        Returns:
          Dense vectors, float32 [texts, D]; of a sparse model a scipy.sparse.csr_array of float32
          [texts, vocabulary]; of a multi-vector model a list with the vectors of each text's
          tokens, float32 [tokens, D].

        Raises:
          ConfigError: `texts` is no list of texts, or the task is unknown.
        """
        return embed(self, texts, self.layers, task=task, prompt=prompt)

    def similarity(self, a: Vectors, b: Vectors) -> np.ndarray:
        """Compares vectors as the model's authors do: by cosine, dot product or MaxSim.

        Returns:
          float32 [vectors of a, vectors of b].
        """
        return np.asarray(similarity(self.layers)(a, b))


def load_embedder(
    path: str | Path,
    *,
    size: int = 0,
    family: str | None = None,
    allow_plugins: registry.Allowed = False,
    **options: Any,
) -> Embedder:
    """Loads a sentence model with its tokenizer, pooling, dense layers and prompts.

        >>> embedder = load_embedder("path/to/minilm")  # doctest: +SKIP
        >>> vectors = embedder.encode(["A cat sleeps.", "A kitten naps."])  # doctest: +SKIP
        >>> embedder.similarity(vectors, vectors)  # doctest: +SKIP

    Args:
      path: a directory that sentence-transformers wrote, any other encoder's published weights
        (whose vectors are the means of the last hidden states), the `--workdir` of a
        training run, or an address of one of them.
      size: values of a dense vector to keep, the first ones; 0 keeps what the directory says, or
        all.
      family, allow_plugins, **options: as in `load_pretrained`; an adapter is merged.

    Raises:
      ConfigError, WeightsError, CheckpointError: as `load_pretrained`; or the directory asks for a
        kind of pooling or layer that is not supported.
    """
    if not isinstance(size, int):
        raise ConfigError(f"size={size!r}: must be a whole number.")
    folder = on_disk(path)
    layers = load_sentence_layers(folder, allow_plugins=allow_plugins)
    if size:
        layers = layers.cut(size, "size")
    tokenizer = load_tokenizer(folder, family=family, allow_plugins=allow_plugins)
    options |= {"family": family, "allow_plugins": allow_plugins}
    model, params = load_pretrained(folder, **options)
    if "quantize" not in options:  # merging makes floats of matrices that are held in few bits
        model, params = merge_adapter(model, params)
    return Embedder(model, params, tokenizer, layers)
