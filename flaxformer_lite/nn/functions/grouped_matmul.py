"""Multiplies groups of rows by a different matrix each."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from flaxformer_lite.nn.functions.device_ops import ops_of
from flaxformer_lite.nn.functions.kernels import TPU_LANES
from flaxformer_lite.nn.functions.linear_call import linear_call
from flaxformer_lite.nn.functions.sharding import ActivationSharding

LARGEST_BLOCK = 128  # rows; of a group's last block all but one may be padding
# Rows, inputs and outputs of a tile of the TPU's kernel, as MaxText has them for Mixtral.
TILE = (512, 1024, 1024)
Factors = tuple[jax.Array, jax.Array]  # rows and matrices
Operands = tuple[jax.Array, jax.Array, jax.Array]  # and the sizes of the groups
Product = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def grouped_matmul(
    x_LI: jax.Array, kernel_XIO: jax.Array, sizes_X: jax.Array, sharding: ActivationSharding
) -> jax.Array:
    """Multiplies the rows of each group with the group's matrix, [L, O].

    Args:
      x_LI: rows, those of group 0 first, then those of group 1, and so on.
      kernel_XIO: a matrix for each group.
      sizes_X: int32, the number of rows of each group. Rows beyond their sum belong to none, and
        their results have no meaning.
      sharding: where the arrays live.
    """
    return PRODUCTS[ops_of(sharding).grouped_product](x_LI, kernel_XIO, sizes_X)


@jax.custom_jvp
def _in_blocks(x_LI: jax.Array, kernel_XIO: jax.Array, sizes_X: jax.Array) -> jax.Array:
    return _blocks_times_kernel(x_LI, kernel_XIO, sizes_X)


@jax.custom_jvp
def _by_megablox(x_LI: jax.Array, kernel_XIO: jax.Array, sizes_X: jax.Array) -> jax.Array:
    return jax.lax.ragged_dot(x_LI, kernel_XIO, sizes_X)


@_in_blocks.defjvp
def _in_blocks_jvp(primals: Operands, tangents: Operands) -> tuple[jax.Array, jax.Array]:
    return _derivatives(_in_blocks, _outer_products, primals, tangents)


@_by_megablox.defjvp
def _by_megablox_jvp(primals: Operands, tangents: Operands) -> tuple[jax.Array, jax.Array]:
    return _derivatives(_by_megablox, _megablox, primals, tangents)


def _derivatives(
    product: Product, outer_products: Product, primals: Operands, tangents: Operands
) -> tuple[jax.Array, jax.Array]:
    """Returns a product and its tangent, whose transpose computes `outer_products`."""
    d_x_LI, d_kernel_XIO, _ = tangents
    y_LO = product(*primals)
    push = functools.partial(_push, product)
    pull = functools.partial(_pull, product, outer_products)
    return y_LO, linear_call(push, pull, primals, (d_x_LI, d_kernel_XIO), y_LO)


def _push(product: Product, primals: Operands, tangents: Factors) -> jax.Array:
    x_LI, kernel_XIO, sizes_X = primals
    d_x_LI, d_kernel_XIO = tangents
    through_x = product(d_x_LI, kernel_XIO, sizes_X)
    return through_x + product(x_LI, d_kernel_XIO, sizes_X)


def _pull(
    product: Product, outer_products: Product, primals: Operands, d_y_LO: jax.Array
) -> Factors:
    x_LI, kernel_XIO, sizes_X = primals
    d_x_LI = product(d_y_LO, kernel_XIO.swapaxes(1, 2), sizes_X)
    return d_x_LI, outer_products(x_LI, d_y_LO, sizes_X)


def _blocks_times_kernel(x_LI: jax.Array, kernel_XIO: jax.Array, sizes_X: jax.Array) -> jax.Array:
    slots_L, owner_W, block = _blocks(len(x_LI), sizes_X)
    padded_WLI = _scatter(x_LI, slots_L, len(owner_W), block)
    y_WLO = jax.lax.map(lambda one: one[0] @ kernel_XIO[one[1]], (padded_WLI, owner_W))
    return y_WLO.reshape(-1, kernel_XIO.shape[-1])[slots_L]


def _outer_products(x_LI: jax.Array, y_LO: jax.Array, sizes_X: jax.Array) -> jax.Array:
    """Returns the sum over the rows of each group of the products x y, [X, I, O]."""
    slots_L, owner_W, block = _blocks(len(x_LI), sizes_X)
    x_WLI = _scatter(x_LI, slots_L, len(owner_W), block)
    y_WLO = _scatter(y_LO, slots_L, len(owner_W), block)

    def add(total_XIO: jax.Array, one: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        x_BI, y_BO, owner = one
        return total_XIO.at[owner].add(x_BI.T @ y_BO), None

    zeros = jnp.zeros_like(x_LI, shape=(len(sizes_X), x_LI.shape[1], y_LO.shape[1]))
    return jax.lax.scan(add, zeros, (x_WLI, y_WLO, owner_W))[0]


def _megablox(x_LI: jax.Array, y_LO: jax.Array, sizes_X: jax.Array) -> jax.Array:
    """Computes `_outer_products` by the megablox kernel; padded rows are of no group."""
    # Imported here, as only TPUs need it.
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

    extra = -len(x_LI) % TPU_LANES
    x_LI = jnp.pad(x_LI, ((0, extra), (0, 0)))
    y_LO = jnp.pad(y_LO, ((0, extra), (0, 0)))
    block = next(size for size in (TILE[0], 256, TPU_LANES) if len(x_LI) % size == 0)
    tile = (block, *TILE[1:])
    with jax.numpy_dtype_promotion("standard"):  # JAX's own code relies on it
        return tgmm(x_LI.T, y_LO, sizes_X, preferred_element_type=x_LI.dtype, tiling=tile)


def _blocks(rows: int, sizes_X: jax.Array) -> tuple[jax.Array, jax.Array, int]:
    """Divides the groups into blocks of equal size, each of one group, padded at its end.

    Returns:
      The slot of each row, the group of each block, and the size of a block. A row beyond all
      groups has a slot beyond all blocks.
    """
    groups = len(sizes_X)
    block = 8
    while block < LARGEST_BLOCK and block * groups < rows:
        block *= 2
    # Each group adds at most one block that is partly filled.
    count = rows // block + min(groups, rows)
    padded_X = -(-sizes_X // block) * block
    first_row_X = jnp.cumsum(sizes_X) - sizes_X
    first_slot_X = jnp.cumsum(padded_X) - padded_X
    row_L = jnp.arange(rows)
    group_L = jnp.searchsorted(jnp.cumsum(sizes_X), row_L, side="right")
    slot_L = (first_slot_X - first_row_X).at[group_L].get(mode="clip") + row_L
    slot_L = jnp.where(group_L < groups, slot_L, count * block)
    start_W = jnp.arange(count) * block
    owner_W = jnp.searchsorted(jnp.cumsum(padded_X), start_W, side="right")
    return slot_L, jnp.minimum(owner_W, groups - 1), block


def _scatter(x_LI: jax.Array, slots_L: jax.Array, count: int, block: int) -> jax.Array:
    """Places rows in their slots, zero elsewhere: [blocks, rows of a block, I]."""
    zeros = jnp.zeros((count * block, x_LI.shape[1]), x_LI.dtype)
    placed = zeros.at[slots_L].set(x_LI, mode="drop")
    return placed.reshape(count, block, -1)


PRODUCTS: dict[str, Product] = {
    "blocks": _in_blocks,
    "megablox": _by_megablox,
    "ragged_dot": jax.lax.ragged_dot,
}
