"""The numbers as a page and as a picture."""

from pathlib import Path

from cases import CASES
from child import MATMUL


def of_case(result: dict) -> str:
    """Markdown of one case, a row a peer."""
    case, peers = CASES[result["case"]], result["peers"]
    unit = "step" if case.kind == "train" else "run"
    peak = max(2 * MATMUL**3 / peer["matmul_seconds"] for peer in peers.values())
    rows = [
        f"| {result['case']} | s a {unit} | CPU s | tokens/s | time / ours | first {unit}, cold | peak memory | of the peak |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, peer in peers.items():
        share = f"{result['flops'] / peer['seconds'] / peak:.0%}" if result["flops"] else ""
        rows.append(
            f"| {name} | {peer['seconds']:.3f} | {peer['cpu_seconds']:.2f} | {case.tokens / peer['seconds']:,.0f}"
            f" | {peer['times_ours']:.2f}x | {peer['first_seconds']:.1f} s | {peer['peak_bytes'] / 2**20:,.0f} MiB | {share} |"
        )
    return "\n".join(rows) + "\n"


def page(results: dict) -> str:
    """All cases, with what is needed to run them again."""
    peers = {name: peer for result in results["cases"] for name, peer in result["peers"].items()}
    versions = "; ".join(f"{name}: {_pairs(peer['versions'])}" for name, peer in peers.items())
    head = f"""# Beside what a user would pick instead

{results['date']}, {_pairs(results['machine'])}; {results['rounds']} rounds, load {results['load'][0]:.1f} before and
{results['load'][1]:.1f} after. {versions}.

    {results['command']}

One process a peer, all alive at once, one round each in turn; float32, no dropout, the same batch, AdamW, gradients clipped.
Seconds are medians; `time / ours` is the median of the ratios of paired rounds. The first one counts from the start of the
process, with empty caches. Peak memory is the process's, compilation included. The peak is that of a product of two
{MATMUL} x {MATMUL} matrices, the fastest of any peer between the same rounds; FLOPs are those that our model asks for.

![times](cpu.png)
"""
    return "\n".join([head, *map(of_case, results["cases"])])


def plot(results: dict, path: Path) -> None:
    """A panel a case, a bar a peer."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = results["cases"]
    figure, panels = pyplot.subplots(1, len(cases), figsize=(2.6 * len(cases), 3.2), squeeze=False, layout="constrained")
    for panel, result in zip(panels[0], cases, strict=True):
        peers = result["peers"]
        colors = ["tab:blue", *["silver"] * (len(peers) - 1)]
        bars = panel.bar(list(peers), [peer["seconds"] for peer in peers.values()], color=colors)
        panel.bar_label(bars, [f"{p['times_ours']:.2f}x" for p in peers.values()], fontsize=8)
        panel.set_title(result["case"], fontsize=9)
        panel.tick_params(axis="x", labelrotation=90, labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("seconds")
    figure.savefig(path, dpi=110)


def _pairs(facts: dict[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in facts.items())
