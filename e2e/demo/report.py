"""The demo's tables, for the terminal and for target/demo/."""

import json
from statistics import median

from . import plan

COLUMNS = (
    ("load", 28),
    ("", 19),
    ("reads/s", 9),
    ("mean ms", 8),
    ("p95 ms", 8),
    ("p99 ms", 8),
    ("p99.9 ms", 8),
    ("CPU us/read", 11),
    ("DRAM hits", 9),
    ("flash hits", 10),
)


def summarise(results):
    """Medians over the pairs, for each scenario and side."""
    rows = []
    for scenario in (plan.HALF, plan.FLAT_OUT):
        for side in (plan.DIRECT, plan.THROUGH):
            runs = [run for run in results if (run["scenario"], run["label"]) == (scenario, side)]
            of = lambda key: median(run["reads"][key] for run in runs)  # noqa: E731, B023
            row = {
                "scenario": scenario,
                "side": side,
                "reads_per_second": median(run["per_second"] for run in runs),
                **{key: of(key) for key in ("mean_us", "p50_us", "p95_us", "p99_us", "p999_us")},
                "cpu_us_per_read": median(
                    sum(s["us_per_operation"] for s in run["servers"]) for run in runs
                ),
                "void": any(run["client"]["void"] for run in runs),
                "unsent": sum(run["errors"]["unsent"] for run in runs),
            }
            if side == plan.THROUGH:
                row |= {
                    f"{tier}_ratio": median(
                        run["cache"][f"{tier}_hits"] / max(1, total(run["cache"])) for run in runs
                    )
                    for tier in ("dram", "flash")
                }
            rows.append(row)
    return rows


def total(cache):
    return cache["dram_hits"] + cache["flash_hits"] + cache["misses"]


def cells(row):
    share = lambda key: f"{100 * row[key]:.1f} %" if key in row else "-"  # noqa: E731
    return [
        row["scenario"],
        row["side"],
        f"{row['reads_per_second']:,.0f}" + (" (void)" if row["void"] else ""),
        *(f"{row[key] / 1000:.2f}" for key in ("mean_us", "p95_us", "p99_us", "p999_us")),
        f"{row['cpu_us_per_read']:.1f}",
        share("dram_ratio"),
        share("flash_ratio"),
    ]


def table(rows):
    """Plain text that is Markdown too."""
    lines = ["| " + " | ".join(f"{title:<{width}}" for title, width in COLUMNS) + " |"]
    lines.append("|" + "|".join("-" * (width + 2) for _, width in COLUMNS) + "|")
    for row in rows:
        fields = zip(cells(row), COLUMNS, strict=True)
        lines.append("| " + " | ".join(f"{cell:<{width}}" for cell, (_, width) in fields) + " |")
    return "\n".join(lines)


def ratios(rows):
    """Afterglow against Cassandra directly, a line for each scenario."""
    for scenario in (plan.HALF, plan.FLAT_OUT):
        direct, through = (
            next(r for r in rows if (r["scenario"], r["side"]) == (scenario, s)) for s in SIDES
        )
        yield (
            f"{scenario}: {through['reads_per_second'] / direct['reads_per_second']:.2f} times the reads/s, "
            f"p99 {direct['p99_us'] / max(through['p99_us'], 1):.2f} times lower, "
            f"p99.9 {direct['p999_us'] / max(through['p999_us'], 1):.2f} times lower, "
            f"CPU per read {direct['cpu_us_per_read'] / max(through['cpu_us_per_read'], 0.01):.2f} times lower"
        )


SIDES = (plan.DIRECT, plan.THROUGH)


def crash_lines(crash):
    percent = lambda key: f"{100 * crash[key]:.1f} %"  # noqa: E731
    warm = crash["hit_ratio_first_second"] / max(crash["hit_ratio_before"], 1e-9)
    yield (
        f"kill -9 under load: ready again after {crash['seconds_kill_to_ready']:.2f} s, "
        f"first hit after {crash['seconds_kill_to_first_hit']:.2f} s"
    )
    yield (
        f"hits before {percent('hit_ratio_before')}; in the first second after the restart "
        f"{percent('hit_ratio_first_second')} of {crash['reads_in_first_second']:,.0f} reads, "
        f"in the next {percent('hit_ratio_next_second')}: {100 * warm:.1f} % warm after one second"
    )
    yield f"reads lost on their way when it died: {crash['lost']:,}; wrong answers: {crash['wrong']}"


def write(folder, rows, crash, setting):
    """report.md and report.json."""
    lines = [
        "# Demo",
        "",
        *setting,
        "",
        table(rows),
        "",
        *(f"- {line}" for line in ratios(rows)),
        "",
    ]
    lines += [f"- {line}" for line in crash_lines(crash)]
    (folder / "report.md").write_text("\n".join(lines) + "\n")
    document = {"setting": setting, "rows": rows, "crash": crash}
    (folder / "report.json").write_text(json.dumps(document, indent=2) + "\n")
