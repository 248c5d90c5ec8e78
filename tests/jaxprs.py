"""What a traced program is made of."""

from jax.extend.core import jaxprs_in_params


def equations(jaxpr):
    """Yields the equations of a traced program, with those of loops and calls."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)
