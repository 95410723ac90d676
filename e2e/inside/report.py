"""Results as tables: each row of a scenario versus the stock node's, and versus its target."""

HEAD = (
    "node",
    "op/s",
    "of stock",
    "mean ms",
    "p99",
    "p99.9",
    "CPU us/op",
    "of stock",
    "data KB/op",
    "flash KB/op",
    "hits",
)
# What published systems of this kind gained, and so the targets: least throughput and most CPU, of
# stock's.
TARGETS = {
    ("network", "flash chunks", "reads"): (3.0, None),
    ("network", "flash rows", "reads"): (3.0, None),
    ("equal", "flash chunks", "reads"): (1.85, 0.75),
    ("equal", "flash rows", "reads"): (1.84, None),
    ("equal", "flash rows", "mixed"): (1.65, None),
}


def hits(inside):
    """Share of look-ups that our cache answered; None where there is none, or none was asked."""
    asked = inside.get("Hits", 0) + inside.get("Misses", 0)
    return inside["Hits"] / asked if asked else None


def cpu(result):
    return sum(server["us_per_operation"] for server in result["servers"])


def baseline(results):
    """The stock node's result of a scenario: what the others are compared with."""
    return next((result for result in results if result["label"].startswith("stock")), None)


def row(result, stock):
    operations = max(result["operations"], 1)
    latency, inside = result["reads"], result["inside"]
    share = hits(inside)

    def ratio(value, of):
        return f"{value / of:.2f}" if stock and of else "-"

    return [
        result["label"] + (" (client too slow)" if result["client"]["void"] else ""),
        f"{result['per_second']:,.0f}",
        ratio(result["per_second"], stock and stock["per_second"]),
        *(f"{latency[name] / 1000:.2f}" for name in ("mean_us", "p99_us", "p999_us")),
        f"{cpu(result):.0f}",
        ratio(cpu(result), stock and cpu(stock)),
        *(f"{inside[name] / operations / 1000:.1f}" for name in ("data_read", "flash_read")),
        "-" if share is None else f"{share:.1%}",
    ]


def targets(results):
    """A line for each target of a scenario: reached or missed, with both figures."""
    stock = baseline(results)
    lines = []
    for result in results:
        part, mix = (
            result["case"]["part"],
            "reads" if result["load"]["read_ratio"] == 1 else "mixed",
        )
        least, most = TARGETS.get((part, result["label"], mix), (None, None))
        if stock is None or least is None:
            continue
        speed, cost = result["per_second"] / stock["per_second"], cpu(result) / cpu(stock)
        reached = speed >= least and (most is None or cost <= most)
        wanted = f"{least:g} times stock's throughput" + (
            f" at {most:g} of its CPU" if most else ""
        )
        word = "reached" if reached else "MISSED"
        lines.append(
            f"{word}: {result['label']}: target {wanted}; measured {speed:.2f} at {cost:.2f}"
        )
    return lines


def wrongs(results):
    """What must not be: reads that were wrong, missing, refused or unanswered."""
    lines = []
    for result in results:
        errors = {
            name: count for name, count in result["errors"].items() if count and name != "unsent"
        }
        if errors:
            lines.append(f"FAULT: {result['scenario']}, {result['label']}: {errors}")
        if result["errors"].get("unsent"):
            lines.append(
                f"not kept up with: {result['scenario']}, {result['label']}: {result['errors']['unsent']} unsent"
            )
    return lines


def table(rows):
    """Markdown that can also be read as it is."""
    rows = [HEAD, *rows]
    widths = [max(len(cells[n]) for cells in rows) for n in range(len(HEAD))]

    def line(cells):
        padded = [
            cells[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)),
        ]
        return "| " + " | ".join(padded) + " |"

    rule = (
        "|"
        + "|".join("-" * (width + 1) + (":" if n else "-") for n, width in enumerate(widths))
        + "|"
    )
    return "\n".join([line(rows[0]), rule, *map(line, rows[1:])])


def report(results):
    """Everything, scenario by scenario in the order of the runs."""
    scenarios = {}
    for result in results:
        scenarios.setdefault(result["scenario"], []).append(result)
    parts = []
    for scenario, members in scenarios.items():
        stock = baseline(members)
        parts.append(
            "\n".join([f"### {scenario}", "", table([row(member, stock) for member in members])])
        )
        parts += ["\n".join(lines) for lines in (targets(members), wrongs(members)) if lines]
    return "\n\n".join(parts) + "\n"
