"""zonogpt verify"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from zonogpt.cli import options
from zonogpt.cli.options import check_writable, integers, norm_of, size, two_numbers
from zonogpt.cli.outputs import attempt
from zonogpt.cli.progress import progress_bar
from zonogpt.datasets.pictures import read_image
from zonogpt.datasets.texts import encode
from zonogpt.errors import CertificateError, OptionError
from zonogpt.methods.method import Progress
from zonogpt.model.hf import load
from zonogpt.model.ir import Model
from zonogpt.spec.spec import Spec, embedding_ball, image_ball
from zonogpt.support.files import write_whole
from zonogpt.verification.api import verify as run
from zonogpt.verification.certificate import write_certificate
from zonogpt.verification.result import Result
from zonogpt.verification.witness import moved_tokens, save_witness

EXIT = {"verified": 0, "unknown": 10, "falsified": 20, "timeout": 30}


def verify(
    model: options.ModelName,
    radius: Annotated[float, typer.Option(help="How far the input may move, in the norm.")],
    image: options.Image = None,
    text: options.Text = None,
    ids: options.Ids = None,
    positions: Annotated[str | None, typer.Option(help="Token positions that move, from 0, as 1,4.")] = None,
    words: Annotated[str | None, typer.Option(help="Words of the text that move, as good,film.")] = None,
    label: options.Label = None,
    interval: Annotated[
        str | None, typer.Option(help="Of a regression model: where its output must stay.", metavar="LOW,HIGH")
    ] = None,
    method: options.MethodName = "E",
    norm: options.Norm = "inf",
    attack: Annotated[bool, typer.Option("--attack", help="First search for an input that breaks the claim.")] = False,
    seed: Annotated[int, typer.Option(help="Of the attack.")] = 0,
    timeout: Annotated[float | None, typer.Option(help="Seconds, looked at between blocks.")] = None,
    device: options.Device = None,
    dtype: options.Dtype = None,
    arithmetic: options.Arithmetic = "real",
    budget: options.Budget = None,
    hint: Annotated[bool, typer.Option(help="If unknown (E): look for a smaller radius that is certified.")] = True,
    counterexample: Annotated[
        Path | None, typer.Option(help="If falsified: write the input to this .npz, and an image to a .png beside it.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="If verified (E, real): write the proof to this file, for `zonogpt check`.")
    ] = None,
    check: Annotated[bool, typer.Option(help="Check the certificate before it is said to be written.")] = True,
    json: Annotated[Path | None, typer.Option(help="Write the whole result to this file.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the verdict only.")] = False,
) -> None:
    """Try to prove that the answer stays the same over the whole ball, or find an input that changes it.

    The verdict is the first word. Exit code: 0 verified, 10 unknown, 20 falsified, 30 timeout, 2 bad input. A file that
    cannot be written then is named, and does not change it.
    """
    check_writable(json)
    check_writable(counterexample, (".npz",))
    check_writable(certificate)
    if certificate is not None and (method, arithmetic) != ("E", "real"):
        raise OptionError("certificates are written by method E, about the network in real arithmetic")
    budget_bytes = size(budget)
    net = load(model)
    stay = None if interval is None else two_numbers(interval, "--interval")
    spec = build_spec(net, model, image, text, ids, positions, words, radius, label, norm_of(norm), stay)
    with block_bar(net, quiet) as show:
        result = run(
            net, spec, method=method, attack=attack, timeout=timeout, device=device, dtype=dtype,
            budget_bytes=budget_bytes, seed=seed, hint=hint, on_block=show, arithmetic=arithmetic,
        )  # fmt: skip
    print(result.verdict)
    if not quiet:
        print(describe(result))
        if result.status == "falsified":
            print(describe_witness(net, spec, result))
    sys.stdout.flush()  # the verdict is out, whatever becomes of the files
    said = []
    if json is not None:
        attempt(write_whole, json, result.to_json() + "\n")
    if certificate is not None:
        said += certified(net, spec, result, certificate, check, quiet)
    if result.status == "falsified":
        said += saved(spec, result, counterexample)
    if said and not quiet:
        print("\n".join(said))
    raise typer.Exit(EXIT[result.status])


def certified(net: Model, spec: Spec, result: Result, file: Path, check: bool, quiet: bool) -> list[str]:
    """Writes the certificate, if there is one, and lets its checker read it; the line that says so."""
    if result.status != "verified":
        return ["no certificate: nothing was proved"]

    def checking() -> None:
        if not quiet and sys.stderr.isatty():  # it may take longer than the proof
            print("checking the certificate", file=sys.stderr)

    try:
        with block_bar(net, quiet) as show:
            written = attempt(write_certificate, net, spec, file, result.device, show, check, checking)
    except CertificateError as error:
        if quiet:
            print(error, file=sys.stderr)
        return [str(error)]
    return [f"certificate: {file}, {'checked' if check else 'not checked'}"] if written else []


def saved(spec: Spec, result: Result, file: Path | None) -> list[str]:
    """Writes the counterexample, if that is wanted; the line that says so."""
    if file is None:
        return ["--counterexample FILE.npz saves it"]
    files: list[Path] = []
    attempt(lambda: files.extend(save_witness(spec, result, file)))
    return [f"saved: {' and '.join(map(str, files))}"] if files else []


@contextmanager
def block_bar(net: Model, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """A bar over the blocks, and the function that moves it."""
    with progress_bar(quiet) as bar:
        task = bar.add_task("embedding", total=len(net.blocks))

        def show(progress: Progress) -> None:
            bar.update(task, completed=progress.block - 1, description=f"block {progress.block} ({progress.kind})")

        yield show


def build_spec(
    net: Model,
    model: str,
    image: Path | None,
    text: str | None,
    ids: str | None,
    positions: str | None,
    words: str | None,
    radius: float,
    label: int | None,
    norm: float,
    interval: tuple[float, float] | None,
) -> Spec:
    given = [name for name, value in (("--image", image), ("--text", text), ("--ids", ids)) if value is not None]
    if len(given) != 1:
        raise OptionError(f"give exactly one of --image, --text and --ids; got {' and '.join(given) or 'none'}")
    if image is not None:
        if positions is not None or words is not None:
            raise OptionError("--positions and --words are for texts; every pixel of an image moves")
        return image_ball(net, read_image(image), radius, label=label, norm=norm, interval=interval)
    if positions is not None and words is not None:
        raise OptionError("give --positions or --words, not both")
    if positions is None and (words is None or text is None):
        raise OptionError("say which tokens move: --positions 1,4, or, with --text, --words good,film")
    if text is not None:
        token_ids, named = encode(model, text, words.split(",") if words else [])
    else:
        assert ids is not None
        token_ids, named = integers(ids, "--ids"), []
    at = named if positions is None else integers(positions, "--positions")
    return embedding_ball(net, token_ids, at, radius, label=label, norm=norm, interval=interval)


def describe_witness(net: Model, spec: Spec, result: Result) -> str:
    """Where and how far the input moved."""
    assert result.counterexample is not None
    change = result.counterexample - spec.input.anchor.cpu()
    if spec.input.embed.positions is not None:
        lines = [
            f"token {moved.token} at position {moved.position} moves by {moved.length:.3g} (l_2),"
            f" {moved.largest:.3g} at most per coordinate; the nearest token is {moved.nearest}"
            for moved in moved_tokens(net, spec, result.counterexample)
        ]
    else:
        n = int((change != 0).sum())
        most = int(change.abs().argmax())
        row, column = divmod(most, change.shape[1])
        lines = [
            f"{n} of {change.numel()} pixels change, pixel ({row}, {column}) most: {float(change[row, column]):+.3g}"
        ]
    return "\n".join(lines)


def describe(result: Result) -> str:
    reach = "a box" if result.radius is None else f"radius {result.radius:g}"
    lines = [
        result.reason,
        f"{result.claim}, {reach}, method {result.method}, {result.dtype} on {result.device},"
        f" {result.seconds:.2f} s, peak {result.peak_bytes / 2**20:.0f} MiB",
    ]
    if result.status == "verified":
        proved = "this holds for" if result.guarantee == "bounded" else "this holds, if rounding is as estimated, for"
        lines.insert(1, f"{proved} {result.meaning}")
    if result.ledger.entries:
        lines.append(largest_loss(result))
    return "\n".join(lines)


def largest_loss(result: Result) -> str:
    """Of method E what costs most of the margin; of the others, whose ledger is in widths, the widest new error."""
    skipped = ("input",) if result.method == "E" else ("input", "head")
    fresh = [e for e in result.ledger.entries if e.kind not in skipped and e.step not in ("carried", "reduction")]
    worst = max(fresh, key=lambda e: e.width)
    place = f"{worst.step} of " + ("the head" if worst.kind == "head" else f"block {worst.block} ({worst.kind})")
    if result.method == "E":
        return f"largest loss: {place} takes {worst.width:.3g} off the margins (mean over rivals)"
    return f"widest new error: {place}, {worst.width:.3g} per feature"
