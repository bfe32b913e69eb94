"""Draw docs/pictures/architecture.svg, the picture of docs/explanation/architecture.md: roles, and what they exchange.

`python docs/pictures/architecture.py` writes the file; `tests/packaging/test_documents.py` compares it with the script.
"""

from pathlib import Path
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 940, 600
INK, MUTED = "#1f2937", "#4b5563"
PINK, BLUE, GREEN, GREY = "#fde8ef", "#e3edfb", "#e4f4e6", "#f1f2f4"


def box(x: int, y: int, width: int, height: int, fill: str, title: str, *lines: str) -> str:
    """Rectangle with a title and lines below it."""
    middle = x + width // 2
    parts = [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="{fill}" stroke="{INK}"/>']
    parts.append(text(middle, y + 24, title, bold=True))
    parts += [text(middle, y + 44 + 18 * number, line, size=13, ink=MUTED) for number, line in enumerate(lines)]
    return "\n".join(parts)


def text(x: int, y: int, words: str, size: int = 15, bold: bool = False, ink: str = INK, anchor: str = "middle") -> str:
    """One line of text."""
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}"{weight} fill="{ink}" text-anchor="{anchor}">{escape(words)}</text>'
    )


def arrow(x1: int, y1: int, x2: int, y2: int, both: bool = False, dashed: bool = False) -> str:
    """Line with a head at its end, or at both ends."""
    start = ' marker-start="url(#head)"' if both else ""
    dash = ' stroke-dasharray="6 4"' if dashed else ""
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{INK}"{dash}{start} marker-end="url(#head)"/>'


def label(x: int, y: int, *lines: str, anchor: str = "middle") -> str:
    """Lines of text beside an arrow."""
    return "\n".join(text(x, y + 17 * number, line, size=13, anchor=anchor) for number, line in enumerate(lines))


def picture() -> str:
    """The complete SVG document."""
    head = (
        '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        f'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="{INK}"/></marker>'
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'aria-label="Roles of a job and what they exchange" font-family="sans-serif">',
        f"<defs>{head}</defs>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        box(
            350, 20, 240, 100, PINK, "coordinator", "members, data leases,", "evaluations, placement;", "no parameters"
        ),
        box(20, 30, 190, 80, GREY, "registry", "leader lease,", "state of the job"),
        box(730, 30, 190, 80, GREY, "run folder", "events, summary,", "snapshot sets, model"),
        box(
            30,
            300,
            300,
            118,
            BLUE,
            "shard 0, 1, …",
            "segments of the parameters w,",
            "state of the update rule, versions,",
            "ledger of each segment",
        ),
        box(30, 510, 300, 70, BLUE, "follower of each shard", "(replication: 2) the same content"),
        box(
            610,
            300,
            300,
            118,
            GREEN,
            "worker 0, 1, …",
            "model, data, mini-batches;",
            "threads: fetch, compute, push;",
            "ranks with grid",
        ),
        box(610, 510, 300, 70, GREEN, "other workers of the group", "(sync-sgd, sync-easgd 2 and 3)"),
        arrow(350, 70, 210, 70, both=True),
        label(280, 58, "state before", anchor="middle"),
        label(280, 92, "every reply"),
        arrow(590, 70, 730, 70),
        label(660, 58, "events,"),
        label(660, 92, "summary, model"),
        arrow(410, 120, 210, 300, both=True),
        label(235, 195, "commands: configure,", "snapshot, restore, fence,", "programs, migration", anchor="end"),
        arrow(530, 120, 730, 300, both=True),
        label(690, 195, "Join, Beat, Lease, Report", "leases of data, evaluations", anchor="start"),
        arrow(610, 335, 330, 335),
        label(470, 325, "push: gradient, version, number"),
        arrow(330, 368, 610, 368),
        label(470, 388, "fetch: parameters, versions"),
        label(470, 410, "through shared memory on one host"),
        arrow(180, 418, 180, 510),
        label(192, 460, "operation log,", "before the acknowledgement", anchor="start"),
        arrow(760, 418, 760, 510, both=True),
        label(748, 468, "sums by tree, ring or server", anchor="end"),
        arrow(330, 310, 745, 110, dashed=True),
        label(437, 238, "snapshot sets", anchor="end"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture())
