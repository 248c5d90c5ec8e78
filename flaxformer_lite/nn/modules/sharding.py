"""The sharding of a module's activations, from its execution record."""

from flaxformer_lite.config import Execution
from flaxformer_lite.nn.functions.sharding import UNSHARDED, ActivationSharding


def sharding_of(execution: Execution) -> ActivationSharding:
    """Returns the sharding that a trainer has put into the record.

    By default everything is whole on one device.
    """
    return execution.sharding or UNSHARDED
