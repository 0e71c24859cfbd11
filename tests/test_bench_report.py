"""The report of the benchmark: its numbers, what it refuses, and the page in a real browser."""

import csv
import dataclasses
import io
import json
import math
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config

import zonogpt
from bench_rows import IMAGE, MODEL, NASTY, instance_of, row, text_row, whole_model, write_benchmark, write_rows
from zonogpt.errors import OptionError, SpecError, UnsoundError
from zonogpt_apps.bench.grid import PAPER_MODELS, RADII, ModelId
from zonogpt_apps.bench.instances import Benchmark
from zonogpt_apps.bench.report import figures, paper, tables, words
from zonogpt_apps.bench.report.build import build_report
from zonogpt_apps.bench.report.commands import commands
from zonogpt_apps.bench.report.hardest import SHOWN, hardest
from zonogpt_apps.bench.report.inline import inline
from zonogpt_apps.bench.report.inputs import Input, Piece, pieces, tokens_of
from zonogpt_apps.bench.report.markdown import table
from zonogpt_apps.bench.report.page import in_script
from zonogpt_apps.bench.report.reading import Loaded, load_rows
from zonogpt_apps.bench.report.sheets import all_sheets, headlines
from zonogpt_apps.bench.report.summary import summarise
from zonogpt_apps.bench.rows import BenchSettings

DEEP = ModelId("mnist", "small", 4)
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def test_the_papers_columns_add_up_to_its_totals():
    for method in paper.METHODS:
        cells = [paper.RESULTS[model, method] for model in PAPER_MODELS]
        assert sum(cell.solved for cell in cells) == paper.TOTALS[method].solved
        # Every printed time is rounded to a tenth, so that D's column is 0.2 off its total.
        assert sum(cell.seconds for cell in cells) == pytest.approx(paper.TOTALS[method].seconds, abs=0.25)
    assert {model for model, _ in paper.RESULTS} == set(PAPER_MODELS)
    assert sum(group.instances for group in paper.GROUPS) == 2880 == 16 * paper.INSTANCES


def test_counts_of_a_model():
    rows = [
        row(instance="1-0", seconds=1.0),
        row(instance="1-1", seconds=2.0, status="falsified"),
        row(instance="1-2", seconds=3.0, status="unknown"),
        row(instance="1-3", seconds=4.0, status="timeout", relative_radius=1e-2),
        row(instance="1-1", method="A", seconds=9.0),
    ]
    (line,) = tables.by_model(rows)
    ours, theirs = line.cells
    assert ours.count == tables.Count(run=4, proved=1, falsified=1, unknown=1, timeout=1, seconds=10.0)
    assert not ours.whole
    assert ours.paper is None
    assert theirs.paper == paper.Solved(144, 1507.2)
    assert theirs.ours == tables.Count(run=1, proved=0, falsified=1, unknown=0, timeout=0, seconds=2.0)
    assert line.relative_radius == (1e-4, 1e-2)
    assert not line.fallback


def test_a_proof_that_meets_a_counterexample_is_unsound():
    broken = row(method="A", radius=1e-4, status="falsified")
    tables.check_sound([row(radius=5e-5), broken, row(radius=1e-3, instance="2-0")])
    for radius in (1e-4, 1e-3):
        with pytest.raises(UnsoundError, match="mnist-small-2, instance 1-0 is certified by E"):
            tables.check_sound([row(radius=radius), broken])


def test_the_fallback_loss_is_marked_for_texts_only():
    lines = tables.by_model([row(), text_row(training="cross-entropy")])
    assert [line.fallback for line in lines] == [False, True]


def test_totals_are_over_what_was_run():
    rows = [*whole_model(), *whole_model(DEEP), row(method="A", seconds=50.0), row(method="A", instance="2-0")]
    ours, theirs = tables.totals(rows, tables.by_model(rows))
    assert (ours.method, ours.models, ours.whole, ours.complete) == ("E", 2, 2, False)
    assert (ours.count.run, ours.count.proved) == (360, 216)
    assert (theirs.count.proved, theirs.ours.proved, theirs.ours.seconds) == (2, 2, 4.0)
    assert (theirs.whole, theirs.models) == (0, 1)


