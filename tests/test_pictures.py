"""Rules for pictures: nothing is outside the axes or hidden, each colour has one meaning, and the norm is named."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from matplotlib import colors

import zonogpt
from builders import image_model
from named_model import save_named_model
from zonogpt.methods.ledger import Ledger, LedgerEntry
from zonogpt.studies.accuracy.figure import accuracy_figure, parts
from zonogpt.studies.accuracy.table import AccuracyLine
from zonogpt.studies.radii.figure import comparison_figure, inputs_figure
from zonogpt.studies.radii.rows import ATTACK, RadiusRow
from zonogpt.studies.radii.table import InputLine, tabulate
from zonogpt.support.numbers import norm_name
from zonogpt.support.plotting import METHOD_COLOURS, METHOD_MARKERS, PAPER, method_colour, short
from zonogpt.verification.result import Result
from zonogpt_apps.bench.report.colours import DARK, PAGE
from zonogpt_apps.demo import figures, study
from zonogpt_apps.demo.example_figure import example_figure

GRID = (1e-4, 1e-3, 1e-2)


# The palette. Matrices: Machado, Oliveira, Fernandes 2009, severity 1.
EYES = (
    np.eye(3),
    np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]),
    np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]),
    np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]),
)
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour):
    c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def lab(light):
    x = XYZ @ np.clip(light, 0, 1) / np.array([0.9505, 1, 1.089])
    f = np.where(x > 0.008856, np.cbrt(x), 7.787 * x + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def difference(one, other):
    """The smallest difference of the two colours over all eyes."""
    return min(np.linalg.norm(lab(eye @ linear(one)) - lab(eye @ linear(other))) for eye in EYES)


def contrast(one, other):
    low, high = sorted(float(XYZ[1] @ linear(colour)) + 0.05 for colour in (one, other))
    return high / low


@pytest.mark.parametrize(
    ("colours", "behind"),
    [(METHOD_COLOURS, PAPER), ({method: DARK[colour] for method, colour in METHOD_COLOURS.items()}, PAGE["card"][1])],
)
def test_methods_can_be_told_apart_by_all_eyes(colours, behind):
    for (one, a), (other, b) in itertools.combinations(colours.items(), 2):
        assert difference(a, b) > 20, (one, other)
    for method, colour in colours.items():
        assert contrast(colour, behind) > 3, method
    assert set(METHOD_MARKERS) == set(METHOD_COLOURS)
    assert len(set(METHOD_MARKERS.values())) == len(METHOD_MARKERS)


def test_numbers_and_norms_are_written_as_people_write_them():
    assert [short(x) for x in (1e-4, 3.54e-2, 0.262, 12.0, 0)] == ["1e-4", "3.54e-2", "0.262", "12", "0"]
    assert [norm_name(x) for x in ("inf", "2", "1")] == ["l∞", "l2", "l1"]


# The comparison.


def radius_row(method, index, radius):
    return RadiusRow(
        key=f"{method}-{index}", settings="s", index=index, name=f"digit {index}", label=0, predicted=0,
        positions=None, tokens=None,
        method=method, status="done", radius=radius, trials=[{"seconds": 0.1}], seconds=0.1, peak_bytes=2**20,
        guarantee=None if method == ATTACK else "bounded", arithmetic="real", finished="",
    )  # fmt: skip


def comparison(norm="inf"):
    """crown and deepz have the same radii; the attack's lie beyond the grid; ibp proves nothing."""
    radii = {"E": (3e-3, 4e-3), "crown": (1e-3, 1e-3), "deepz": (1e-3, 1e-3), "ibp": (0.0, 0.0), ATTACK: (0.03, 0.05)}
    rows = [radius_row(method, k, radius) for method, both in radii.items() for k, radius in enumerate(both)]
    lines = tabulate(rows, tuple(radii), GRID)
    figure = comparison_figure(lines, rows, GRID, "digits: 2 inputs, l∞ ball", norm)
    figure.canvas.draw()
    return figure


def test_every_radius_of_a_comparison_is_inside_its_axis():
    _, radii, _, _ = comparison().axes
    low, high = radii.get_xlim()
    shown = [x for dots in radii.collections for x in dots.get_offsets()[:, 0]]
    assert sorted(shown) == [1e-3, 1e-3, 1e-3, 1e-3, 3e-3, 4e-3, 0.03, 0.05]
    assert low < min(shown)
    assert max(shown) < high
    ticks = [tick for tick in radii.get_xticks() if low <= tick <= high]
    assert len(ticks) >= 2


