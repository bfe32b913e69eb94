"""Escaping of untrusted text for a terminal."""

_CONTROLS = (*range(0x20), *range(0x7F, 0xA0))
"""C0, DEL and C1: characters that move the cursor, clear the screen, or begin an escape sequence."""
_TURNS = (0x200E, 0x200F, 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
"""Line separators, and characters that change the direction of writing, so that text reads differently."""
_WRITTEN = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in (*_CONTROLS, *_TURNS)}
_IN_LINES = {code: written for code, written in _WRITTEN.items() if chr(code) not in "\n\t"}
_IN_JSON = {code: f"\\u{code:04x}" for code in _WRITTEN}


def printable(text: str, lines: bool = False) -> str:
    r"""The text with control characters written as `\x1b`; with `lines`, ends of lines and tabs stay."""
    return text if text.isprintable() else text.translate(_IN_LINES if lines else _WRITTEN)


def printable_json(text: str) -> str:
    r"""JSON with the control characters inside its strings written as `\u009b`, which reads back as the same."""
    return text if text.isprintable() else text.translate(_IN_JSON)