def test_only_a_whole_paper_is_complete():
    rows = [one for model in PAPER_MODELS for one in whole_model(model)]
    (total,) = tables.totals(rows, tables.by_model(rows))
    assert total.complete


def test_speed_is_of_whole_models_only():
    rows = [*whole_model(device="GPU"), *whole_model(DEEP)[1:]]
    speed = tables.speed(rows, tables.by_model(rows))
    assert speed.models == (MODEL,)
    assert (speed.proved, speed.instances, speed.seconds) == (108, 180, 360.0)
    assert speed.paper == paper.Solved(144, 1507.2)
    assert speed.devices == ("GPU",)
    assert speed.ratio == pytest.approx(1507.2 / 360)
    assert tables.speed(rows[180:], tables.by_model(rows[180:])) is None


def test_sums_of_a_task_and_of_all_stand_below_the_models(tmp_path):
    texts = [text_row(radius=radius, instance=f"{k}-1") for k in range(36) for radius in RADII]
    rows = [*whole_model(), *texts, text_row(blocks=4, status="unknown"), row(method="A")]
    lines = tables.by_model(rows)
    images, sentences, both = (tables.ours(rows, lines, task) for task in ("mnist", "sst", None))
    assert (images.models, images.count.proved, images.count.run, images.all_whole) == (1, 108, 180, True)
    assert (sentences.models, sentences.count.proved, sentences.count.run) == (2, 180, 181)
    assert (both.models, both.count.proved, both.count.run) == (3, 288, 361)
    assert images.speed.paper == paper.Solved(144, 1507.2)
    assert (sentences.all_whole, both.all_whole) == (False, False)  # the paper's sums would be over other models
    assert tables.ours([row(method="A")], lines) is None
    shown = [[value.text for value in total] for total in all_sheets(summarise(loaded(rows, tmp_path)))["ours"].totals]
    assert [total[0] for total in shown] == ["All 1 of MNIST", "All 2 of SST-2", "All 3"]
    assert [total[4] for total in shown] == ["144", words.NOTHING, words.NOTHING]


def test_a_model_with_other_radii_is_not_whole():
    rows = [dataclasses.replace(one, radius=one.radius * 2) for one in whole_model()]
    assert not tables.is_whole(rows)
    assert tables.is_whole(whole_model())


def test_proved_at_each_radius():
    rows = [row(method="A", radius=1e-4), row(method="A", radius=5e-4, status="unknown"),
            text_row(method="A", radius=1e-4), row(radius=1e-4)]  # fmt: skip
    lines = {(line.method, line.task): line for line in tables.by_radius(rows)}
    assert set(lines) == {("A", None), ("E", None), ("A", "mnist"), ("E", "mnist"), ("A", "sst")}
    assert lines["A", None].proved == (2, 0)
    assert lines["A", None].run == (2, 1)
    assert lines["A", None].paper == (305, 68)
    assert lines["A", "mnist"].paper == (None, None)
    assert lines["E", None].run == (1, 0)


def test_runtime_quartiles():
    rows = [row(instance=str(k), seconds=float(k)) for k in (1, 2, 3, 4, 9)]
    assert tables.runtimes(rows) == (tables.Runtime("E", 5, 1.0, 2.0, 3.0, 4.0, 9.0),)


def test_certified_radius_is_the_largest_proved():
    rows = [
        row(instance="a", radius=1e-5, status="unknown"), row(instance="a", radius=1e-4),
        row(instance="b", radius=1e-5), row(instance="b", radius=1e-4, status="unknown"),
        row(instance="c", radius=1e-5, status="unknown"),
    ]  # fmt: skip
    (line,) = tables.certified_radii(rows)
    assert (line.instances, line.none, line.at_top) == (3, 1, 1)
    assert line.radius == pytest.approx(math.sqrt(1e-4 * 1e-5))


def test_a_mean_over_part_of_the_instances_is_hollow(tmp_path):
    rows = [row(instance="1-0"), row(instance="2-0", status="unknown", margin=-1.0), row(model=DEEP)]
    figure = figures.depth(summarise(loaded(rows, tmp_path)))
    (ax,) = figure.axes
    hollow = [line for line in ax.lines if line.get_markerfacecolor() == ax.get_facecolor()]
    assert [list(line.get_xdata()) for line in hollow] == [[MODEL.blocks]]