def test_no_method_of_a_comparison_hides_another():
    figure = comparison()
    places = [tuple(point) for dots in figure.axes[1].collections for point in dots.get_offsets().tolist()]
    assert len(places) == len(set(places)) == 8
    colours = [tuple(dots.get_facecolor()[0][:3]) for dots in figure.axes[1].collections if len(dots.get_offsets())]
    assert len(colours) == len(set(colours)) == 4
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["attack", "E", "crown", "deepz", "ibp"]


def test_a_comparison_has_no_areas_and_bars_begin_at_zero():
    _, radii, *bars = comparison().axes
    assert len({float(size) for dots in radii.collections for size in dots.get_sizes()}) == 1
    for ax in bars:
        assert ax.get_xlim()[0] == 0
        assert {bar.get_x() for bar in ax.patches} == {0.0}
        assert max(bar.get_width() for bar in ax.patches) < ax.get_xlim()[1]


def test_a_comparison_says_what_its_numbers_are():
    counts, radii, _, _ = comparison().axes
    assert counts.get_xlabel() == radii.get_xlabel() == "radius (l∞)"
    assert "survived" in counts.get_title()
    assert "broken at" in radii.get_title()
    texts = {text.get_text() for text in radii.texts}
    assert {"none proved", "1e-3"} <= texts
    assert comparison(norm="").axes[0].get_xlabel() == "radius"


def test_both_sides_of_an_input_are_shown_even_where_one_is_missing():
    line = InputLine("digit 0", 0, 0, None, None, "done", 4e-3, 3e-2, 1.0, "bounded", "real")
    lines = [line, dataclasses.replace(line, certified=0.0), dataclasses.replace(line, attacked=math.inf),
             dataclasses.replace(line, status="misclassified")]  # fmt: skip
    figure = inputs_figure(lines, "digits", "2")
    (ax,) = figure.axes
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "largest proved", "none proved", "smallest broken", "none broken",
    ]  # fmt: skip
    assert sum(len(dots.get_offsets()) for dots in ax.collections) == 6
    assert "1 misclassified, left out" in ax.get_title(loc="left")
    assert ax.get_xlabel() == "radius (l2)"
    alone = inputs_figure([dataclasses.replace(line, attacked=None)], "digits", "2")
    assert [text.get_text() for text in alone.legends[0].get_texts()] == ["largest proved"]


def test_tokens_are_named_by_what_they_spell_in_the_order_of_the_text():
    line = InputLine("text", 0, 0, (0,), ("a",), "done", 4e-3, 3e-2, 1.0, "bounded", "real")
    lines = [line, dataclasses.replace(line, positions=(1,), tokens=(" $good$",), certified=2e-3),
             dataclasses.replace(line, positions=(2,), tokens=(" film",), certified=3e-3)]  # fmt: skip
    names = [text.get_text() for text in inputs_figure(lines, "texts", "2").axes[0].get_yticklabels()]
    assert names[::-1] == ["'a' (0)", r"' \$good\$' (1)", "' film' (2)"]  # the first on top
    named = [dataclasses.replace(one, name=f"line {k}") for k, one in enumerate(lines)]
    names = [text.get_text() for text in inputs_figure(named, "texts", "2").axes[0].get_yticklabels()]
    assert names[-1] == "line 0: 'a' (0)"  # the largest radius
    assert dataclasses.replace(line, positions=(1, 4), tokens=None).moved == "positions 1, 4"
    assert dataclasses.replace(line, positions=(1,), tokens=None).moved == "position 1"
    assert dataclasses.replace(line, positions=None, tokens=None).moved == ""
    long = dataclasses.replace(line, tokens=("a" * 99,))
    (name,) = [text.get_text() for text in inputs_figure([long], "texts", "2").axes[0].get_yticklabels()]
    assert len(name) == 40


# Accuracy.


def accuracy_line(**changes):
    fields = dict(radius=1e-3, examples=20, clean=19, certified=9, survived=14, unknown=5, seconds=0.1,
                  guarantee="bounded", arithmetic="real")  # fmt: skip
    return AccuracyLine(**(fields | changes))


def test_the_parts_of_an_accuracy_bar_are_all_examples():
    lines = [accuracy_line(), accuracy_line(radius=1e-2, certified=0, survived=3)]
    found = {name: counts for name, _, counts in parts(lines)}
    assert list(found.values()) == [[9, 0], [5, 3], [5, 16], [1, 1]]
    assert "not broken by the attack" in list(found)[1]
    plain = parts([accuracy_line(clean=None, survived=None)])
    assert [(name, counts) for name, _, counts in plain] == [("certified (proved)", [9]), ("not proved", [11])]


