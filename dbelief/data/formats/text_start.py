"""The start of a text file: its byte order mark, and what is no text in UTF-8 at all."""

import codecs

from dbelief.errors import DataError

_OTHERS = {
    codecs.BOM_UTF32_LE: "is UTF-32, must be UTF-8",
    codecs.BOM_UTF16_LE: "is UTF-16, must be UTF-8 (in Excel: CSV UTF-8)",
    codecs.BOM_UTF16_BE: "is UTF-16, must be UTF-8 (in Excel: CSV UTF-8)",
    b"\x1f\x8b": "is a gzip file, whose name must end in .gz",
    b"PK\x03\x04": "is a zip archive or a spreadsheet, must be text",
}


def text_start(content: bytes, where: str) -> int:
    """The position behind a byte order mark.

    Raises
    ------
    DataError
        It is a file of another kind.
    """
    for magic, words in _OTHERS.items():
        if content.startswith(magic):
            raise DataError(f"{where}: {words}")
    return len(codecs.BOM_UTF8) if content.startswith(codecs.BOM_UTF8) else 0
