"""What was measured, as JSON, as Markdown tables and as plots.

    python report.py benches/results/DATE-peers-CLASS.json

writes the tables and plots anew.
"""

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import plot
from workloads import title

MB = 1e6
# What takes the place of Forebay's functions in a limit.
CPU_PARTS = {
    "cpu_torchvision_s": "torchvision on tensors",
    "cpu_pillow_s": "torchvision on Pillow's images",
    "cpu_pillow_floats_s": "the same to normalized floats",
}


@dataclass(frozen=True)
class Row:
    """An engine on a workload: medians over the rounds."""

    engine: str
    seconds: float
    low: float
    high: float
    rss: float
    pss: float
    cpu: float


def write(result: dict, path: Path) -> None:
    """Three files beside each other, whose names begin with `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    json_path = path.with_name(f"{path.name}.json")
    json_path.write_text(json.dumps(result, indent=1) + "\n")
    path.with_name(f"{path.name}.md").write_text(markdown(result, path.name))
    for kind, drawing in (("time", plot.times), ("memory", plot.memory)):
        path.with_name(f"{path.name}-{kind}.svg").write_text(drawing(series(result)))


def rows(workload: dict) -> list[Row]:
    """Engines that finished, the fastest first."""
    found = []
    for engine, entry in workload["engines"].items():
        runs = entry["runs"]
        if runs and "error" not in entry:
            times = [run["seconds"] for run in runs]
            middle = {
                key: statistics.median(run[key] for run in runs)
                for key in ("seconds", "rss_peak", "pss_peak", "cpu_seconds")
            }
            found.append(
                Row(
                    engine,
                    middle["seconds"],
                    min(times),
                    max(times),
                    middle["rss_peak"],
                    middle["pss_peak"],
                    middle["cpu_seconds"],
                )
            )
    return sorted(found, key=lambda row: row.seconds)


def ideal(workload: dict) -> float | None:
    """The limit, the median of the rounds."""
    found = [limit["ideal_s"] for limit in workload["limit"]]
    return statistics.median(found) if found else None


def series(result: dict) -> list[plot.Panel]:
    """What the plots show: one panel per workload."""
    panels = []
    for workload in result["workloads"].values():
        bars = [plot.Bar(title(row.engine), row.seconds, row.rss / MB) for row in rows(workload)]
        if bars:
            panels.append(plot.Panel(workload["title"], tuple(bars), ideal(workload)))
    return panels


def markdown(result: dict, name: str) -> str:
    """A page with a table per workload."""
    machine = result["machine"]
    versions = ", ".join(f"{key} {value}" for key, value in machine["versions"].items())
    parts = [
        f"# Forebay and its peers, {result['date']}\n",
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"{machine['system']}; load {machine['load_before']:.1f} before the start. "
        f"Scale {result['scale']:g}. Seconds from the start of the "
        "process to its last row written: median, and least to most. Memory is the peak of all "
        "of the engine's processes: RSS counts a page once per process, PSS once.\n",
        f"Versions: {versions}.\n",
        f"![times]({name}-time.svg)\n\n![memory]({name}-memory.svg)\n",
    ]
    parts += [section(workload) for workload in result["workloads"].values()]
    return "\n".join(parts)


def section(workload: dict) -> str:
    """One workload."""
    limit, found = ideal(workload), rows(workload)
    ours = next((row.seconds for row in found if row.engine == "forebay"), None)
    rounds = max(len(entry["runs"]) for entry in workload["engines"].values())
    counted = "one round" if rounds == 1 else f"{rounds} rounds"
    lines = [f"## {workload['title']}, {workload['rows']:,} rows, {counted}\n"]
    if limit is not None:
        middle = {
            key: statistics.median(entry[key] for entry in workload["limit"])
            for key in workload["limit"][0]
        }
        told = f"model alone {middle['model_s']:.2f} s, CPU part alone {middle['cpu_s']:.2f} s"
        lines.append(f"Limit: {limit:.2f} s ({told}).\n")
        lines += cpu_part(middle)
    lines += [
        "| engine | s | spread | × Forebay | limit / time | CPU s | RSS, MB | PSS, MB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in found:
        times = f"{row.seconds:.2f} | {row.low:.2f}–{row.high:.2f}"
        ratio = f"{row.seconds / ours:.2f}" if ours else "–"
        share = f"{limit / row.seconds:.2f}" if limit else "–"
        memory = f"{row.rss / MB:.0f} | {row.pss / MB:.0f}"
        lines.append(
            f"| {title(row.engine)} | {times} | {ratio} | {share} | {row.cpu:.1f} | {memory} |"
        )
    for engine, entry in workload["engines"].items():
        if "error" in entry:
            lines.append(f"\n{title(engine)} failed: `{entry['error']}`")
    return "\n".join(lines) + "\n"


def cpu_part(limit: dict[str, float]) -> list[str]:
    """What the CPU part takes by other means, where that was measured."""
    ours = limit.get("cpu_forebay_s")
    if ours is None:
        return []
    told = [
        f"{name} {limit[key]:.2f} s ({limit[key] / ours:.2f})"
        for key, name in CPU_PARTS.items()
        if key in limit
    ]
    return [f"CPU part alone, over Forebay's {ours:.2f} s: {', '.join(told)}.\n"]


def main() -> int:
    """Runs the command line; returns the exit code."""
    path = Path(sys.argv[1])
    write(json.loads(path.read_text()), path.with_suffix(""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
