import threading

import jax
import jax.numpy as jnp

from flaxformer_lite.analysis import recompiles


def test_counts_each_new_shape_once():
    double = jax.jit(lambda x: x * 2)
    small = jnp.ones(3)
    large = jnp.ones(4)
    before = recompiles.total()
    double(small)
    assert recompiles.total() == before + 1
    double(small)
    assert recompiles.total() == before + 1
    double(large)
    assert recompiles.total() == before + 2


def test_the_watch_counts_from_its_start_and_excuses_first_times():
    triple = jax.jit(lambda x: x * 3)
    arrays = [jnp.ones(n) for n in range(5, 10)]
    watch = recompiles.RecompileCounter()
    triple(arrays[0])
    assert watch.count == 0, "a run that ends before its second step has no late compilations"
    watch.start()
    triple(arrays[1])
    assert watch.count == 1
    with watch.allow_first("evaluation"):
        triple(arrays[2])
    assert watch.count == 1
    with watch.allow_first("evaluation"):
        triple(arrays[3])
    assert watch.count == 2


def test_what_another_thread_compiles_ahead_of_need_is_not_late():
    quadruple = jax.jit(lambda x: x * 4)
    array = jnp.ones(10)
    watch = recompiles.RecompileCounter()
    before = recompiles.total()
    watch.start()
    ahead = threading.Thread(target=quadruple.lower(array).compile)
    ahead.start()
    ahead.join()
    assert recompiles.total() == before + 1
    assert watch.count == 0
