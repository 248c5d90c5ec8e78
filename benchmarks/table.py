"""The numbers as a table."""

from cases import CASES
from child import MATMUL


def of_case(result: dict) -> str:
    """Markdown of one case, a row a peer."""
    case, peers = CASES[result["case"]], result["peers"]
    unit = "step" if case.kind == "train" else "run"
    peak = max(2 * MATMUL**3 / peer["matmul_seconds"] for peer in peers.values())
    rows = [
        f"| {result['case']} | s a {unit} | tokens/s | ours is faster by | first {unit}, cold | peak memory | of the peak |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, peer in peers.items():
        share = f"{result['flops'] / peer['seconds'] / peak:.0%}" if result["flops"] else ""
        rows.append(
            f"| {name} | {peer['seconds']:.3f} | {case.tokens / peer['seconds']:,.0f} | {peer['times_ours']:.2f}x"
            f" | {peer['first_seconds']:.1f} s | {peer['peak_bytes'] / 2**20:,.0f} MiB | {share} |"
        )
    return "\n".join(rows) + "\n"


def page(results: dict) -> str:
    return "\n".join(of_case(result) for result in results["cases"])
