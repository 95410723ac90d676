"""The report of the ring's demo: one page without anything from elsewhere."""

from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM = 900, 260, 50, 40


def plot(points, events):
    """The hit ratio over time, with a line where something happened."""
    last = max((at for at, *_ in points), default=1.0)

    def x(at):
        return LEFT + (WIDTH - LEFT - 10) * at / last

    def y(ratio):
        return 10 + (HEIGHT - BOTTOM - 10) * (1 - ratio)

    line = " ".join(f"{x(at):.1f},{y(ratio):.1f}" for at, ratio, reads in points if reads)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="hit ratio over time">']
    for ratio in (0, 0.5, 1):
        parts.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 10}" y1="{y(ratio)}" y2="{y(ratio)}"/>'
            f'<text x="{LEFT - 6}" y="{y(ratio) + 4}" text-anchor="end">{ratio:.0%}</text>'
        )
    for number, (at, _) in enumerate(events, 1):
        parts.append(
            f'<line class="event" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="10" '
            f'y2="{HEIGHT - BOTTOM}"/><text x="{x(at):.1f}" y="{HEIGHT - BOTTOM + 14}" '
            f'text-anchor="middle">{number}</text>'
        )
    parts.append(f'<polyline points="{line}"/>')
    parts.append(
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle">'
        f"seconds, {last:.0f} in all</text></svg>"
    )
    return "".join(parts)


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2em auto; padding: 0 1em }
svg { width: 100% } text { font-size: 12px; fill: currentColor }
polyline { fill: none; stroke: #2a78d6; stroke-width: 2 }
.grid { stroke: #8884 } .event { stroke: #c43; stroke-dasharray: 3 3 }
@media (prefers-color-scheme: dark) { body { background: #16181b; color: #e6e6e6 } }
"""


def write_report(path, hits, lines):
    """Writes the page; its path."""
    events = "".join(f"<li>{at:.1f} s: {escape(what)}</li>" for at, what in hits.events)
    found = "".join(f"<li>{escape(line)}</li>" for line in lines)
    path.write_text(
        "<!doctype html><html lang=en><meta charset=utf-8><title>The ring under load</title>"
        f"<style>{STYLE}</style><h1>The ring under load</h1><h2>Hit ratio of all instances</h2>"
        f"{plot(hits.points, hits.events)}<h2>What happened</h2><ol>{events}</ol>"
        f"<h2>What clients saw</h2><ul>{found}</ul></html>"
    )
    return path