def test_shares_of_blocks_are_means_of_shares():
    rows = [
        row(instance="a", radius=1e-4, ledger={"0": 3.0, "1": 1.0}),
        row(instance="b", radius=1e-4, input="inputs/mnist-2.png", ledger={"0": 1.0, "1": 0.0, "2": 1.0}),
        row(instance="d", radius=1e-4, ledger={"0": 3.0, "1": 1.0}),  # a resumed run kept the ledger of "a" again
        row(instance="c", radius=1e-4),
        row(instance="a", radius=1e-5, ledger={"0": 9.0}),
    ]
    (line,) = tables.block_shares(rows)
    assert line.radius == 1e-4
    assert line.propagations == 2
    assert line.shares == pytest.approx((0.625, 0.125, 0.25))
    assert line.taken == pytest.approx(3.0)


def test_hardest_comes_first_and_every_input_once():
    rows = [
        row(instance="1-0", input="one", status="unknown", margin=-0.5),
        row(instance="1-1", input="one", status="unknown", margin=-2.0),
        row(instance="2-0", input="two", margin=0.1),
        row(instance="2-0", input="two", radius=1e-3, margin=0.01),
        row(instance="3-0", input="three", margin=5.0),
        row(instance="4-0", input="four", method="A", status="unknown", margin=-9.0),
    ]
    found = hardest(rows)
    assert [(hard.row.instance, hard.largest) for hard in found] == [("1-1", 0.0), ("3-0", 1e-5), ("2-0", 1e-3)]
    assert found[2].row.radius == 1e-5


def test_hardest_fills_up_from_the_other_task():
    images = [row(instance=f"{k}-0", input=f"m{k}", margin=float(k)) for k in range(20)]
    texts = [text_row(instance=f"{k}-1", input=f"s{k}", margin=100.0) for k in range(2)]
    found = hardest([*images, *texts])
    assert len(found) == SHOWN
    assert sum(hard.row.task == "sst" for hard in found) == 2


def test_moved_tokens_are_marked_where_they_are_known():
    assert tokens_of("a b c", 3) == ("a", " b", " c")
    assert tokens_of("a bcd", 3) is None
    assert tokens_of("a bcd", 3, ["a", " b", "cd"]) == ("a", " b", "cd")
    assert tokens_of("a bcd", 3, ["a", " x", "cd"]) is None
    shown = Input(text="a bcd", tokens=("a", " b", "cd"), n_tokens=3)
    assert pieces(shown, [1]) == (Piece("a", False), Piece(" ", False), Piece("b", True), Piece("cd", False))


def loaded(rows, tmp_path) -> Loaded:
    return load_rows(write_rows(tmp_path / "rows", rows), write_benchmark(tmp_path / "instances", rows))


def test_rows_come_in_the_same_order_however_they_were_written(tmp_path):
    rows = [*whole_model(), text_row(), row(method="A")]
    there = loaded(rows, tmp_path).rows
    assert len(there) == len(rows)
    write_rows(tmp_path / "rows", rows[::-1])
    assert load_rows(tmp_path / "rows", tmp_path / "instances").rows == there


def refused(folder, rows_by_file, instances, *parts):
    for name, rows in rows_by_file.items():
        write_rows(folder, rows, name)
    with pytest.raises(OptionError) as error:
        load_rows(folder, instances)
    for part in (*rows_by_file, *parts):
        assert part in str(error.value)


def test_other_weights_are_refused(tmp_path):
    instances = write_benchmark(tmp_path / "i", [row(instance="other")])
    both = {"one.jsonl": [row()], "two.jsonl": [row(instance="1-1", model_hash="b" * 64)]}
    refused(tmp_path / "rows", both, instances, "mnist-small-2", "different weights")


def test_a_row_twice_is_refused(tmp_path):
    instances = write_benchmark(tmp_path / "i", [row()])
    refused(tmp_path / "rows", {"one.jsonl": [row()], "two.jsonl": [row(seconds=1.0)]}, instances, "two rows", "1-0")


