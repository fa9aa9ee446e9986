"""The screens in a real browser: what they show, and what a click or a key does."""

import json
import re
import shlex
import shutil
import sys
import threading

import pytest

from shoal.training.catalogue import Catalogue, catalogue
from shoal.training.catalogue.lines import Columns
from shoal.ui.export import write_export
from tests.ui.conftest import NASTY
from tests.ui.folders import (
    REPLAY,
    append_lines,
    keep_scene,
    make_lines,
    make_pbt,
    make_population,
    make_run,
    make_sweep,
)
from tests.ui.gallery import COMPARED

_NAMES = "[...document.querySelectorAll('tr[data-name]')].map((row) => row.dataset.name)"


def _cells(page, name: str) -> dict[str, str]:
    row = f"document.querySelector(`tr[data-name={json.dumps(name)}]`)"
    return page.js(
        f"Object.fromEntries([...{row}.cells].map((cell) => [cell.className.match(/col-(\\w+)/)?.[1] ?? '', "
        "cell.textContent.trim()]))"
    )


def test_runs_are_listed(page):
    shown = page("#/runs", width=2000)
    assert set(shown.js(_NAMES)) >= {"spread_ippo_1", "spread_ippo_2", "spread_mappo_1", "tag_ippo_1", "broken", NASTY}
    cells = _cells(shown, "spread_ippo_2")
    assert (cells["env"], cells["num_seeds"], cells["env_steps"]) == ("mpe/simple_spread", "5", "96k")
    assert cells["last_return"].startswith("−")
    assert shown.js("document.querySelectorAll('tr[data-name=spread_ippo_2] svg.spark path').length") == 1
    assert "damaged or cut short" in _cells(shown, "broken")["name"]
    assert shown.js("document.title") == "Runs · Shoal"


def test_names_and_notes_are_text(page):
    shown = page("#/runs", width=2000)
    cells = _cells(shown, NASTY)
    assert "<b>bold</b>" in cells["tags"]
    assert "</script><script>window.hacked=1</script>" in cells["tags"]
    assert shown.js("[typeof window.hacked, document.images.length]") == ["undefined", 0]


def test_search_filter_sort_and_group_are_in_the_address(page):
    shown = page("#/runs")
    shown.key("/")
    assert shown.js("document.activeElement.id") == "search"
    shown.call("Input.insertText", text="mappo")
    shown.wait(f"({_NAMES}).join() === 'spread_mappo_1'")
    assert shown.js("location.hash") == "#/runs?q=mappo"
    shown = page("#/runs?env=mpe%2Fsimple_tag")
    assert shown.js(_NAMES) == ["tag_ippo_1"]
    shown = page("#/runs?sort=last_return&algorithm=mappo")
    assert shown.js("document.querySelector('[data-key=last_return]').getAttribute('aria-sort')") == "ascending"
    shown = page("#/runs?group=env&q=ippo")
    groups = shown.js("[...document.querySelectorAll('.group b')].map((each) => each.textContent)")
    assert groups == ["mpe/simple_spread", "mpe/simple_tag"]


def test_keys_move_choose_and_open(page):
    shown = page("#/runs?q=ippo&sort=name")
    shown.key("j")
    shown.key("j")
    assert shown.js("document.querySelector('tr.cursor').dataset.name") == "spread_ippo_2"
    shown.key("k")
    shown.key("x")
    assert shown.js("document.querySelector('tr.picked').dataset.name") == "spread_ippo_1"
    assert shown.js("document.querySelector('.chosen b').textContent") == "1 chosen"
    shown.key("?")
    assert "next run" in shown.js("document.querySelector('dialog').textContent")
    shown.js("document.querySelector('dialog').close()")
    shown.key("Enter")
    shown.wait("location.hash === '#/run/spread_ippo_1'")


def test_every_screen_of_the_navigation_has_a_key(page):
    shown = page("#/runs")
    screens = shown.js("[...document.querySelectorAll('#screens a')].map((each) => [each.dataset.screen, each.title])")
    assert len(screens) == 7
    for screen, title in screens:
        [(first, second)] = re.findall(r"\((\w) (\w)\)", title)
        shown.key(first)
        shown.key(second)
        shown.wait(f"document.querySelector('#screens [aria-current]')?.dataset.screen === {json.dumps(screen)}")
        shown.wait(f"Boolean(document.querySelector('#screen-{screen}'))")
    shown.key("?")
    told = shown.js("[...document.querySelectorAll('dialog dt')].map((each) => each.textContent)")
    assert {"gr", "gc", "gp", "gs", "gl", "ge", "gn"} <= set(told)


