"""Command groups whose help lists every command with its whole first sentence."""

from __future__ import annotations

import click

_WHOLE = 1000
"""Characters of a sentence that is not cut."""


class CommandGroup(click.Group):
    """A group of commands; click's own cuts the sentences at the end of the line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands; a long sentence goes on below."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, one.get_short_help_str(_WHOLE)) for name, one in found if one is not None and not one.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
