"""The programs that a worker may start as MCP servers: the allow-list of this machine.

A contract names an entry and never a command: whoever may write contracts, or chooses arguments,
must not run programs on the workers. The list is a YAML file of the worker, named by
EFFECT_BROKER_MCP_PROGRAMS and read at each attempt, so that it may be mended without a restart:

    notes:
      command: /srv/notes/bin/server
      args: [--stdio]
      cwd: /srv/notes
      env:
        NOTES_REGION: eu
        NOTES_TOKEN: {secret: "env:EFFECT_BROKER_SECRET_NOTES"}

A program gets the variables that are listed and the few in `_INHERITED`; nothing else of the
worker's environment, which holds database URLs and keys.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError

from effect_adapters.base import SecretResolver, secret_value
from effect_contracts.document_text import json_text, problems_of, read_yaml
from effect_contracts.errors import ContractInvalid
from effect_contracts.expressions import HeaderPrefix, SecretReference
from effect_contracts.mcp_settings import ProgramName
from effect_contracts.section import Section

ENV_PROGRAMS: Final = "EFFECT_BROKER_MCP_PROGRAMS"

# What programs need to find their parts, their home and their language.
_INHERITED: Final = ("HOME", "LANG", "LC_ALL", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")

_Text = Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")]
_VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,127}$")]


class SecretText(Section):
    """A value that is read from a secret reference when it is needed, after `prefix`."""

    secret: SecretReference
    prefix: HeaderPrefix = ""


class Program(Section):
    """A program that is an MCP server on its stdin and stdout.

    Attributes:
        command: a path, or a name that is looked up on PATH; no shell reads it.
        cwd: where it runs; the starter's own directory without it.
    """

    command: Annotated[_Text, Field(min_length=1)]
    args: Annotated[tuple[_Text, ...], Field(max_length=256)] = ()
    env: Annotated[dict[_VariableName, _Text | SecretText], Field(max_length=256)] = Field(
        default_factory=dict
    )
    cwd: Annotated[_Text, Field(min_length=1)] | None = None


class ProgramsInvalid(Exception):
    """The list cannot be used. `code` is stable; the text says what to do and holds no secret."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


@dataclass(frozen=True, slots=True)
class Runnable:
    """A program with its secrets resolved; so nothing of it is ever printed."""

    command: str
    args: tuple[str, ...] = field(repr=False)
    env: Mapping[str, str] = field(repr=False)
    cwd: str | None


_LIST: Final = TypeAdapter(dict[ProgramName, Program])


def read_programs(text: str) -> dict[str, Program]:
    """Read a list of programs.

    Raises:
        ContractInvalid: with every problem and its place.
    """
    value = read_yaml(text)
    try:
        return _LIST.validate_json(json_text(value))
    except ValidationError as error:
        names = (*Program.model_fields, *SecretText.model_fields)
        refusal = problems_of(error, value, names)
    raise refusal


def allowed_program(name: str, environment: Mapping[str, str] | None = None) -> Program:
    """Return the entry of a name.

    Raises:
        ProgramsInvalid: `programs_missing`, `programs_invalid` or `program_not_allowed`.
    """
    path = (os.environ if environment is None else environment).get(ENV_PROGRAMS)
    if not path:
        raise ProgramsInvalid("programs_missing", f"{ENV_PROGRAMS} names no list of programs")
    try:
        programs = read_programs(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        raise ProgramsInvalid("programs_missing", f"{path} cannot be read") from None
    except ContractInvalid as problem:
        raise ProgramsInvalid("programs_invalid", f"{path}: {problem}") from None
    if name not in programs:
        raise ProgramsInvalid("program_not_allowed", f"{path} has no program {name!r}")
    return programs[name]


def runnable(program: Program, secrets: SecretResolver) -> Runnable:
    """Return the program as it is started.

    Raises:
        SecretUnavailable.
    """
    env = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    for name, value in program.env.items():
        if isinstance(value, str):
            env[name] = value
        else:
            env[name] = value.prefix + secret_value(value.secret, secrets)
    return Runnable(program.command, program.args, env, program.cwd)