def test_the_bars_of_an_accuracy_picture_do_not_overlap():
    figure = accuracy_figure([accuracy_line(), accuracy_line(radius=1e-2, certified=0, survived=3)], "digits", "inf")
    (ax,) = figure.axes
    for x in (0, 1):
        bars = [bar for bar in ax.patches if abs(bar.get_x() + bar.get_width() / 2 - x) < 1e-9]
        ends = [(bar.get_y(), bar.get_y() + bar.get_height()) for bar in bars]
        assert all(one[1] == pytest.approx(other[0]) for one, other in itertools.pairwise(ends))
        assert ends[-1][1] == pytest.approx(100)
    (legend,) = figure.legends
    handles = {handle.get_facecolor() for handle in legend.get_patches()}
    assert handles == {bar.get_facecolor() for bar in ax.patches}
    assert len(handles) == 4
    assert ax.get_xlabel() == "radius (l∞)"


# The demonstration.


def result(method, margin):
    entries = (LedgerEntry(0, "input", "input", 0.5), LedgerEntry(1, "attention", "softmax", 0.25),
               LedgerEntry(2, "head", "rounding", 1e-12))  # fmt: skip
    return Result(
        status="verified" if margin > 0 else "unknown", margins=torch.tensor([margin], dtype=torch.float64), reason="",
        method=method, radius=None, label=0, seconds=0.1, peak_bytes=0, dtype="float64", device="cpu",
        ledger=Ledger(entries),
    )  # fmt: skip


def small_study():
    """Two digits; every method proves the first radius and E four of five."""
    results = {}
    for k, method in enumerate(study.METHODS):
        for j, radius in enumerate(study.RADII if method == "E" else study.RADII[:2]):
            failed = j == (4 if method == "E" else 1)
            for digit in (0, 1):
                results[method, radius, digit] = result(method, -5.0 if failed else 9.0 - 0.1 * (j + k))
    return study.Study(torch.zeros(2, 28, 28), torch.tensor([3, 7]), results, (10.0, 10.0), (3.29e-3, 0.0))


def test_the_demo_shows_searched_radii():
    figure = figures.study_figure(small_study())
    texts = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert "3.29e-3" in texts
    assert "none" in texts
    titles = " ".join(part.get_suptitle() for part in figure.subfigs)
    assert "largest radius (l∞) that E proves, found to 2%" in titles
    bars = [bar for ax in figure.axes[:4] for bar in ax.patches if bar.get_facecolor()[3] == 1]
    assert [bar.get_width() for bar in bars] == [1.0, 0.0]


def test_a_colour_of_the_demo_is_a_method():
    figure = figures.study_figure(small_study())
    *_, counts, losses, ledger = figure.axes
    lines = {line.get_color(): line for line in losses.lines[: len(figures.SHOWN)]}
    assert list(lines) == [method_colour(method) for method in figures.SHOWN]
    assert {text.get_text() for text in losses.texts} >= set(figures.SHOWN)
    methods = {tuple(colors.to_rgb(method_colour(method))) for method in figures.SHOWN}
    assert {bar.get_facecolor()[:3] for bar in counts.patches} == methods
    assert {bar.get_facecolor()[:3] for bar in ledger.patches} == {colors.to_rgb(method_colour("E"))}
    assert counts.get_xlabel() == losses.get_xlabel() == "radius (l∞)"


def test_the_axes_of_the_demo_hold_all_that_is_lost():
    figure = figures.study_figure(small_study())
    *_, losses, ledger = figure.axes
    (left, right), (low, high) = losses.get_xlim(), losses.get_ylim()
    for line in losses.lines[: len(figures.SHOWN)]:
        assert all(left < x < right for x in line.get_xdata())
        assert all(low < y < high for y in line.get_ydata())
    assert [label.get_text() for label in ledger.get_yticklabels()] == ["input", "attention 1: softmax", "rounding"]
    assert ledger.get_xlim()[0] == 0
    assert ledger.get_xlim()[1] > 0.5


def test_sets_of_the_worked_example_lie_above_their_samples():
    figure = example_figure()
    panels = [ax for ax in figure.axes if ax.collections]
    assert len(panels) == 8
    for ax in panels:
        assert min(line.get_zorder() for line in ax.lines) > max(dots.get_zorder() for dots in ax.collections)
    intervals = figure.axes[-1]
    low, high = intervals.get_xlim()
    assert all(low < bar.get_x() and bar.get_x() + bar.get_width() < high for bar in intervals.patches)


