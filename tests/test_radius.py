"""Certified radii and comparisons: brackets that close, rows that survive, methods that never contradict an attack."""

import csv
import dataclasses
import io
import json
import math
import signal

import pytest
import torch
from PIL import Image

import zonogpt
from builders import config, image_model, text_classifier
from liar import let_method_e_claim_anything
from program import stopped, zono
from zonogpt.errors import OptionError, SpecError, UnsoundError
from zonogpt.search.falsify import Counterexample, Finding
from zonogpt.studies.radii.ladder import Ladder
from zonogpt.studies.radii.rows import RadiusRow
from zonogpt.studies.radii.search import Trial, distance, largest_proved, smallest_broken
from zonogpt.studies.radii.table import as_csv, by_input, inputs_as_csv, tabulate

DIGITS = "zoo:digits"
MODEL = zonogpt.load(image_model(1))
TEXT = zonogpt.load(text_classifier(3))
IMAGE = torch.rand(6, 4, generator=torch.Generator().manual_seed(5))


def ball(radius):
    return zonogpt.image_ball(MODEL, IMAGE, radius)


def quiet(trial):
    pass


class TestLadder:
    @pytest.mark.parametrize("tolerance", [0.02, 0.3, 5.0])
    def test_steps(self, tolerance):
        ladder = Ladder.build(1e-5, 0.3, tolerance, (1e-4, 2e-3))
        assert ladder.steps[0] == 1e-5
        assert ladder.steps[-1] == 0.3
        assert {ladder.steps[i] for i in ladder.wanted} == {1e-4, 2e-3}
        ratios = [b / a for a, b in zip(ladder.steps, ladder.steps[1:], strict=False)]
        assert all(1 < ratio <= 1.01 * (1 + tolerance) for ratio in ratios)
        assert all(float(f"{step:.3g}") == step for step in ladder.steps)

    def test_halving_ends_at_neighbours_and_tries_wanted_steps_first(self):
        ladder = Ladder.build(1e-4, 1.0, 0.02, (1e-3, 1e-2, 1e-1))
        for threshold in (0.0, 1e-4, 5e-3, 0.7, 2.0):
            good, bad, tried = -1, len(ladder.steps), []
            while (at := ladder.between(good, bad)) is not None:
                tried.append(ladder.steps[at])
                good, bad = (at, bad) if ladder.steps[at] <= threshold else (good, at)
            assert bad == good + 1
            assert (ladder.steps[good] if good >= 0 else 0.0) <= threshold
            assert bad == len(ladder.steps) or ladder.steps[bad] > threshold
            assert tried[0] == 1e-2
            assert len(tried) <= 14

    @pytest.mark.parametrize(
        ("low", "high", "tolerance", "grid"),
        [
            (0.0, 1.0, 0.1, ()), (1.0, 0.5, 0.1, ()), (1e-3, math.inf, 0.1, ()), (math.nan, 1.0, 0.1, ()),
            (1e-3, 1.0, 0.0, ()), (1e-3, 1.0, math.nan, ()), (1e-3, 1.0, 0.1, (2.0,)), (1e-3, 1.0, 0.1, (math.nan,)),
        ],
    )  # fmt: skip
    def test_bad_ladders(self, low, high, tolerance, grid):
        with pytest.raises(OptionError):
            Ladder.build(low, high, tolerance, grid)


def result(status, stopped=None, margin=1.0):
    return zonogpt.Result(status, torch.tensor([margin]), "", "E", 0.1, 0, 0.5, 100, "float64", "cpu", stopped=stopped)