def test_tags_and_notes_are_kept(page, root):
    shown = page("#/runs?q=spread_ippo_2", width=2000)
    shown.key("j")
    shown.key("e")
    shown.wait("document.querySelector('dialog[open] input') === document.activeElement")
    shown.call("Input.insertText", text="strong, <i>x</i>")
    shown.js("document.querySelector('dialog form').requestSubmit()")
    shown.wait("!document.querySelector('dialog')")
    assert json.loads((root / "spread_ippo_2" / "notes.json").read_text())["tags"] == ["strong", "<i>x</i>"]
    assert _cells(shown, "spread_ippo_2")["tags"] == "strong<i>x</i>"
    (root / "spread_ippo_2" / "notes.json").unlink()


def test_the_focus_stays_while_runs_change(page, root):
    run = make_run(root / "changing", lines=4, total_lines=60)
    shown = page("#/runs?sort=name")
    shown.wait("Boolean(document.querySelector('tr[data-name=changing]'))")
    shown.js("document.querySelector('tr[data-name=changing] input').focus()")
    before = _cells(shown, "changing")["env_steps"]
    append_lines(run, make_lines(8, 60, 3, -30.0, 0, first=5))
    shown.wait(f"document.querySelector('tr[data-name=changing] .col-env_steps').textContent !== {json.dumps(before)}")
    assert shown.js("document.activeElement.closest('tr')?.dataset.name") == "changing"
    shutil.rmtree(run)
    shown.wait("!document.querySelector('tr[data-name=changing]')")


def test_tabs_and_menus_go_by_arrows(page):
    shown = page("#/run/spread_ippo_1")
    shown.js("document.querySelector('[role=tab]').focus()")
    shown.key("ArrowRight")
    assert shown.js("document.activeElement.textContent") == "Replay"
    assert "shoal watch" in shown.js("document.querySelector('.empty').textContent")
    shown = page("#/run/spread_ippo_1")
    shown.click(".chart .sign")
    shown.key("ArrowDown")
    assert shown.js("document.activeElement.textContent") == "PNG"
    shown.key("Escape")
    assert shown.js("document.querySelectorAll('.menu-home.open').length") == 0


def test_the_theme_can_be_turned(page):
    shown = page("#/runs")
    light = shown.js("getComputedStyle(document.body.parentElement).backgroundColor")
    shown.click("#theme")
    assert shown.js("getComputedStyle(document.body.parentElement).backgroundColor") != light
    shown = page("#/runs")
    assert shown.js("document.documentElement.dataset.theme") == "dark", "it is remembered"
    shown.key("t")
    assert shown.js("getComputedStyle(document.body.parentElement).backgroundColor") == light


def test_a_run_shows_its_curves(page):
    shown = page("#/run/spread_ippo_1")
    assert shown.js("document.querySelector('h1').textContent") == "spread_ippo_1"
    assert "mpe/simple_spread" in shown.js("document.querySelector('.facts').textContent")
    shown.wait("document.querySelectorAll('.charts.large .curve').length === 1")
    shown.wait("document.querySelectorAll('.charts.large .band').length === 1")
    titles = shown.js("[...document.querySelectorAll('.section > summary h2')].map((each) => each.textContent)")
    assert titles == ["Return", "World", "Losses", "Policy", "Other"]
    shown.wait("document.querySelectorAll('details[open] .curve').length === 3")
    shown.click("details:nth-of-type(3) > summary")
    shown.wait("document.querySelectorAll('details:nth-of-type(3) .curve').length === 3")


def test_seeds_are_drawn_as_asked(page):
    shown = page("#/run/spread_ippo_1?band=seeds&x=seconds")
    shown.wait("document.querySelectorAll('.charts.large .curve.thin').length === 3")
    axis = shown.js("[...document.querySelectorAll('.charts.large .axis')].map((each) => each.textContent)")
    assert any(":" in each for each in axis), "seconds are shown as minutes"
    rough = shown.js("document.querySelector('.charts.large .curve:not(.thin)').getAttribute('d')")
    shown.js(
        "const slider = document.querySelector('#smoothing'); slider.value = 80; "
        "slider.dispatchEvent(new Event('input'))"
    )
    shown.wait(f"document.querySelector('.charts.large .curve:not(.thin)').getAttribute('d') !== {json.dumps(rough)}")


