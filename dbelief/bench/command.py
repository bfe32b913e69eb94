"""`dbelief bench`: what this machine gives, and how much of it is used."""

from __future__ import annotations

import json

import click


@click.group("bench")
def command() -> None:
    """Measure what this machine gives."""


def _count(context: click.Context, parameter: click.Parameter, text: str) -> int:
    """Read 64M as 64,000,000; k, M and G are decimal."""
    factor = {"k": 10**3, "M": 10**6, "G": 10**9}.get(text[-1:], 1)
    digits = text[:-1] if factor > 1 else text
    if not digits.isdecimal() or int(digits) < 1:
        raise click.BadParameter(f"must be a whole number above 0, with k, M or G behind it or nothing, not {text!r}")
    return int(digits) * factor


@command.command("apply")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON instead of a table.")
@click.option("--parameters", default="64M", show_default=True, callback=_count, help="float32 numbers held.")
@click.option("--rounds", type=click.IntRange(1), default=7, show_default=True, help="Interleaved rounds per rule.")
@click.option("--threads", type=click.IntRange(1), default=1, show_default=True, help="Threads that share the work.")
def bench_apply(as_json: bool, parameters: int, rounds: int, threads: int) -> None:
    """Time every update rule against the memory's own speed, and against torch's fused optimisers if it is there."""
    from dbelief.bench import apply

    results = apply.measure(parameters, rounds, threads)
    if as_json:
        print(json.dumps(apply.figures(parameters, rounds, threads, results)))
    else:
        apply.show(parameters, results)
