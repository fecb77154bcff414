"""Commands whose module is imported when they are called, so that each pays for its own only.

An operator who lists effects must not wait until the engine, the API and every adapter are loaded.
The help of the root shows all commands, and so loads all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import typer
from typer.core import TyperGroup
from typer.main import get_group

if TYPE_CHECKING:
    from typer._click import Command, Context

Register = Callable[[typer.Typer], None]


class CommandsLater(TyperGroup):
    """A group that finds its commands by name in `later`: what registers each on a root.

    A function may register several commands; it is called for any of their names.
    """

    later: ClassVar[Mapping[str, Register]] = {}

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """Return a command by its name, and import it first if need be."""
        if cmd_name not in self.commands and cmd_name in self.later:
            scratch = typer.Typer()
            self.later[cmd_name](scratch)
            self.commands.update(get_group(scratch).commands)
        return super().get_command(ctx, cmd_name)

    def list_commands(self, ctx: Context) -> list[str]:
        """Return all names, in the order in which help shows them."""
        return [*self.later, *(name for name in self.commands if name not in self.later)]

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """Find what was called; for a word that is none, all names are there to be suggested."""
        if args and self.get_command(ctx, args[0]) is None:
            for name in self.later:
                self.get_command(ctx, name)
        found: tuple[str | None, Any, list[str]] = super().resolve_command(ctx, args)
        return found
