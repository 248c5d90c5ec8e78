import jax
import pytest


@pytest.fixture
def interpreted():
    """Runs one operation at a time and loops in Python, where compiling every case would take minutes."""
    with jax.disable_jit():
        yield
