"""Bars in SVG, legible on light and dark pages."""

from dataclasses import dataclass
from html import escape

WIDTH, LABELS, VALUES = 760, 190, 70
BAR, GAP, HEAD = 16, 6, 34
OURS, THEIRS, MARK, TEXT = "#0a7d5a", "#8a94a3", "#d1495b", "#808890"


@dataclass(frozen=True)
class Bar:
    """An engine."""

    name: str
    seconds: float
    megabytes: float


@dataclass(frozen=True)
class Panel:
    """A workload; the limit is in seconds."""

    title: str
    bars: tuple[Bar, ...]
    limit: float | None


def times(panels: list[Panel]) -> str:
    """Seconds, with the limit as a line."""
    parts = [
        (panel.title, [(bar.name, bar.seconds) for bar in panel.bars], panel.limit)
        for panel in panels
    ]
    return drawing("Seconds from start to last row; the line is the limit", parts)


def memory(panels: list[Panel]) -> str:
    """Peak memory."""
    parts = []
    for panel in panels:
        bars = sorted(panel.bars, key=lambda bar: bar.megabytes)
        parts.append((panel.title, [(bar.name, bar.megabytes) for bar in bars], None))
    return drawing("Peak memory (RSS of all processes), MB", parts)


def drawing(title: str, parts: list[tuple[str, list[tuple[str, float]], float | None]]) -> str:
    """All panels below each other."""
    body, top = [text(0, 16, title, "bold")], 30
    for name, bars, limit in parts:
        body.append(text(0, top + 18, name, "600"))
        body += panel(top + HEAD - 6, bars, limit)
        top += HEAD + len(bars) * (BAR + GAP)
    size = f'width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
    style = 'font-family="system-ui, sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>'
    return "\n".join([head, *body, "</svg>", ""])


def panel(top: int, bars: list[tuple[str, float]], limit: float | None) -> list[str]:
    """One workload's bars."""
    largest = max([value for _, value in bars] + [limit or 0])
    room = WIDTH - LABELS - VALUES
    body = []
    for at, (name, value) in enumerate(bars):
        y, length = top + at * (BAR + GAP), max(1.0, value / largest * room)
        color = OURS if name.startswith("Forebay") else THEIRS
        body.append(text(LABELS - 8, y + 12, name, anchor="end"))
        body.append(
            f'<rect x="{LABELS}" y="{y}" width="{length:.1f}" height="{BAR}" fill="{color}"/>'
        )
        body.append(text(LABELS + length + 6, y + 12, shown(value)))
    if limit is not None:
        x, end = LABELS + limit / largest * room, top + len(bars) * (BAR + GAP)
        body.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 3}" y2="{end - 3}" stroke="{MARK}" '
            'stroke-width="2"/>'
        )
    return body


def shown(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def text(x: float, y: float, content: str, weight: str = "400", anchor: str = "start") -> str:
    """A label."""
    place = f'x="{x:.1f}" y="{y}" font-weight="{weight}" text-anchor="{anchor}"'
    return f'<text {place} fill="{TEXT}">{escape(content)}</text>'