@pytest.mark.parametrize(
    "change",
    [{"input_hash": "0"}, {"model_hash": "0"}, {"claim": "7 > 1"}, {"positions": [2]}, {"training": "magic"}],
)
def test_rows_of_other_instances_are_refused(tmp_path, change):
    instances = write_benchmark(tmp_path / "i", [row()])
    refused(tmp_path / "rows", {"one.jsonl": [row(**change)]}, instances, next(iter(change)))


def test_rows_that_are_about_no_instance_are_refused(tmp_path):
    instances = write_benchmark(tmp_path / "i", [row()])
    strange = {"one.jsonl": [row(radius=1.0000001e-5)]}
    refused(tmp_path / "rows", strange, instances, "none of the instances")


@pytest.mark.parametrize("change", [{"margin": -3.0}, {"margin": 0.0}, {"status": "proved"}])
def test_verdicts_that_no_run_writes_are_refused(tmp_path, change):
    instances = write_benchmark(tmp_path / "i", [row()])
    refused(tmp_path / "rows", {"one.jsonl": [row(**change)]}, instances, "which no run writes")


def test_rows_of_other_settings_are_refused(tmp_path):
    instances = write_benchmark(tmp_path / "i", [row(), row(instance="1-1")])
    both = {"one.jsonl": [row()], "two.jsonl": [row(instance="1-1", settings="other")]}
    refused(tmp_path / "rows", both, instances, "different settings")
    said = BenchSettings("float64", 60.0, None, None, "0.1.0")
    folder = write_rows(tmp_path / "one", [row(settings=said.digest)])
    (folder / "settings.json").write_text(json.dumps(dataclasses.asdict(said)))
    assert load_rows(folder, instances).settings["timeout"] == 60.0
    (folder / "settings.json").write_text(json.dumps(dataclasses.asdict(dataclasses.replace(said, timeout=5.0))))
    with pytest.raises(OptionError, match="not of the settings"):
        load_rows(folder, instances)
    (folder / "settings.json").write_text('{"dtype": "float64"}')
    with pytest.raises(OptionError, match="not of a benchmark"):
        load_rows(folder, instances)


def test_damaged_and_unfinished_lines_are_refused(tmp_path):
    instances = write_benchmark(tmp_path / "i", [row()])
    folder = write_rows(tmp_path / "rows", [row(), row(instance="1-1")])
    file = folder / "rows.jsonl"
    good = file.read_text()
    file.write_text("{}\n" + good)
    with pytest.raises(OptionError, match=r"rows\.jsonl, line 1 is damaged"):
        load_rows(folder, instances)
    file.write_text(good[:-9])
    with pytest.raises(OptionError, match=r"rows\.jsonl ends in the middle"):
        load_rows(folder, instances)
    file.write_text(good + "\0\0\0\n")
    with pytest.raises(OptionError, match=r"rows\.jsonl ends in the middle"):
        load_rows(folder, instances)
    write_rows(folder, [row(size="huge")])
    with pytest.raises(OptionError, match="unknown model"):
        load_rows(folder, instances)


def test_no_rows_and_no_instances_are_refused(tmp_path):
    instances = write_benchmark(tmp_path / "i", [row()])
    with pytest.raises(OptionError, match="has no rows"):
        load_rows(tmp_path / "nowhere", instances)
    with pytest.raises(SpecError):
        load_rows(write_rows(tmp_path / "rows", [row()]), tmp_path / "nowhere")


def test_a_subset_is_never_compared_with_the_paper(tmp_path):
    summary = summarise(loaded([*whole_model()[:-1], row(method="A")], tmp_path))
    sheets, heads = all_sheets(summary), headlines(summary)
    values = dict(zip(sheets["ours"].columns, [value.text for value in sheets["ours"].rows[0]], strict=True))
    assert values["Proved of run"] == "108 of 179"
    assert values["Faster"] == words.NOTHING
    assert heads[0].number == "108 of 179"
    assert "1,339" not in " ".join(head.note for head in heads)
    assert "0 of 1 (subset)" in table(sheets["methods"])


def test_headlines_compare_whole_models_only(tmp_path):
    summary = summarise(loaded([*whole_model(), row(model=DEEP)], tmp_path))
    heads = headlines(summary)
    assert heads[0].number == "108 of 180"
    assert "144 of 180" in heads[0].note
    assert "109 of 181" in heads[0].note
    assert heads[2].number == words.ratio(1507.2 / 360)


