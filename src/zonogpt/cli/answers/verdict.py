"""What `zonogpt verify` does and says."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from zonogpt.cli.answers.inputs import Picture, one_input
from zonogpt.cli.answers.telling import describe, describe_moves, describe_witness, moving
from zonogpt.cli.asking import Claimed, Inputs, Run, norm
from zonogpt.cli.options import STANDARD, two_numbers
from zonogpt.cli.outputs import answer_stream, attempt, write_json
from zonogpt.cli.progress import loading, progress_bar
from zonogpt.cli.tables import print_table
from zonogpt.errors import CertificateError, OptionError, SpecError
from zonogpt.methods.method import Progress
from zonogpt.model.hf import load
from zonogpt.model.ir import Model
from zonogpt.spec.answer import Asked
from zonogpt.spec.spec import Spec, embedding_ball, image_ball
from zonogpt.support.files import parse_json, read_text
from zonogpt.support.numbers import exact
from zonogpt.support.optional import require_plots
from zonogpt.verification.certificate import write_certificate
from zonogpt.verification.result import Result
from zonogpt.verification.verifier import Verifier
from zonogpt.verification.witness import save_witness

EXIT = {"verified": 0, "unknown": 10, "falsified": 20, "timeout": 30}
WORST = ("falsified", "timeout", "unknown", "verified")  # the verdict of several is the first of these among them
MANY_SCHEMA = "zonogpt-results-1"


@dataclass(frozen=True)
class VerdictFiles:
    counterexample: Path | None
    certificate: Path | None
    check: bool
    json: Path | None
    quiet: bool


def answer(
    name: str,
    inputs: Inputs,
    claimed: Claimed,
    radius: float,
    run: Run,
    attack: bool,
    hint: bool | None,
    files: VerdictFiles,
) -> int:
    """Runs the command and prints its answer; returns the exit code."""
    with loading(f"loading {name}", files.quiet):
        net = load(name)
    if files.counterexample is not None and net.embedding.reads == "images":
        require_plots()  # a picture is written beside it
    specs = build_specs(net, inputs, claimed, radius)
    wanted = sys.stderr.isatty() and not files.quiet if hint is None else hint
    verifier = Verifier(net, method=run.method, attack=attack, hint=wanted, **run.options)
    with block_bar(files.quiet) as show:
        results = [verifier.verify(spec, on_block=show) for spec in specs]
    if inputs.each:
        return tell_many(results, specs, net, files)
    (spec,), (result,) = specs, results
    out = answer_stream(files.json)
    print(result.verdict, file=out)
    if not files.quiet:
        lines = [describe(result), *describe_moves(net, spec)]
        if result.status == "falsified":
            lines += describe_witness(net, spec, result)
        elif result.status == "unknown" and result.hint_seconds is None and result.method == "E" and result.radius:
            lines.append("add --hint for a smaller radius that is certified, or run `zonogpt radius` for the largest")
        print("\n".join(lines), file=out)
    out.flush()  # the verdict is out, whatever becomes of the files
    said = []
    if files.json is not None:
        attempt(write_json, files.json, result.to_json() + "\n")
    if files.certificate is not None:
        said += certified(net, spec, result, files.certificate, files.check, files.quiet)
    if result.status == "falsified":
        said += saved(spec, result, files.counterexample)
    if said and not files.quiet:
        print("\n".join(said), file=out)
    return EXIT[result.status]


def tell_many(results: Sequence[Result], specs: Sequence[Spec], net: Model, files: VerdictFiles) -> int:
    """Prints the results token by token, after the verdict that counts for all of them; returns its exit code."""
    status = next(status for status in WORST if any(result.status == status for result in results))
    alike = [result for result in results if result.status == status]
    worst = min(alike, key=lambda result: float(result.margins.min()))
    out = answer_stream(files.json)
    print(worst.verdict, file=out)
    if not files.quiet:
        counts = ", ".join(
            f"{sum(r.status == status for r in results)} {status}"
            for status in reversed(WORST)
            if any(r.status == status for r in results)
        )
        print(f"{counts}, of {len(results)} tokens, each moved alone", file=out)
        table = Table("token", "verdict", box=SIMPLE_HEAD, pad_edge=False)
        for heading in ("lowest margin", "certified", "s"):
            table.add_column(heading, justify="right", no_wrap=True)
        for spec, result in zip(specs, results, strict=True):
            smaller = "" if result.certified_radius is None else exact(result.certified_radius)
            certified = exact(result.radius or 0.0) if result.verified else smaller
            margin = "" if result.status == "falsified" else f"{float(result.margins.min()):.4g}"
            table.add_row(moving(net, spec), result.status, margin, certified or "-", f"{result.seconds:.2f}")
        print_table(table, out)
        print(f"the worst: {worst.reason}", file=out)
    out.flush()
    if files.json is not None:
        whole = {"schema": MANY_SCHEMA, "results": [json.loads(result.to_json()) for result in results]}
        attempt(write_json, files.json, json.dumps(whole, allow_nan=False) + "\n")
    return EXIT[status]


def certified(net: Model, spec: Spec, result: Result, file: Path, check: bool, quiet: bool) -> list[str]:
    """Writes the certificate, if there is one, and with `check` lets its checker read it; returns the line that says
    so."""
    if not result.verified:
        return ["no certificate: nothing was proved"]

    def checking() -> None:
        if not quiet and sys.stderr.isatty():  # it may take longer than the proof
            print("checking the certificate", file=sys.stderr)

    try:
        with block_bar(quiet) as show:
            written = attempt(write_certificate, net, spec, file, result.device, show, check, checking)
    except CertificateError as error:
        if quiet:
            print(error, file=sys.stderr)
        return [str(error)]
    return [f"certificate: {file}, {'checked' if check else 'not checked'}"] if written else []


def saved(spec: Spec, result: Result, file: Path | None) -> list[str]:
    """Writes the counterexample, if that is wanted; returns the line that says so."""
    assert result.counterexample is not None
    if file is None:
        unmoved = torch.equal(result.counterexample, spec.input.anchor.cpu())
        return [] if unmoved else ["--counterexample FILE.npz saves it"]
    files: list[Path] = []
    attempt(lambda: files.extend(save_witness(spec, result, file)))
    return [f"saved: {' and '.join(map(str, files))}"] if files else []


@contextmanager
def block_bar(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Shows a bar for the work of a run, with the time that remains; yields the function that moves it."""
    with progress_bar(quiet, counts=False) as bar:
        at = bar.add_task("unperturbed input", total=None)
        task = ""

        def show(progress: Progress) -> None:
            nonlocal at, task
            if progress.task != task or progress.done < (bar.tasks[-1].completed or 0.0):  # another run begins
                bar.remove_task(at)
                at, task = bar.add_task("", total=1.0), progress.task
            bar.update(at, completed=progress.done, total=1.0,
                       description=said_of(progress))  # fmt: skip

        yield show