def test_pointing_at_a_curve_tells_its_value(page):
    shown = page("#/run/spread_ippo_1")
    shown.wait("document.querySelectorAll('details[open] .curve').length === 3")
    x, y = shown.js(
        "(({x, y, width, height}) => [x + width - 20, y + height / 2])"
        "(document.querySelector('.plot').getBoundingClientRect())"
    )
    shown.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
    shown.wait("!document.querySelector('.tip').hidden")
    told = shown.js("document.querySelector('.tip').textContent")
    assert "steps" in told
    assert "−" in told
    assert shown.js("document.querySelectorAll('.marks .cursor').length") == 3, "all charts point together"


def test_new_lines_appear_by_themselves(page, root):
    run = make_run(root / "growing", lines=10, total_lines=60)
    shown = page("#/run/growing")
    shown.wait("document.querySelectorAll('.charts.large .curve').length === 1")
    before = shown.js("document.querySelector('.charts.large .curve').getAttribute('d').split('L').length")
    append_lines(run, make_lines(5, 60, 3, -30.0, 0, first=11))
    shown.wait(f"document.querySelector('.charts.large .curve').getAttribute('d').split('L').length === {before} + 5")
    shutil.rmtree(run)
    shown.wait("document.querySelector('.notice')?.textContent.includes('This run is gone')")


def test_episodes_along_the_curve_are_played(page, root):
    run = make_run(root / "watched", lines=20, total_lines=60)
    for update in (0, 10, 20):
        keep_scene(run, update)
    shown = page("#/run/watched?tab=replay")
    shown.js("window.said = 0; addEventListener('message', ({ data }) => { said += data.shoal === 'at'; }); undefined")
    shown.wait("document.querySelectorAll('.dots circle').length === 3")
    words = "document.querySelector('.travel output').textContent"
    shown.wait(f"{words} === 'newest · after 20 updates, 32k env steps · return of agent −60.00'")
    shown.wait("said > 0")
    shown.js("document.querySelector('#episode').focus()")
    shown.key(",")
    shown.wait(f"{words}.startsWith('2 of 3 · after 10 updates')")
    shown.wait("document.querySelector('.stage iframe')?.title === 'Episode after 10 updates'")
    assert shown.js("location.hash") == "#/run/watched?tab=replay&at=10"
    keep_scene(run, 22)
    append_lines(run, make_lines(2, 60, 3, -30.0, 0, first=21))
    shown.wait("document.querySelectorAll('.dots circle').length === 4")
    assert shown.js(words).startswith("2 of 4"), "who looks at an earlier one stays there"
    shown.key(".")
    shown.key(".")
    shown.wait(f"{words}.startsWith('newest · after 22 updates')")
    keep_scene(run, 24)
    append_lines(run, make_lines(2, 60, 3, -30.0, 0, first=23))
    shown.wait(f"{words}.startsWith('newest · after 24 updates')")
    shown.wait("document.querySelectorAll('.stage iframe:not(.behind)').length === 1")
    page("#/runs")
    shutil.rmtree(run)


@pytest.mark.parametrize(
    ("make", "label"), [(make_pbt, "member 4 (best)"), (make_sweep, "point 4 (best): learning_rate=0.001")]
)
def test_who_plays_of_many_that_train_side_by_side(page, root, make, label):
    run = make(root / "many", lines=20)
    keep_scene(run, 10, "<b>nobody</b>")
    keep_scene(run, 20, label)
    shown = page("#/run/many?tab=replay")
    words = "document.querySelector('.travel output').textContent"
    shown.wait(f"{words} === 'newest · after 20 updates, 32k env steps · {label} · return of agent −60.00'")
    shown.wait("document.querySelector('.stage iframe')?.title === 'Episode after 20 updates'")
    shown.key(",")
    shown.wait(f"{words}.startsWith('1 of 2 · after 10 updates, 16k env steps · <b>nobody</b> · ')")
    page("#/runs")
    shutil.rmtree(run)