def test_commands_say_how_much_was_run(tmp_path):
    rows = [row(instance="1-0"), row(instance="2-0", input="inputs/mnist-2.png"), row(method="A")]
    said = commands(summarise(loaded(rows, tmp_path))).splitlines()
    assert "--inputs" not in said[2]
    assert "--methods A --inputs 1" in said[3]


def test_rows_without_e_still_make_a_report(tmp_path):
    rows = [row(method="ibp", status="unknown", margin=-math.inf)]
    write_rows(tmp_path / "rows", rows)
    built = build_report(tmp_path / "rows", write_benchmark(tmp_path / "i", rows), tmp_path / "out")
    assert "none of them of method E" in built.html.read_text()
    assert not (tmp_path / "out" / "figures" / "ledger.svg").exists()


def test_the_end_of_a_script_is_never_inside_it():
    assert "<" not in in_script({"text": NASTY, "comment": "<!--"})
    assert json.loads(in_script([NASTY])) == [NASTY]


def all_rows():
    ledger = {str(k): 1.0 / (k + 1) for k in range(6)}
    return [
        *whole_model(), *whole_model(DEEP, proved_up_to=1e-5, ledger=ledger),
        *whole_model(method="ibp", proved_up_to=0), text_row(ledger=ledger),
        text_row(radius=1e-3, status="falsified", reason=f'{NASTY}, "quoted",\nbroken', margin=-math.inf),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    rows = write_rows(folder / "rows", all_rows())
    return build_report(rows, write_benchmark(folder / "instances", all_rows()), folder / "out")


def test_same_rows_same_bytes(report, tmp_path):
    again = build_report(report.html.parent.parent / "rows", report.html.parent.parent / "instances", tmp_path / "out")
    for one, other in zip([report.html, report.markdown, *report.figures],
                          [again.html, again.markdown, *again.figures], strict=True):  # fmt: skip
        assert one.read_bytes() == other.read_bytes(), one.name
    assert {file.suffix for file in report.figures} == {".svg", ".png"}
    assert len(report.figures) == 10


def test_sentences_stay_text(report):
    html, markdown = report.html.read_text(), report.markdown.read_text()
    assert NASTY not in html
    assert "<b>film" not in html
    assert "<b>film" not in markdown
    assert "<mark>&lt;/script&gt;&lt;b&gt;film&lt;/b&gt;</mark>" in html
    assert str(report.html.parent) not in html + markdown


def test_links_of_the_markdown_lead_somewhere(report):
    for name in ("solved", "runtime", "cactus", "depth", "ledger"):
        assert f"(figures/{name}.svg)" in report.markdown.read_text()
        assert (report.html.parent / "figures" / f"{name}.svg").is_file()


def test_instances_and_rows_agree_about_the_helper(tmp_path):
    benchmark = Benchmark.read(write_benchmark(tmp_path, [text_row()]))
    assert benchmark.instances == (instance_of(text_row()),)
    assert benchmark.read_input(benchmark.instances[0])[1] == NASTY


BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chromium-browser"))), None)
QUIET = ["--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--no-first-run"]  # fmt: skip


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    if BROWSER is None:
        missing = "no Chromium or Chrome is installed: the page was not opened"
        if os.environ.get("CI"):  # in CI, the page must have been opened
            pytest.fail(missing)
        pytest.skip(missing)
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=BROWSER, args=QUIET)
        yield found
        found.close()


@pytest.fixture
def page(browser, report):
    yield from opened_page(browser, report.html)


@pytest.fixture
def dark_page(browser, report):
    yield from opened_page(browser, report.html, color_scheme="dark")


@pytest.fixture
def committed_page(browser, committed):
    yield from opened_page(browser, committed.html)


def opened_page(browser, file, **options):
    """The open page; at the end, it must have raised no error and sent no request."""
    opened = browser.new_page(viewport={"width": 1280, "height": 800}, **options)
    complaints, requests = [], []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda request: requests.append(request.url))
    opened.goto(file.as_uri())
    yield opened
    assert complaints == []
    assert [url for url in requests if url != file.as_uri() and not url.startswith(("data:", "blob:"))] == []
    opened.close()