class TestSearches:
    ladder = Ladder.build(1e-3, 1.0, 0.05)

    @pytest.mark.parametrize("threshold", [0.0, 1e-3, 0.0371, 0.9, 3.0])
    def test_largest_proved(self, threshold):
        seen = []
        out = largest_proved(
            self.ladder,
            lambda radius: radius,
            lambda radius, deadline: result("verified" if radius <= threshold else "unknown"),
            math.inf,
            seen.append,
        )
        assert out.radius == max((r for r in self.ladder.steps if r <= threshold), default=0.0)
        assert list(out.trials) == seen
        assert len(seen) <= 9
        assert out.stopped == ""

    def test_only_verified_is_proved(self):
        out = largest_proved(self.ladder, lambda r: r, lambda r, deadline: result("falsified"), math.inf, quiet)
        assert (out.radius, out.stopped) == (0.0, "")

    @pytest.mark.parametrize(("status", "stopped"), [("timeout", "timeout"), ("unknown", "memory")])
    def test_stops_early_and_says_why(self, status, stopped):
        answers = iter([result("verified"), result(status, stopped)])
        out = largest_proved(self.ladder, lambda radius: radius, lambda r, deadline: next(answers), math.inf, quiet)
        assert out.stopped == stopped
        assert out.radius == self.ladder.steps[len(self.ladder.steps) // 2 - 1] or out.radius > 0
        assert len(out.trials) == 2
        late = largest_proved(self.ladder, lambda radius: radius, lambda r, deadline: result("verified"), 0.0, quiet)
        assert (late.radius, late.trials, late.stopped) == (0.0, (), "timeout")

    @pytest.mark.parametrize("threshold", [1e-4, 0.0371, 0.9, 3.0])
    def test_smallest_broken(self, threshold):
        def search(spec, deadline):
            if spec.radius < threshold:
                return Finding(None, 1.0)
            return Finding(
                Counterexample(spec.input.anchor + min(spec.radius, 0.9999 * spec.radius), 1, -1.0, -1.0), -1.0
            )

        out = smallest_broken(
            self.ladder, lambda r: zonogpt.image_ball(MODEL, IMAGE, r, clip=(-9, 9)), search, math.inf, quiet
        )
        assert out.radius == min((r for r in self.ladder.steps if r >= threshold), default=math.inf)

    def test_a_counterexample_counts_from_its_own_distance(self):
        spec = zonogpt.image_ball(MODEL, IMAGE, 0.5, clip=(-9, 9))
        near = Counterexample(spec.input.anchor + 0.0123, 1, -1.0, -1.0)
        assert distance(spec, near) == pytest.approx(0.0123)
        findings = iter([Finding(near, -1.0)])  # found once and never again
        out = smallest_broken(
            self.ladder,
            lambda r: zonogpt.image_ball(MODEL, IMAGE, r, clip=(-9, 9)),
            lambda spec, deadline: next(findings, Finding(None, 1.0)),
            math.inf,
            quiet,
        )
        assert out.radius == min(r for r in self.ladder.steps if r >= 0.0123)
        assert out.counterexample is near
        assert len(out.trials) <= 8


def test_certified_radius_from_both_sides():
    trials = []
    certified, attacked = zonogpt.certified_radius(MODEL, ball, 1e-4, 2.0, on_trial=trials.append)
    assert 1e-4 < certified < attacked < 2.0
    assert zonogpt.verify(MODEL, ball(certified)).status == "verified"
    assert zonogpt.verify(MODEL, ball(attacked), attack=True).status == "falsified"
    assert zonogpt.verify(MODEL, ball(1.05 * certified)).status == "unknown"
    assert {t.status for t in trials} <= {"verified", "unknown", "kept", "broken"}
    assert all(isinstance(t, Trial) and t.seconds > 0 for t in trials)
    found = zonogpt.certified_radius(MODEL, ball, 1e-4, 2.0, tolerance=1.0, attack=False)
    assert found.certified <= certified
    assert found.attacked == math.inf


@pytest.mark.parametrize("method", ["A", "crown", "ibp"])
def test_certified_radius_of_other_methods_is_not_larger_than_an_attack(method):
    certified, attacked = zonogpt.certified_radius(MODEL, ball, 1e-5, 2.0, method=method, tolerance=0.2)
    assert 0 <= certified < attacked


def test_edges():
    assert zonogpt.certified_radius(MODEL, ball, 5.0, 9.0, attack=False).certified == 0.0
    easy = zonogpt.certified_radius(MODEL, ball, 1e-8, 1e-7)
    assert easy == (1e-7, math.inf)
    slow = zonogpt.certified_radius(MODEL, ball, 1e-4, 2.0, timeout=1e-9)
    assert slow == (0.0, math.inf)
    for options in ({"method": "Z"}, {"seed": -1}, {"timeout": 0}, {"budget_bytes": 0}, {"dtype": "int8"}):
        with pytest.raises(OptionError):
            zonogpt.certified_radius(MODEL, ball, 1e-4, 1.0, **options)
    with pytest.raises(SpecError):
        zonogpt.certified_radius(MODEL, lambda r: zonogpt.image_ball(MODEL, IMAGE, r, label=9), 1e-4, 1.0)


def test_a_contradiction_is_an_error(monkeypatch):
    """A method that claims everything is caught by the attack, alone and in a comparison."""
    let_method_e_claim_anything(monkeypatch, 2)
    with pytest.raises(UnsoundError, match="This is a bug"):
        zonogpt.certified_radius(MODEL, ball, 1e-4, 2.0)
    with pytest.raises(UnsoundError, match="method E"):
        zonogpt.compare(MODEL, Images(1), ("E", "attack"), 1e-4, 2.0, tolerance=0.5)


@dataclasses.dataclass(frozen=True)
class Images:
    n: int

    def __len__(self):
        return self.n

    def name(self, index):
        return f"image {index}"

    def read(self, index):
        return torch.rand(6, 4, generator=torch.Generator().manual_seed(index))

    def label(self, index):
        answer = int(zonogpt.logits(MODEL, self.read(index)).argmax())
        return (answer + (index == 2)) % 3  # the third is misclassified


METHODS = ("E", "A", "ibp", "attack")
GRID = (1e-4, 1e-3, 1e-2, 1e-1)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    out = tmp_path_factory.mktemp("compared")
    found = zonogpt.compare(MODEL, Images(3), METHODS, 1e-4, 2.0, grid=GRID, tolerance=0.1, out=out)
    return found, out


def test_rows(comparison):
    found, out = comparison
    assert [(row.index, row.method) for row in found.rows] == [(i, m) for i in range(3) for m in METHODS]
    assert all(row.status == "misclassified" and not row.trials for row in found.rows if row.index == 2)
    for row in found.rows[:8]:
        assert row.status == "done"
        assert row.seconds == pytest.approx(sum(t["seconds"] for t in row.trials))
        statuses = {t["status"] for t in row.trials}
        assert statuses <= ({"kept", "broken"} if row.method == "attack" else {"verified", "unknown"})
        proved = [t["radius"] for t in row.trials if t["status"] == "verified"]
        if row.method != "attack":
            assert row.radius == max(proved, default=0.0)
    stored = [RadiusRow.from_json(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert stored == list(found.rows)


def test_a_second_run_only_reads_and_may_add(comparison, monkeypatch):
    found, out = comparison
    before = (out / "rows.jsonl").read_bytes()
    again = zonogpt.compare(MODEL, Images(3), METHODS, 1e-4, 2.0, grid=GRID, tolerance=0.1, out=out)
    assert again.rows == found.rows
    assert (out / "rows.jsonl").read_bytes() == before
    more = zonogpt.compare(MODEL, Images(3), ("M",), 1e-4, 2.0, grid=GRID, tolerance=0.1, count=1, out=out)
    assert [row.method for row in more.rows] == ["M"]
    assert (out / "rows.jsonl").read_bytes().startswith(before)
    with pytest.raises(OptionError, match="tolerance was"):
        zonogpt.compare(MODEL, Images(3), METHODS, 1e-4, 2.0, grid=GRID, tolerance=0.2, out=out)


def test_counts_at_the_grid_are_exact(comparison):
    found, _ = comparison
    lines = {line.method: line for line in tabulate(found.rows, found.methods, GRID)}
    for method in ("E", "A", "ibp"):
        for k, radius in enumerate(GRID):
            specs = [zonogpt.image_ball(MODEL, Images(3).read(i), radius, Images(3).label(i)) for i in range(2)]
            proved = sum(zonogpt.verify(MODEL, s, method=method).status == "verified" for s in specs)
            assert lines[method].counts[k] == proved
    assert lines["attack"].counts[0] == 2
    assert lines["E"].inputs == 3
    assert lines["ibp"].radius is None or lines["ibp"].radius < lines["E"].radius
    assert lines["E"].smallest <= lines["E"].radius <= lines["E"].largest
    assert lines["E"].peak_bytes >= 0


def test_csv(comparison):
    found, _ = comparison
    table = list(csv.DictReader(io.StringIO(as_csv(tabulate(found.rows, found.methods, GRID), GRID))))
    assert [row["method"] for row in table] == list(METHODS)
    assert table[0]["at 0.0001"] == "2"
    inputs = list(csv.DictReader(io.StringIO(inputs_as_csv(by_input(found.rows, "E")))))
    assert [row["name"] for row in inputs] == ["image 0", "image 1", "image 2"]
    assert inputs[2]["status"] == "misclassified"
    assert float(inputs[0]["certified"]) < float(inputs[0]["attacked"])


def test_texts_are_taken_token_by_token():
    class Text:
        def __len__(self):
            return 1

        def name(self, index):
            return "text"

        def label(self, index):
            return None

        def read(self, index):
            return [3, 5, 1, 12]

    found = zonogpt.compare(TEXT, Text(), ("E", "attack"), 1e-4, 8.0, tolerance=0.3, positions="all", each=True)
    assert [row.positions for row in found.rows] == [[k] for k in (0, 0, 1, 1, 2, 2, 3, 3)]
    together = zonogpt.compare(TEXT, Text(), ("E",), 1e-4, 8.0, tolerance=0.3, positions="1,3")
    assert [row.positions for row in together.rows] == [[1, 3]]
    for line in by_input(found.rows, "E"):
        assert 0 < line.certified < line.attacked
        spec = zonogpt.embedding_ball(TEXT, [3, 5, 1, 12], line.positions, line.certified)
        assert zonogpt.verify(TEXT, spec).status == "verified"


def test_timeouts_are_per_input_and_method():
    found = zonogpt.compare(MODEL, Images(1), ("E", "crown", "attack"), 1e-4, 2.0, timeout=1e-9)
    assert [row.status for row in found.rows] == ["timeout"] * 3
    line = tabulate(found.rows, found.methods, ())[1]
    assert line.stopped == "1 timeout"


def test_memory_is_a_reason_to_stop():
    found = zonogpt.compare(MODEL, Images(1), ("deepz", "crown"), 1e-4, 2.0, budget_bytes=1000)
    assert [(row.status, row.radius) for row in found.rows] == [("memory", 0.0)] * 2


@pytest.mark.parametrize(
    "options",
    [
        {"methods": ("Z",)}, {"methods": ()}, {"methods": ("E", "E")}, {"low": 1.0, "high": 0.1}, {"grid": (5.0,)},
        {"count": 0}, {"skip": 9}, {"norm": 3.0}, {"positions": "some"}, {"seed": -1}, {"tolerance": -1.0},
    ],
)  # fmt: skip
def test_bad_options(options):
    with pytest.raises(zonogpt.ZonoGptError):
        zonogpt.compare(MODEL, Images(2), **({"methods": ("E",)} | options))


def test_radius_stopped_twice_and_continued(tmp_path):
    """Ctrl-C, then kill -9, then to the end: no finished row is computed twice or lost."""
    rows = tmp_path / "run" / "rows.jsonl"
    total = 2 * 8
    base = ("radius", DIGITS, "--data", DIGITS, "--count", 8, "--low", "1e-4", "--high", "0.1", "--tolerance", "0.05",
            "--out", rows.parent)  # fmt: skip
    kept = b""
    for wanted, how in ((2, signal.SIGINT), (5, signal.SIGKILL)):
        code, out, err = stopped(base, rows, wanted, how)
        assert out == ""
        if how == signal.SIGINT:
            assert code == 130
            assert "the same command goes on" in err
            assert "Traceback" not in err
        content = rows.read_bytes()
        assert content.startswith(kept)
        assert wanted <= content.count(b"\n") < total
        kept = content[: content.rindex(b"\n") + 1]
    run = zono(*base)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    content = rows.read_bytes()
    assert content.startswith(kept)
    assert content.count(b"\n") == total
    found = [RadiusRow.from_json(line) for line in content.decode().splitlines()]
    assert len({row.key for row in found}) == total
    assert run.stdout.startswith("certified 8 of 8: 0.00")
    with Image.open(rows.parent / "radius.png") as picture:
        assert picture.width > 800
    assert (rows.parent / "table.csv").read_text().count("\n") == 9
    assert zono(*base, "-q").stdout.count("\n") == 1  # everything is there already


def test_radius_of_one_image_and_of_a_text(tmp_path):
    from zonogpt.datasets.given import Given

    picture = Given.bundled("digits").read(0)
    Image.fromarray((255 * picture).round().to(torch.uint8).numpy()).save(tmp_path / "digit.png")
    run = zono("radius", DIGITS, "--image", "digit.png", "--tolerance", "0.3", "--json", "all.json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("certified 0.00")
    assert ", broken at 0.0" in run.stdout
    whole = json.loads((tmp_path / "all.json").read_text())
    assert set(whole) == {"schema", "versions", "model", "settings", "table", "rows"}
    text_classifier(3, config(pad_token_id=0)).save_pretrained(tmp_path / "model")
    run = zono("radius", "model", "--ids", "3,5,1,12", "--high", "8", "--tolerance", "0.5", "--no-attack", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("certified 4 of 4")
    for wrong in (
        ("radius", "model"),
        ("radius", "model", "--ids", "3", "--image", "digit.png"),
        ("radius", DIGITS, "--image", "digit.png", "--positions", "1"),
        ("radius", DIGITS, "--data", DIGITS, "--label", "1"),
        ("radius", DIGITS, "--data", DIGITS, "--method", "attack"),
        ("radius", "zoo:letters", "--data", DIGITS),
        ("radius", DIGITS, "--data", "zoo:letters"),
    ):
        failed = zono(*wrong, cwd=tmp_path)
        assert failed.returncode == 2, failed.stdout
        assert failed.stderr.startswith("error:")
        assert "Traceback" not in failed.stderr


def test_compare_command(tmp_path):
    base = ("compare", DIGITS, "--data", DIGITS, "--count", 2, "--methods", "E,M,ibp,attack", "--radius", "1e-4,3e-3",
            "--tolerance", "0.3", "--out", "run", "--json", "all.json")  # fmt: skip
    run = zono(*base, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("certified radius, geometric mean: E 0.00")
    assert {f.name for f in (tmp_path / "run").iterdir()} == {
        "rows.jsonl",
        "settings.json",
        "table.csv",
        "comparison.png",
    }
    whole = json.loads((tmp_path / "all.json").read_text())
    assert [line["method"] for line in whole["table"]] == ["E", "M", "ibp", "attack"]
    assert whole["table"][0]["counts"] == [2, 2]
    assert len(whole["rows"]) == 8
    with Image.open(tmp_path / "run" / "comparison.png") as picture:
        assert picture.width > 1500
    assert zono(*base, "--timeout", "5", cwd=tmp_path).returncode == 2  # another run's directory