def test_a_long_run_is_shown_by_some_lines_until_all_are_read(page, root, monkeypatch):
    """A metric that one line alone has appears when that line is read."""
    run = make_run(root / "endless", lines=399)
    rare = make_lines(1, 400, 3, -30.0, 0, first=201)[0] | {"rare": 1.0}
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines[:200], json.dumps(rare), *lines[201:]]) + "\n")
    monkeypatch.setattr(catalogue, "LONG", 1 << 10)
    monkeypatch.setattr(Catalogue.glance, "__defaults__", (9,))
    read, go = Columns.advance, threading.Event()
    monkeypatch.setattr(Columns, "advance", lambda columns: go.wait(20) and read(columns))
    shown = page("#/run/endless")
    corners = "document.querySelector('.charts.large .curve')?.getAttribute('d').split('L').length"
    shown.wait(f"{corners} > 5")
    assert shown.js(corners) < 12
    assert "rare" not in shown.js("document.querySelector('.tab-body').textContent")
    go.set()
    shown.wait(f"{corners} === 399")
    shown.wait("document.querySelector('.tab-body').textContent.includes('rare')")
    shown.wait(f"{corners} === 399")
    shutil.rmtree(run)
    page("#/runs")


def test_environments_are_found_and_described(page):
    shown = page("#/environments")
    ids = "[...document.querySelectorAll('.world')].map((each) => each.dataset.id)"
    everything = shown.js(ids)
    assert {"mpe/simple_tag", "pong", "swarm/delivery"} <= set(everything)
    shown.wait("document.querySelector('.world img').naturalWidth === 224")
    shown.choose("select[aria-label='Actions']", "numbers")
    shown.choose("select[aria-label='Agents']", "1")
    assert shown.js(ids) == ["control/mountain_car_continuous", "control/pendulum"]
    assert shown.js("location.hash") == "#/environments?agents=1&actions=numbers"
    shown.click(".world[data-id='control/pendulum']")
    shown.wait("document.querySelector('h1')?.textContent === 'control/pendulum'")
    tables = "[...document.querySelectorAll('.part')].map((each) => each.innerText)"
    groups, options, presets = shown.js(tables)
    assert "1 number in [-2, 2]" in groups
    assert "--env.max-steps" in options
    assert "length of an episode" in options
    assert "control/pendulum" in presets
    shown.key("Escape")
    shown.wait("location.hash === '#/environments'")
    shown = page("#/environments/no/such")
    assert "no/such does not ship" in shown.js("document.querySelector('.empty').textContent")