def column(page, sheet, k):
    return page.locator(f"{sheet} tbody tr td:nth-child({k})").all_inner_texts()


def test_tables_sort_by_click_and_by_key(page):
    heading = page.locator("#ours th", has_text="Proved of run")
    assert column(page, "#ours", 2) == ["108 of 180", "36 of 180", "1 of 2"]
    heading.locator("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column(page, "#ours", 2) == ["1 of 2", "36 of 180", "108 of 180"]
    heading.locator("button").press("Enter")
    assert heading.get_attribute("aria-sort") == "descending"
    assert column(page, "#ours", 2) == ["108 of 180", "36 of 180", "1 of 2"]
    assert page.locator("#ours th[aria-sort=none]").count() == page.locator("#ours th").count() - 1


def test_empty_values_sort_last(page):
    heading = page.locator("#ours th", has_text="Faster").locator("button")
    for _ in range(2):
        heading.click()
        assert column(page, "#ours", 7)[-1] == words.NOTHING


def matches(page):
    return int(page.locator("#matches").inner_text().split(" of ")[0].replace(",", ""))


def test_filters_narrow_the_rows(page):
    rows = all_rows()
    assert matches(page) == len(rows) == 542
    page.select_option("[name=method]", "E")
    assert matches(page) == sum(one.method == "E" for one in rows)
    page.select_option("[name=radius]", label="5e-5")
    page.select_option("[name=blocks]", "4")
    assert matches(page) == 36
    page.select_option("[name=status]", label="proved")
    assert matches(page) == 0
    page.click("button[type=reset]")
    page.wait_for_function("document.getElementById('matches').textContent.startsWith('542')")
    page.fill("[name=text]", "SCRIPT><b> film")
    assert matches(page) == 2
    page.select_option("[name=task]", "mnist")
    assert matches(page) == 0


def test_more_rows_are_shown_on_demand(page):
    assert page.locator("#rows tbody tr").count() == 100
    page.click("#more")
    assert page.locator("#rows tbody tr").count() == 200
    page.select_option("[name=task]", "sst")
    assert page.locator("#rows tbody tr").count() == 2
    assert page.locator("#more").is_hidden()


def test_all_rows_sort_before_they_are_cut(page):
    button = page.locator("#rows th", has_text="Radius").locator("button")
    button.click()
    button.click()
    assert set(column(page, "#rows", 5)) == {"1e-3"}
    page.locator("#rows th", has_text="Margin").locator("button").click()
    assert column(page, "#rows", 7)[0] == "none"


def test_a_row_opens_with_its_input(page):
    page.select_option("[name=task]", "sst")
    first = page.locator("#rows tbody tr").first
    first.locator("summary").click()
    assert first.locator("mark").inner_text() == NASTY.split()[1]
    assert first.locator("blockquote").inner_text() == NASTY
    page.select_option("[name=task]", "mnist")
    page.locator("#rows summary").first.click()
    assert page.locator("#rows img").first.evaluate("image => image.decode().then(() => image.naturalWidth)") == 28


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)])
def test_the_page_is_never_wider_than_the_screen(page, width, height):
    page.set_viewport_size({"width": width, "height": height})
    assert page.evaluate("document.documentElement.scrollWidth") == width
    for box in page.locator(".scroll").all():
        assert box.evaluate("box => box.getBoundingClientRect().right") <= width


def test_no_table_is_wider_than_its_box(committed_page):
    committed_page.set_viewport_size({"width": 1400, "height": 900})
    sizes = committed_page.locator("table").evaluate_all(
        "all => all.map(table => [table.closest('section').id, table.scrollWidth, table.parentElement.clientWidth])"
    )
    assert len(sizes) == 10
    assert [size for size in sizes if size[1] > size[2]] == []


# The contrast (WCAG 2) of every element with text of its own to the nearest background behind it.
CONTRASTS = """() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((c) => c / 255)
      .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const { backgroundColor } = getComputedStyle(at);
      if (!/^rgba.*, 0\\)$/.test(backgroundColor)) return backgroundColor;
    }
    return "rgb(255, 255, 255)";
  };
  return [...document.body.querySelectorAll("*:not(script, option)")]
    .filter((e) => [...e.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()))
    .map((e) => {
      const [a, b] = [getComputedStyle(e).color, behind(e)].map(light);
      return [e.tagName + " " + e.textContent.slice(0, 30), (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
    });
}"""