@pytest.mark.parametrize(("radius", "method"), [(1e-6, "E"), (0.5, "E"), (1e-6, "A")])
def test_a_result_draws_its_margins_and_losses(radius, method):
    model = zonogpt.load(image_model())
    result = zonogpt.verify(model, zonogpt.image_ball(model, torch.full((6, 4), 0.5), radius), method=method)
    figure = result.plot()
    bars = [bar.get_width() for bar in figure.axes[0].patches]
    assert bars == pytest.approx(sorted(result.margins.tolist()))
    rivals = [int(label.get_text()) for label in figure.axes[0].get_yticklabels()]
    assert sorted([*rivals, result.label]) == [0, 1, 2]
    assert len(figure.axes) == (2 if method == "E" else 1)
    if method == "E":
        lost = sum(bar.get_width() for bar in figure.axes[1].patches)
        assert lost == pytest.approx(sum(entry.width for entry in result.ledger.entries))


def test_a_falsified_image_shows_its_counterexample():
    """Its margins are no bounds, and would be an empty picture."""
    model = zonogpt.load("zoo:digits")
    images, _ = zonogpt.zoo.samples("digits")
    result = zonogpt.verify(model, zonogpt.image_ball(model, images[0], 0.05), attack=True)
    (ax,) = result.plot().axes
    (shown,) = ax.images
    assert torch.equal(torch.from_numpy(shown.get_array().data), result.counterexample)
    assert f"answers with {result.answer}" in ax.get_title(loc="left")
    assert "-inf" not in result._repr_html_()


def test_a_text_draws_rivals_by_name_and_no_formulas(tmp_path):
    labels = {0: "bad", 1: "$good$", 2: "so so"}
    model = zonogpt.load(
        save_named_model(tmp_path, pad_token_id=329, id2label=labels, label2id={v: k for k, v in labels.items()})
    )
    text = zonogpt.text(model, "a good film")
    proved = zonogpt.verify(model, zonogpt.embedding_ball(model, text, "last", 1e-7))
    figure = proved.plot()
    names = {label.get_text().replace("\\", "") for label in figure.axes[0].get_yticklabels()}
    assert names == set(labels.values()) - {proved.label_name}
    assert "l∞ radius 1e-07" in figure._suptitle.get_text()
    broken = zonogpt.verify(model, zonogpt.embedding_ball(model, text, "all", 1.0, (proved.label + 1) % 3))
    (ax,) = broken.plot().axes
    assert "already breaks the claim" in ax.texts[0].get_text().replace("\n", " ")
    figure.savefig(tmp_path / "drawn.png")
    broken.plot().savefig(tmp_path / "broken.png")  # dollars are no formula


def test_studies_draw_themselves_and_are_tables_in_notebooks():
    model = zonogpt.load("zoo:digits")
    data = zonogpt.open_dataset("zoo:digits", model)
    certified = zonogpt.certify(model, data, [1e-4], count=1, attack=False)
    compared = zonogpt.compare(model, data, ("E", "attack"), count=1, grid=[1e-4], tolerance=1.0)
    for whole, words in ((certified, ("certified",)), (compared, ("mean radius", "at 0.0001", "attack"))):
        assert whole.plot().axes
        page = whole._repr_html_()
        assert page.startswith("<table")
        assert page.endswith("</table>")
        assert all(word in page for word in words)
        assert repr(whole).count("\n") == 0
        assert len(repr(whole)) < 300


def test_notebooks_see_what_moves_and_nothing_else_than_text(tmp_path):
    """A token, a label or a path may hold markup, which is shown and not interpreted."""
    labels = {0: "<b>bad</b>", 1: "good", 2: "so so"}
    model = zonogpt.load(
        save_named_model(tmp_path, pad_token_id=329, id2label=labels, label2id={v: k for k, v in labels.items()})
    )
    text = zonogpt.text(model, "a <i>good</i> film")
    result = zonogpt.verify(model, zonogpt.embedding_ball(model, text, text.at("good"), 1e-7, 0))
    page = result._repr_html_()
    assert "<mark>good</mark>" in page
    assert "<i>" not in page
    assert "&lt;b&gt;bad&lt;/b&gt;" in page
    images = zonogpt.load(image_model())
    picture = zonogpt.verify(images, zonogpt.image_ball(images, torch.full((6, 4), 0.5), 1e-6))
    assert "<mark>" not in picture._repr_html_()