def test_a_run_is_started_and_stopped_from_the_form(page, site, root):
    launcher = site.app.state.launcher
    launcher.program = (sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(300)")
    shown = page("#/new?target=mpe%2Fsimple_tag&name=mine")
    typed = "document.querySelector('.shown')?.textContent"
    shown.wait(f"{typed}.includes('shoal train mpe/simple_tag --run-dir=')")
    sections = "[...document.querySelectorAll('.new-form h2')].map((each) => each.textContent)"
    assert shown.js(sections) == ["Environment", "Algorithm", "Network", "Run"]
    shown.js("document.querySelector(\"[data-key='--seed']\").focus()")
    shown.call("Input.insertText", text="3; rm -rf /")
    shown.wait(f"{typed}.includes(\"'--seed=3; rm -rf /'\")")
    shown.choose("select[aria-label='algo']", "qmix")
    shown.wait(f"{typed}.includes('--algo=qmix')")
    assert shown.js("Boolean(document.querySelector(\"[data-key='--algo.buffer-size']\"))"), "it has options of its own"
    shown.click(".new-side .button.main")
    shown.wait("document.querySelector('.started pre')?.textContent === 'begun'")
    assert launcher.plain()[0]["status"] == "running"
    shown.wait("document.querySelector('.started .status').textContent === 'running'")
    shown.click(".started .button")
    shown.wait("document.querySelector('.started .status').textContent === 'stopped'")
    assert not shown.js("document.querySelectorAll('.started .button').length")
    (root / "mine.log").unlink()


def test_the_form_is_that_of_the_chosen_kind(page):
    shown = page("#/new?kind=sweep&target=mpe%2Fsimple_spread&name=mine")
    typed, has = "document.querySelector('.shown')?.textContent", "Boolean(document.querySelector(\"[data-key='{}']\"))"
    shown.wait(f"{typed}.includes('shoal sweep needs --over OPTION=VALUES')")
    assert shown.js("document.querySelector('.new-side .button.main').disabled"), "nothing would come of it"
    shown.js("document.querySelector(\"[data-key='--over']\").focus()")
    shown.call("Input.insertText", text="learning_rate=1e-4:1e-2:8:log clip_eps=0.1,0.2")
    shown.wait(f"{typed}.includes('shoal sweep mpe/simple_spread --over=learning_rate=1e-4:1e-2:8:log --over=clip')")
    assert not shown.js("document.querySelector('.new-side .button.main').disabled")
    shown.choose("select#kind", "pbt")
    shown.wait(f"{typed}.includes('shoal pbt mpe/simple_spread --over=')")
    assert "kind=pbt&" in shown.js("location.hash")
    assert shown.js(has.format("--members"))
    assert not shown.js(has.format("--random"))
    shown.choose("select#kind", "evolve")
    shown.wait(f"{typed}.includes('shoal evolve mpe/simple_spread --run-dir=')")
    assert "--over" not in shown.js("location.hash"), "it is no option of an evolution"
    shown.choose("select[aria-label='strategy']", "ga")
    shown.wait(has.format("--parents"))
    shown = page(shown.js("location.hash"))
    shown.wait(f"{typed}.includes('shoal evolve mpe/simple_spread --strategy=ga')")
    assert shown.js("document.querySelector('select#kind').value") == "evolve"
    shown = page("#/new?kind=resume")
    shown.wait("document.querySelector('.new-form .notice')?.textContent.includes('kind must be one of train, sweep')")
    assert shown.js("document.querySelector('.new-side .button.main').disabled")
    shown.events.clear()  # the browser has noted that the server refused
    shown.choose("select#kind", "train")
    shown.wait(f"{typed}.includes('shoal train demo --run-dir=')")


def test_a_population_is_started_from_the_form_and_opened(page, site, root):
    launcher = site.app.state.launcher
    launcher.program = (sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(300)")
    shown = page("#/new?kind=psro&target=psro%2Fpong&name=grown")
    shown.wait("document.querySelector('.shown')?.textContent.includes('shoal psro psro/pong --run-dir=')")
    shown.click(".new-side .button.main")
    link = "document.querySelector(\"[data-name='grown'] a\")?.getAttribute('href')"
    shown.wait(f"{link} === '#/run/grown'")
    make_population(root / "grown")
    shown.wait(f"{link} === '#/population/grown'")
    shown.click("[data-stop='grown']")
    shown.wait("document.querySelector(\"[data-name='grown'] .status\").textContent === 'stopped'")
    shown.click("[data-name='grown'] a")
    shown.wait("document.querySelector('#screen-population h1')?.textContent.includes('grown')")
    shutil.rmtree(root / "grown")
    (root / "grown.log").unlink()


def test_settings_are_shown_and_compared(page):
    shown = page("#/run/spread_mappo_1?tab=settings")
    rows = (
        "[...document.querySelectorAll('.settings tbody tr')].filter((row) => !row.hidden)"
        ".map((row) => [...row.cells].map((cell) => cell.textContent))"
    )
    assert ["experiment.env", "mpe/simple_spread"] in shown.js(rows)
    shown = page("#/run/spread_mappo_1?tab=settings&against=run%3Aspread_ippo_1")
    shown.wait("document.querySelectorAll('.settings thead th').length === 3")
    assert shown.js(rows) == [
        ["experiment.learners.learner.algorithm.learning_rate", "0.001", "0.0003"],
        ["experiment.learners.learner.algorithm.critic", "global", "own"],
        ["experiment.seed", "3", "1"],
    ]


@pytest.mark.slow
def test_settings_are_compared_with_a_preset(page):
    shown = page("#/run/spread_mappo_1?tab=settings&against=preset%3Aippo%2Fsimple_spread")
    shown.wait("document.querySelectorAll('.settings thead th').length === 3", timeout=60)
    assert shown.js("document.querySelector('.settings thead').textContent") == "SettingThis runippo/simple_spread"


def test_commands_can_be_copied(page, root):
    shown = page("#/run/tag_ippo_1?tab=commands")
    commands = shown.js("[...document.querySelectorAll('.commands code')].map((each) => each.textContent)")
    assert f"shoal resume {root / 'tag_ippo_1'}" in commands
    shown.click(".commands .sign")
    shown.wait("document.querySelector('.toast')?.textContent === 'Copied'")


def test_runs_are_compared(page):
    shown = page(COMPARED)
    shown.wait("document.querySelectorAll('.final tbody tr').length === 2")
    best = shown.js("[...document.querySelectorAll('.final tbody tr')].map((row) => row.cells[0].textContent)")
    assert best == ["mappo", "ppo"]
    seeds = shown.js(
        "[...document.querySelectorAll('.final tbody tr')].map((row) => row.querySelector('.few').textContent)"
    )
    assert seeds == ["3", "8"]
    assert shown.js("document.querySelectorAll('.matrix tbody td:not(.self)').length") == 2
    shown.wait("document.querySelectorAll('.panel-home .band').length === 4")
    shown.choose("select[aria-label='Group by']", "run")
    shown.wait("document.querySelectorAll('.final tbody tr').length === 3")
    assert "by=run" in shown.js("location.hash"), "the state is in the address"
    shown.click(".chip.removable button")
    shown.wait("document.querySelectorAll('.final tbody tr').length === 2")
    assert shown.js("location.hash").count("run=spread") == 2


def test_a_comparison_is_judged_where_it_is_asked_and_its_command_copied(page, root):
    shown = page(COMPARED)
    ends = "document.querySelector('.final').closest('.card').textContent"
    shown.wait(f"{ends}.includes('of each run')")
    shown.js(
        "const at = document.querySelector('input[type=number]'); at.value = '32e3'; "
        "at.dispatchEvent(new Event('change'))"
    )
    shown.wait(f"{ends}.includes('up to 32,000')")
    assert "at=32000" in shown.js("location.hash")
    shown.js("window.kept = []; navigator.clipboard.writeText = (text) => kept.push(text); undefined")
    copy = "[...document.querySelectorAll('.controls .button')].find((each) => each.textContent === 'Copy command')"
    shown.js(f"{copy}.click()")
    paths = [str(root / name) for name in ("spread_ippo_1", "spread_ippo_2", "spread_mappo_1")]
    assert shlex.split(shown.js("kept[0]")) == ["shoal", "compare", *paths, "--at=32000"]


def test_a_comparison_that_is_refused_has_no_command(browser, site):
    browser.visit(f"{site.address}{COMPARED}&by=%24(reboot)", "Boolean(window.shoalReady)", 1280, 800)
    browser.wait("document.querySelector('.empty')?.textContent.includes('compared like this')")
    assert browser.js("document.querySelectorAll('.controls .button, .controls .menu-home').length") == 0
    assert browser.js("document.querySelector('select[aria-label=\"Group by\"]').value") == "$(reboot)"


def test_from_the_list_to_a_comparison(page):
    shown = page("#/runs?q=spread_ippo&sort=name")
    for _ in range(2):
        shown.key("j")
        shown.key("x")
    shown.key("c")
    shown.wait("location.hash.startsWith('#/compare?run=spread_ippo_1&run=spread_ippo_2')")
    shown.wait("document.querySelectorAll('.final tbody tr').length === 1")


def test_pictures_and_tables_are_saved(page):
    """What is saved is caught on its way to the disk: an SVG that stands alone, a PNG, and the tables of the server."""
    shown = page(COMPARED)
    shown.wait("document.querySelectorAll('.panel-home .band').length === 4")
    shown.js(
        "window.kept = {}; window.types = {}; const make = URL.createObjectURL; "
        "URL.createObjectURL = (blob) => { window.last = blob; return make(blob); }; "
        "HTMLAnchorElement.prototype.click = function () { const name = this.download; types[name] = last.type; "
        "last.text().then((text) => { kept[name] = text; }); }; undefined"
    )
    for kind in ("SVG", "PNG", "CSV"):
        shown.js(
            "[...document.querySelector('.chart').querySelectorAll('[role=menuitem]')]"
            f".find((each) => each.textContent === '{kind}').click()"
        )
    shown.js(
        "[...document.querySelectorAll('.controls [role=menuitem]')]"
        ".find((each) => each.textContent.includes('LaTeX')).click()"
    )
    shown.wait("Object.keys(kept).length === 4")
    kept = shown.js("kept")
    svg = next(text for name, text in kept.items() if name.endswith(".svg"))
    assert svg.startswith("<svg")
    assert "var(" not in svg
    assert "toprule" in kept["final.tex"]
    table = next(text for name, text in kept.items() if name.endswith(".csv")).splitlines()
    assert table[0] == "name,steps,value,low,high"
    assert len(table) == 1 + 2 * 60
    assert "PNG" in next(text for name, text in kept.items() if name.endswith(".png"))[:8]


def test_replays_play_in_step(page, root):
    for name in ("spread_ippo_1", "spread_ippo_2"):
        (root / name / "replay.html").write_text(REPLAY)
    shown = page(COMPARED)
    shown.wait("document.querySelectorAll('.frames iframe').length === 2")
    shown.wait("Number(document.querySelector('.transport input').max) === 2")
    shown.wait("document.querySelector('.transport output').textContent === '2 / 3'")
    for name in ("spread_ippo_1", "spread_ippo_2"):
        (root / name / "replay.html").unlink()


def test_the_page_gives_the_exported_page(browser, page, root, tmp_path):
    """What the button hands to be saved is caught, and opened without the server."""
    for update in (0, 20):
        keep_scene(root / "spread_mappo_1", update)
    shown = page(f"{COMPARED}&by=run&at=64000")
    shown.wait("document.querySelectorAll('.final tbody tr').length === 3")
    shown.js(
        "window.kept = null; const make = URL.createObjectURL; URL.createObjectURL = (blob) => { window.last = blob; "
        "return make(blob); }; HTMLAnchorElement.prototype.click = function () { const name = this.download; "
        "last.text().then((text) => { window.kept = [name, text]; }); }; "
        "[...document.querySelectorAll('.controls .button')].find((one) => one.textContent === 'Export page').click()"
    )
    shown.wait("Boolean(window.kept)")
    name, text = shown.js("kept")
    shutil.rmtree(root / "spread_mappo_1" / "scenes")
    assert name == "report.html"
    assert str(root) not in text
    assert browser.complaints() == []
    (tmp_path / name).write_text(text)
    browser.visit(f"file://{tmp_path / name}", "Boolean(window.shoalReady)", 1280, 900)
    before, browser.local = browser.local, ("file:", "data:", "about:", "blob:")
    assert browser.js("document.querySelectorAll('.final tbody tr').length") == 3
    assert "up to 64,000" in browser.js("document.querySelector('.final').closest('.card').textContent")
    browser.js(
        "window.said = 0; addEventListener('message', ({ data }) => { said += data.shoal === 'at'; }); undefined"
    )
    browser.choose("select[aria-label='Episode of spread_mappo_1']", "0")
    browser.js("document.querySelector('iframe').scrollIntoView()")
    browser.wait("said > 0")
    assert browser.complaints() == []
    browser.local = before
    page("#/runs")


def test_an_exported_page_stands_alone(browser, root, tmp_path):
    (root / "spread_ippo_1" / "replay.html").write_text(REPLAY)
    page = tmp_path / "report.html"
    write_export(page, [root / "spread_ippo_1", root / "spread_mappo_1", root / NASTY])
    (root / "spread_ippo_1" / "replay.html").unlink()
    browser.visit(f"file://{page}", "Boolean(window.shoalReady)", 1280, 900)
    before, browser.local = browser.local, ("file:", "data:", "about:", "blob:")
    browser.wait("document.querySelectorAll('.panel-home .curve').length > 3")
    names = browser.js("[...document.querySelectorAll('tbody th.ink')].map((each) => each.textContent)")
    assert names == ["spread_ippo_1", "spread_mappo_1", NASTY]
    assert browser.js("document.querySelectorAll('.final tbody tr').length") == 2
    browser.js(
        "window.said = 0; addEventListener('message', ({ data }) => { said += data.shoal === 'at'; }); undefined"
    )
    browser.js("document.querySelector('iframe').scrollIntoView()")
    browser.wait("said > 1")
    assert browser.js("[typeof window.hacked, document.images.length]") == ["undefined", 0]
    assert browser.complaints() == []
    browser.local = before
