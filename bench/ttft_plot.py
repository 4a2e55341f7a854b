"""Draws times to the first token over lengths of prompts, as an SVG: a panel for each shape, both axes logarithmic."""

import math

#: Of each tier, so that they differ also without colours: a line's colour, its dashes, its marker.
STYLES = {"computed": ("#b03a2e", "", "square"), "L1": ("#1a6e2e", "", "circle"), "L2": ("#1f5fa8", "", "circle"),
          "L3, same host": ("#7d3c98", "6 3", "circle"), "L3, TCP": ("#b9770e", "6 3", "square"), "L3, disk": ("#444", "2 3", "circle"),
          "L3, slow": ("#0e7c7b", "2 3", "square"), "chosen, same host": ("#c2185b", "1 4", "square"), "chosen, slow": ("#111", "9 4", "square")}
PANEL_WIDTH, PANEL_HEIGHT, LEFT, TOP, GAP = 400, 300, 64, 44, 70
LEGEND_HEIGHT = 100


class Scale:
    """From values to places, by their logarithms."""

    def __init__(self, least, most, begin, end):
        self.least, self.factor, self.begin = math.log(least), (end - begin) / (math.log(most) - math.log(least)), begin

    def __call__(self, value):
        return round(self.begin + (math.log(value) - self.least) * self.factor, 1)


def show_length(tokens):
    return f"{tokens // 1024} k" if tokens >= 1024 else str(tokens)


def show_time(seconds):
    return f"{seconds:g} s" if seconds >= 1 else f"{1e3 * seconds:g} ms"


def marker(kind, x, y, colour):
    if kind == "square":
        return f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" fill="{colour}"/>'
    return f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>'


def draw_panel(name, points, left, across, up):
    right, bottom = left + PANEL_WIDTH, TOP + PANEL_HEIGHT
    parts = [f'<text class="title" x="{left}" y="{TOP - 14}">{name}</text>',
             f'<rect class="panel" x="{left}" y="{TOP}" width="{PANEL_WIDTH}" height="{PANEL_HEIGHT}"/>']
    lengths = [length for length, _ in points["computed"]]
    for length in lengths[::2]:
        x = across(length)
        parts += [f'<line class="grid" x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}"/>',
                  f'<text class="small mid" x="{x}" y="{bottom + 18}">{show_length(length)}</text>']
    for power in range(-4, 4):
        seconds = 10.0**power
        if TOP <= (y := up(seconds)) <= bottom:
            parts += [f'<line class="grid" x1="{left}" y1="{y}" x2="{right}" y2="{y}"/>',
                      f'<text class="small end" x="{left - 6}" y="{y + 4}">{show_time(seconds)}</text>']
    for tier, line in points.items():
        colour, dashes, kind = STYLES[tier]
        places = [(across(length), up(seconds)) for length, seconds in line]
        parts.append(f'<polyline points="{" ".join(f"{x},{y}" for x, y in places)}" fill="none" stroke="{colour}" stroke-width="2"'
                     + (f' stroke-dasharray="{dashes}"' if dashes else "") + "/>")
        parts += [marker(kind, x, y, colour) for x, y in places]
    parts.append(f'<text class="small mid" x="{left + PANEL_WIDTH / 2}" y="{bottom + 36}">tokens of the prompt</text>')
    return parts


def draw_legend(top):
    parts = []
    for number, (tier, (colour, dashes, kind)) in enumerate(STYLES.items()):
        x, y = LEFT + number % 3 * 250, top + number // 3 * 24
        parts += [f'<line x1="{x}" y1="{y}" x2="{x + 34}" y2="{y}" stroke="{colour}" stroke-width="2"' + (f' stroke-dasharray="{dashes}"' if dashes else "") + "/>",
                  marker(kind, x + 17, y, colour), f'<text x="{x + 42}" y="{y + 5}">{tier}</text>']
    return parts


def draw(shapes):
    """@param shapes {name: {tier: [(tokens, seconds)]}}. @returns the text of the file"""
    times = [seconds for points in shapes.values() for line in points.values() for _, seconds in line]
    lengths = [length for points in shapes.values() for line in points.values() for length, _ in line]
    width = LEFT + len(shapes) * PANEL_WIDTH + (len(shapes) - 1) * GAP + 24
    height = TOP + PANEL_HEIGHT + 44 + LEGEND_HEIGHT
    up = Scale(min(times) / 1.3, max(times) * 1.3, TOP + PANEL_HEIGHT, TOP)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="Helvetica, Arial, sans-serif" font-size="14" role="img" '
             'aria-label="Time to the first token over the length of the prompt, computed and from each tier.">',
             "<style>text { fill: #222; } .panel { fill: #f6f7f9; stroke: #889; } .grid { stroke: #d5d8de; } .small { font-size: 12px; fill: #333; } "
             ".title { font-weight: bold; } .mid { text-anchor: middle; } .end { text-anchor: end; }</style>",
             f'<rect width="{width}" height="{height}" fill="#fff"/>']
    for number, (name, points) in enumerate(shapes.items()):
        left = LEFT + number * (PANEL_WIDTH + GAP)
        across = Scale(min(lengths) / 1.15, max(lengths) * 1.15, left, left + PANEL_WIDTH)
        parts += draw_panel(name, points, left, across, up)
    parts += draw_legend(TOP + PANEL_HEIGHT + 62)
    return "\n".join([*parts, "</svg>", ""])
