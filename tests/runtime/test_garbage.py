"""Garbage collections leave out what is older than a block of code, and find what it makes."""

import gc
import weakref

import pytest

from flaxformer_lite.runtime.garbage import skip_old_objects


class Node:
    pass


def cycle():
    node = Node()
    node.self = node
    return weakref.ref(node)


@pytest.fixture
def unfrozen():
    """The tests themselves freeze what they import."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_collections_look_at_new_objects_alone_and_at_all_again_afterwards(unfrozen):
    old = [Node()]
    looked_at = lambda: any(each is old for each in gc.get_objects())  # noqa: E731
    assert looked_at()
    with pytest.raises(KeyError), skip_old_objects():
        assert not looked_at()
        with skip_old_objects():  # an inner block ends nothing
            pass
        new = cycle()
        gc.collect()
        assert new() is None and not looked_at()
        raise KeyError
    assert looked_at() and not gc.get_freeze_count()
