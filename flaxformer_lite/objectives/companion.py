"""A second model that an objective runs beside the one it trains: a generator, a teacher."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
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
      offset: a pattern for the paths of those that the trained model has as an offset to the
        companion's: it computes with their sum, and its gradients reach the offset only; "" for
        none.
      source: the directory of its weights, which stay as they are; "" if it is trained too.
    """

    name: str
    cfg: ModelConfig | None = None
    shared: str = ""
    offset: str = ""
    source: str = ""

    def is_shared(self, path: str) -> bool:
        """Returns whether the companion shares the parameter at a path with the trained model."""
        return bool(self.shared and re.search(self.shared, path))

    def without(self, params: Params) -> Params:
        """Returns the parameters of a run without those of the companion."""
        return {key: value for key, value in params.items() if key != self.name}

    def trained(self, params: Params) -> Params:
        """Returns the parameters that the trained model computes with, from those of the run."""
        flat = flatten_dict(self.without(params), sep="/")
        of_companion = flatten_dict(params.get(self.name, {}), sep="/")
        for path in self.offsets(flat):
            flat[path] = jax.lax.stop_gradient(of_companion[path]) + flat[path]
        return unflatten_dict(flat, sep="/")

    def initial(self, params: Params) -> Params:
        """Splits initialized or published parameters into the companion's and zero offsets.

        Args:
          params: those of the run, in which the trained model's hold no offsets yet.
        """
        flat = flatten_dict(params, sep="/")
        for path in self.offsets(flatten_dict(self.without(params), sep="/")):
            flat[f"{self.name}/{path}"] = flat[path]
            flat[path] = jnp.zeros_like(flat[path])
        return unflatten_dict(flat, sep="/")

    def offsets(self, paths: Iterable[str]) -> list[str]:
        """Selects the paths at which the trained model holds an offset."""
        return [path for path in paths if self.offset and re.search(self.offset, path)]

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
