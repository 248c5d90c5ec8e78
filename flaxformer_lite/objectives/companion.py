"""A second model that an objective runs beside the one it trains: a generator, a teacher."""

import re
from dataclasses import dataclass

from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.types import Params


@dataclass(frozen=True)
class Companion:
    """The second model of an objective; its parameters are `params[name]`, in the tree of the model
    that is trained.

    Attributes:
      name: the key of its own parameters.
      cfg: its config; None for that of `source`.
      shared: a pattern (re.search) of the paths of parameters that it takes from the trained model;
        empty for none.
      source: a directory of weights, which it keeps as they are; empty if it is trained too.
    """

    name: str
    cfg: ModelConfig | None = None
    shared: str = ""
    source: str = ""

    def is_shared(self, path: str) -> bool:
        return bool(self.shared and re.search(self.shared, path))

    def without(self, params: Params) -> Params:
        """Returns the parameters of the trained model alone."""
        return {key: value for key, value in params.items() if key != self.name}

    def of(self, params: Params) -> Params:
        """Returns all parameters of the companion, those that it shares among them."""
        flat = flatten_dict(self.without(params), sep="/")
        shared = {path: leaf for path, leaf in flat.items() if self.is_shared(path)}
        return unflatten_dict(shared | flatten_dict(params[self.name], sep="/"), sep="/")

    def own(self, params: Params) -> Params:
        """Returns those of all parameters of the companion that it does not share."""
        flat = flatten_dict(params, sep="/")
        return unflatten_dict(
            {path: leaf for path, leaf in flat.items() if not self.is_shared(path)}, sep="/"
        )
