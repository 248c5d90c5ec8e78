"""An auxiliary model, which an objective runs beside the one it trains: a generator, a teacher."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from flaxformer_lite.config import ModelConfig
from flaxformer_lite.types import Params


@dataclass(frozen=True)
class AuxiliaryModel:
    """The second model of an objective.

    The tree of all parameters of a run is the trained model's, with the parameters of the
    auxiliary model that it does not share with the trained model under the key `name`.

    Attributes:
      name: the key of its parameters.
      cfg: its config; None until it is read from `source`.
      shared: a pattern (re.search) for the paths of the parameters that it shares with the trained
        model; "" for none.
      offset: a pattern for the paths of those that the trained model has as an offset to the
        auxiliary model's: it computes with their sum, and its gradients reach the offset only; ""
        for none.
      source: the directory of its weights, which are neither trained nor saved; "" if it is trained
        too.
    """

    name: str
    cfg: ModelConfig | None = None
    shared: str = ""
    offset: str = ""
    source: str = ""

    def is_shared(self, path: str) -> bool:
        """Returns whether the two models share the parameter at a path."""
        return bool(self.shared and re.search(self.shared, path))

    def holds(self, path: str) -> bool:
        """Returns whether the parameter of a run at a path is this model's alone."""
        return path.startswith(f"{self.name}/")

    def without(self, params: Params) -> Params:
        """Returns the parameters of a run without the auxiliary model's."""
        return {key: value for key, value in params.items() if key != self.name}

    def trained(self, params: Params) -> Params:
        """Returns the parameters that the trained model computes with, from the run's."""
        flat = flatten_dict(self.without(params), sep="/")
        own = flatten_dict(params.get(self.name, {}), sep="/")
        for path in self.offsets(flat):
            flat[path] = jax.lax.stop_gradient(own[path]) + flat[path]
        return unflatten_dict(flat, sep="/")

    def initial(self, params: Params) -> Params:
        """Splits initialized or published parameters into the auxiliary model's and zero offsets.

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
        """Returns its parameters, with the shared ones, from the run's."""
        flat = flatten_dict(self.without(params), sep="/")
        shared = {path: leaf for path, leaf in flat.items() if self.is_shared(path)}
        return unflatten_dict(shared | flatten_dict(params[self.name], sep="/"), sep="/")

    def join(self, params: Params, own: Params) -> Params:
        """Joins the initialized parameters of both models into a run's.

        Args:
          params: the trained model's.
          own: all parameters of the auxiliary model; zeros take the place of those that are read
            from a directory later.
        """
        flat = flatten_dict(own, sep="/")
        kept = {path: leaf for path, leaf in flat.items() if not self.is_shared(path)}
        if self.source:
            kept = jax.tree.map(jnp.zeros_like, kept)
        joined = {**params, self.name: unflatten_dict(kept, sep="/")}
        return self.initial(joined) if self.offset else joined
