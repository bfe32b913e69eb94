"""Generated parts of the documentation: each function returns Markdown from the code that it documents.

A page contains `<!-- generated: NAME -->`; the hook of MkDocs (`hook.py`) replaces that line at build time. Nothing
that is generated is committed, so it cannot differ from the code.
"""
