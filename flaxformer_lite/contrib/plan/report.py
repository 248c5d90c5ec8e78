"""Text reports of plans."""

from flaxformer_lite.contrib.plan.planner import Plan
from flaxformer_lite.contrib.plan.topology import GIB_BYTES

Rows = list[tuple[str, str]]


def rows(plan: Plan) -> Rows:
    """Returns the report's rows; an empty name continues the row above."""
    mesh = " x ".join(f"{axis} {size}" for axis, size in plan.mesh.items())
    batch = f"{plan.batch_size} sequences, {plan.tokens:,} tokens"
    if plan.accumulate > 1:
        batch += f", in {plan.accumulate} microbatches"
    made = f"{plan.made}, {plan.how}"
    if plan.compile_seconds is not None:
        made += f" in {plan.compile_seconds:.0f} s"
    ratio = plan.executed_flops / plan.model_flops
    flops = (
        f"{plan.model_flops:.3g} of the model, {plan.executed_flops:.3g} executed ({ratio:.2f}x),"
        " by the jaxpr"
    )
    return [
        ("machine", f"{plan.topology}, {plan.chips} chips: {mesh}"),
        ("model", f"{plan.family}, {plan.parameters / 1e9:,.3g}B parameters, remat {plan.remat}"),
        ("batch", batch),
        ("made", made),
        ("memory a chip", verdict(plan)),
        *_memory(plan),
        ("FLOPs a step", flops),
        *_traffic(plan),
        *_time(plan),
        *[("warning", text) for text in plan.warnings],
    ]


def verdict(plan: Plan) -> str:
    """Describes whether the step fits, and by how much."""
    available = f"{plan.available / GIB_BYTES:.2f} GiB"
    if plan.memory is None:
        return f"DOES NOT FIT in {available}: {plan.excess}"
    used = plan.memory.total
    if plan.fits:
        return (
            f"fits: {used / GIB_BYTES:.2f} of {available} at the peak,"
            f" {(plan.available - used) / GIB_BYTES:.2f} to spare"
        )
    tail = ""
    if plan.excess:
        tail = f" ({plan.excess})"
    return (
        f"DOES NOT FIT: {used / GIB_BYTES:.2f} of {available},"
        f" {(used - plan.available) / GIB_BYTES:.2f} too much{tail}"
    )


def _memory(plan: Plan) -> Rows:
    if plan.memory is None:
        return []
    names = ("parameters", "optimizer", "gradients", "activations")
    sizes = [f"{name} {getattr(plan.memory, name) / GIB_BYTES:.2f}" for name in names]
    rest = "estimated"
    if plan.compile_seconds is not None:
        rest = "the rest of the peak"
    line = f"{', '.join(sizes)} GiB (three by their shardings, activations and temporaries {rest})"
    return [("", line)]


def _traffic(plan: Plan) -> Rows:
    rows: Rows = []
    for exchange in plan.exchanges:
        if exchange.bytes < 1e5:
            continue
        axes = " x ".join(exchange.axes) or "no axis"
        line = f"{exchange.kind} over {axes}: {amount(exchange.bytes)} in {exchange.count:,}"
        rows.append(("" if rows else "traffic a chip", line))
    return rows


def _time(plan: Plan) -> Rows:
    if plan.seconds is None or plan.scheduled is None or plan.utilisation is None:
        return []
    low, high = plan.seconds
    worst, best = plan.utilisation
    largest = "; ".join(f"{what} {duration(cost)}" for what, cost in plan.largest)
    lower = upper = ""
    if plan.unknown_loops or plan.untimed:  # some of the step is not in its time
        lower = "at least "
        upper = "at most "
    time = (
        f"{lower}{duration(low)} to {duration(high)} (the compiler's estimate: traffic hidden, or"
        " not at all; not measured)"
    )
    utilisation = (
        f"{upper}{worst:.0%} to {best:.0%} of the peak; {plan.tokens / high / plan.chips:,.0f} to"
        f" {plan.tokens / low / plan.chips:,.0f} tokens/s a chip"
    )
    rows = [("step time", time), ("utilisation", utilisation)]
    if plan.scheduled < high:
        scheduled = (
            f"{lower}{duration(plan.scheduled)}, {upper}{best * low / plan.scheduled:.0%} of the"
            " peak, with the traffic hidden that the program has beside computation"
        )
        rows.append(("as scheduled", scheduled))
    rows.append(("largest costs", largest))
    if plan.unknown_loops:
        note = (
            f"{plan.unknown_loops} loops have an unknown number of iterations, and count once: the"
            " time is too low"
        )
        rows.append(("note", note))
    if plan.untimed:
        note = f"hand-written kernels are not timed: {', '.join(plan.untimed)}"
        rows.append(("note", note))
    return rows


def amount(size: float) -> str:
    if size >= 1e8:
        return f"{size / 1e9:,.2f} GB"
    return f"{size / 1e6:,.2f} MB"


def duration(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms"