def said_of(progress: Progress) -> str:
    """ "hint: block 3 of 12 (mlp), backward"."""
    if progress.part == "search":
        return "search for a counterexample"
    what = f"block {progress.block} of {progress.blocks} ({progress.kind})"
    part = {"forward": "", "backward": ", backward", "still tokens": ", tokens that do not move"}[progress.part]
    return f"{progress.task}: {what}{part}" if progress.task else what + part


def build_specs(net: Model, inputs: Inputs, claimed: Claimed, radius: float) -> list[Spec]:
    """One spec or, with --each, one for each token that moves."""
    asked = asked_for(claimed)
    found = one_input(net, inputs)
    p = norm(inputs)
    if isinstance(found, Picture):
        return [claiming(image_ball, asked, net, found.pixels, radius, norm=p)]
    together = [[position] for position in found.moving] if inputs.each else [found.moving]
    return [claiming(embedding_ball, asked, net, found.content, positions, radius, norm=p) for positions in together]


def claiming(ball: Callable[..., Spec], asked: Asked, net: Model, *given: Any, norm: float) -> Spec:
    return ball(
        net, *given, asked.label, norm=norm, interval=asked.interval, target=asked.target, top_k=asked.top_k,
        keep_sign=asked.keep_sign, rows=asked.rows,
    )  # fmt: skip


def asked_for(claimed: Claimed) -> Asked:
    return Asked(
        label=claimed.label,
        interval=None if claimed.interval is None else two_numbers(claimed.interval, "--interval"),
        target=None if claimed.target is None else claimed.target.split(","),
        top_k=claimed.top_k,
        keep_sign=claimed.keep_sign,
        rows=None if claimed.rows is None else read_rows(claimed.rows),
    )


def read_rows(file: Path) -> tuple[Any, Any, Any]:
    """Rows, offset and groups of a claim, from JSON; only their shape is checked here."""
    try:
        content = parse_json(sys.stdin.read() if file == STANDARD else read_text(file))
    except (OSError, ValueError) as error:
        raise SpecError(f"{file} is no readable JSON: {error}") from error
    if not isinstance(content, dict) or not {"rows", "offset"} <= set(content) <= {"rows", "offset", "groups"}:
        raise OptionError('--rows takes a JSON object {"rows": [[...]], "offset": [...]}, perhaps with "groups"')
    return content["rows"], content["offset"], content.get("groups")