def test_text_can_be_read_in_the_light_and_in_the_dark(dark_page):
    for chosen, behind in (("", "rgb(20, 25, 30)"), ("light", "rgb(251, 250, 247)"), ("dark", "rgb(20, 25, 30)")):
        dark_page.select_option("#theme", chosen)
        assert dark_page.evaluate("getComputedStyle(document.body).backgroundColor") == behind
        found = dark_page.evaluate(CONTRASTS)
        assert len(found) > 500
        assert [one for one in found if one[1] < 4.5] == []


def test_the_chosen_theme_is_kept(dark_page):
    dark_page.select_option("#theme", "light")
    dark_page.reload()
    assert dark_page.locator("#theme").input_value() == "light"
    assert dark_page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(251, 250, 247)"


def test_all_rows_as_csv(page):
    with page.expect_download() as download:
        page.click("#csv")
    text = Path(download.value.path()).read_text(encoding="utf-8")
    assert download.value.suggested_filename == "rows.csv"
    rows = all_rows()
    assert len(text.splitlines()) == len(rows) + 1
    read = list(csv.DictReader(io.StringIO(text)))
    assert len(read) == len(rows)
    assert [row for row in read if None in row or None in row.values()] == []  # too many fields, or too few
    assert sum(row["method"] == "ibp" for row in read) == 180
    (nasty,) = [row for row in read if row["status"] == "falsified"]
    assert (nasty["task"], nasty["positions"], nasty["margin"], nasty["sentence"]) == ("sst", "1", "", NASTY)
    assert nasty["reason"] == f'{NASTY}, "quoted", broken'


def test_figures_are_shown(page):
    pictures = page.locator("figure svg")
    assert pictures.count() == 5
    assert min(box.bounding_box()["width"] for box in pictures.all()) > 300
    assert {box.get_attribute("role") for box in pictures.all()} == {"img"}
    assert len(RADII) == page.locator("[name=radius] option").count() - 1


def test_figures_follow_the_theme(page):
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(ids) == len(set(ids))
    background = "getComputedStyle(document.querySelector('figure svg path')).fill"
    assert page.evaluate(background) == "rgb(251, 250, 247)"
    page.select_option("#theme", "dark")
    assert page.evaluate(background) == "rgb(28, 35, 42)"
    assert not re.search(
        "#[0-9a-f]{6}", inline(b'<svg width="1pt" height="1pt"><path fill="#5b2a86"/></svg>', "a", "b")
    )
    with pytest.raises(KeyError, match="no dark twin"):
        inline(b'<svg><path style="fill: #123456"/></svg>', "name", "title")


@pytest.fixture(scope="module")
def committed(tmp_path_factory):
    """The report of the committed rows, built again."""
    return build_report(BENCHMARKS / "rows", BENCHMARKS / "instances", tmp_path_factory.mktemp("committed"))


def test_the_committed_report_is_what_the_committed_rows_give(committed):
    assert committed.markdown.read_text() == (BENCHMARKS / "report" / "report.md").read_text()
    assert without_pictures(committed.html) == without_pictures(BENCHMARKS / "report" / "report.html")


def without_pictures(page):
    """The parts of the page that do not depend on the version of matplotlib."""
    return re.sub("<svg.*?</svg>", "", page.read_text(), flags=re.DOTALL)


def test_instances_of_pictures_are_about_their_pixels_as_numbers_from_0_to_1(tmp_path):
    one = row(radius=0.5 / 255)
    benchmark = Benchmark.read(write_benchmark(tmp_path, [one]))
    config = GPT2Config(n_embd=4, n_head=1, n_layer=1, n_positions=28, vocab_size=1, num_labels=10)
    config.image_size, config.patch_size = (28, 28), (1, 28)
    spec = benchmark.spec(zonogpt.load(zonogpt.GPT2ForImageClassification(config).eval()), benchmark.instances[0])
    torch.testing.assert_close(spec.input.anchor * 255, IMAGE.double(), rtol=1e-6, atol=1e-6)
