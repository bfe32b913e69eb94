"""Parts of the drawn pictures, as SVG text: boxes, lines of text, arrows, and the document around them."""

from xml.sax.saxutils import escape

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


def document(width: int, height: int, title: str, *parts: str) -> str:
    """The complete SVG document, on white; readers without pictures get the title."""
    head = (
        '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
        f'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="{INK}"/></marker>'
    )
    first = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{title}" font-family="sans-serif">',
        f"<defs>{head}</defs>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    )
    return "\n".join([*first, *parts, "</svg>"]) + "\n"
