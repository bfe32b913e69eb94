"""Draw docs/pictures/fragment.svg, the picture of docs/explanation/diloco.md: the way of one fragment in a round.

`python -m docs.pictures.fragment` writes it; `tests/packaging/test_documents.py` compares it with the script.
"""

from pathlib import Path

from docs.pictures.drawing import BLUE, GREEN, GREY, INK, MUTED, PINK, arrow, document, label, text

LEFT, STEP, FIRST, LAST = 150, 110, 3, 8
"""Of the steps drawn: where they begin, pixels of one, and their numbers."""
BEHIND = 45
"""Pixels by which replica 1 is behind replica 0."""
TOP, MIDDLE, BOTTOM, HIGH = 60, 165, 270, 40
"""Upper edges of replica 0, the shards and replica 1, and the height of each."""


def rectangle(x: int, y: int, width: int, fill: str, words: str, dashed: bool = False) -> str:
    """A part of a lane."""
    dash = ' stroke-dasharray="6 4"' if dashed else ""
    shape = f'<rect x="{x}" y="{y}" width="{width}" height="{HIGH}" fill="{fill}" stroke="{INK}"{dash}/>'
    return f"{shape}\n{text(x + width // 2, y + 25, words, size=13)}"


def after(step: int, behind: int = 0) -> int:
    """Where a step of a replica ends."""
    return LEFT + STEP * (step + 1 - FIRST) + behind


def steps(y: int, behind: int) -> str:
    """Steps of a replica; those that it makes while the push travels in grey."""
    return "\n".join(
        rectangle(after(step - 1, behind), y, STEP, GREY if step in (5, 6) else GREEN, f"step {step}")
        for step in range(FIRST, LAST + 1)
    )


def mark(x: int, y: int, number: int) -> str:
    """A number in a circle."""
    return f'<circle cx="{x}" cy="{y}" r="10" fill="white" stroke="{INK}"/>\n' + text(x, y + 5, str(number), size=13)


def picture() -> str:
    """The complete SVG document."""
    due, merged = after(4), after(6)
    arrives, closes, answers = due + 40, due + BEHIND + 40, merged - 40
    legend = (
        "1  After step 4 the fragment is due: the replica keeps its part of w_i as s, and pushes w - s.",
        "2  Delay: steps 5 and 6 are computed while it travels.",
        "3  The shards stage it until those of all living replicas are there.",
        "4  The round of its segments closes: w <- outer(w, D), D the weighted mean.",
        "5  The answer, the new w, travels back.",
        "6  Merge: w_i <- b w_i + (1 - b) (w + (w_i - s)), b the blend.",
    )
    return document(
        940,
        500,
        "The way of a fragment: pushed, staged at the shards, stepped by the outer rule, and merged",
        text(20, 30, "H = 8 steps in a round, 2 fragments, delay 2: the first fragment", bold=True, anchor="start"),
        *(
            text(20, y + 25, name, bold=True, anchor="start")
            for y, name in ((TOP, "replica 0"), (MIDDLE, "shards"), (BOTTOM, "replica 1"))
        ),
        steps(TOP, 0),
        steps(BOTTOM, BEHIND),
        rectangle(arrives, MIDDLE, closes - arrives, PINK, "", dashed=True),
        rectangle(closes, MIDDLE, answers - closes, BLUE, "outer rule"),
        arrow(due, TOP + HIGH, arrives, MIDDLE),
        arrow(due + BEHIND, BOTTOM, closes, MIDDLE + HIGH),
        arrow(answers, MIDDLE, merged, TOP + HIGH),
        arrow(answers, MIDDLE + HIGH, merged + BEHIND, BOTTOM),
        mark(due, TOP + HIGH, 1),
        mark(after(5), TOP, 2),
        mark(arrives + (closes - arrives) // 2, MIDDLE + 20, 3),
        mark(closes + 1, MIDDLE - 14, 4),
        mark((answers + merged) // 2 + 1, (MIDDLE + TOP + HIGH) // 2, 5),
        mark(merged, TOP + HIGH, 6),
        arrow(after(8), TOP + HIGH, after(8) + 40, MIDDLE, dashed=True),
        label(after(8) - 12, 135, "the second fragment", "is due", anchor="end"),
        *(text(40, 350 + 24 * number, line, size=14, ink=MUTED, anchor="start") for number, line in enumerate(legend)),
    )


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(picture())
