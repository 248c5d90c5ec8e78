"""A second model that an objective runs beside the one it trains: a generator, a teacher."""

import re
from dataclasses import dataclass

from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.types import Params


@dataclass(frozen=True)
class Companion:
    """The second model of an objective.

    The tree of all parameters of a run is that of the trained model, with the parameters of the
    companion that it does not share with the trained model under the key `name`.

    Attributes:
      name: the key of its parameters.
      cfg: its config; None until it is read from `source`.
      shared: a pattern (re.search) for the paths of the parameters that it shares with the trained
        model; "" for none.
      source: the directory of its weights, which stay as they are; "" if it is trained too.
    """

    name: str
    cfg: ModelConfig | None = None
    shared: str = ""
    source: str = ""

    def is_shared(self, path: str) -> bool:
        """Returns whether the companion shares the parameter at a path with the trained model."""
        return bool(self.shared and re.search(self.shared, path))

    def without(self, params: Params) -> Params:
        """Returns the parameters of the trained model, from those of the run."""
        return {key: value for key, value in params.items() if key != self.name}

    def of(self, params: Params) -> Params:
        """Returns the parameters of the companion, with the shared ones, from those of the run."""
        flat = flatten_dict(self.without(params), sep="/")
        shared = {path: leaf for path, leaf in flat.items() if self.is_shared(path)}
        return unflatten_dict(shared | flatten_dict(params[self.name], sep="/"), sep="/")

    def unshared(self, params: Params) -> Params:
        """Returns the parameters of the companion without the shared ones.

        Args:
          params: all parameters of the companion.
        """
        flat = flatten_dict(params, sep="/")
        kept = {path: leaf for path, leaf in flat.items() if not self.is_shared(path)}
        return unflatten_dict(kept, sep="/")
