"""Policies as a page do in a browser what they do in numpy, ask for nothing, and can be filled in by hand."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest

from shoal.algorithms import DQN, PPO
from shoal.bridges.js_policy import save_js
from shoal.bridges.numpy_policy import export
from shoal.bridges.plain_policy import flat
from shoal.core.spaces import Box
from tests.bridges.test_numpy_policy import BOX, CHOICES, FLAT, MANY, PARTS, made, seen
from tests.bridges.test_onnx_policy import ALL, DUELLING, normalised, some_legal
from tests.chromium import Browser, find_browser
from tests.ui.test_ui_looks import violations


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(find_browser(), str(tmp_path_factory.mktemp("profile")))
    yield browser
    browser.close()


@pytest.fixture
def page(browser, tmp_path):
    """Opens the page of a policy; whatever a test does with it must not make it complain or ask for anything."""

    def show(plain, name="agent"):
        browser.visit(save_js(plain, tmp_path / name).as_uri(), "Boolean(window.policy)")
        return browser

    yield show
    assert browser.complaints() == []


def act(page, view, legal=None, memory=()):
    plain = (
        view.tolist() if isinstance(view, np.ndarray) else {name: leaf.tolist() for name, leaf in flat(view).items()}
    )
    given = [plain, None if legal is None else legal.tolist(), [np.asarray(part).tolist() for part in memory]]
    return page.js(f"policy.act(...{json.dumps(given)})")


def softmax(numbers):
    weights = np.exp(numbers - numbers.max())
    return weights / weights.sum()


def assert_alike(plain, page, boxes):
    generator, memory = np.random.default_rng(0), plain.initial_memory()
    for _ in range(3):
        view, legal = seen(generator, boxes, ()), some_legal(generator, plain, ())
        expected, got = plain(view, legal, memory), act(page, view, legal, memory)
        np.testing.assert_allclose(got["numbers"], expected.numbers, atol=1e-5)
        np.testing.assert_allclose(got["action"], expected.action, atol=1e-5)
        assert np.shape(got["action"]) == expected.action.shape
        assert len(got["memory"]) == len(expected.memory)
        for one, other in zip(got["memory"], expected.memory, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
        if plain.actions.kind == "box" or not plain.sampled:
            assert got["probabilities"] is None
        else:
            parts = np.split(expected.numbers, np.cumsum(plain.actions.sizes)[:-1])
            shares = [got["probabilities"]] if plain.actions.kind == "discrete" else got["probabilities"]
            for share, part in zip(shares, parts, strict=True):
                np.testing.assert_allclose(share, softmax(part), atol=1e-5)
        memory = expected.memory


@pytest.mark.parametrize("case", ALL)
def test_outputs_are_those_of_numpy(case, page):
    kind, options, boxes, space = ALL[case]
    _, policy = made(kind, options, boxes, space)
    plain = export(policy, boxes)
    assert_alike(plain, page(plain), boxes)


@pytest.mark.parametrize("case", DUELLING)
def test_duelling_heads(case, page):
    boxes, space = DUELLING[case]
    _, policy = made(DQN, {}, boxes, space, dueling=True)
    plain = export(policy, boxes)
    assert_alike(plain, page(plain), boxes)


def test_normalised_views(page):
    plain, boxes = normalised()
    assert_alike(plain, page(plain), boxes)


def test_the_form(page):
    _, policy = made(PPO, {"recurrent": "gru"}, FLAT, CHOICES)
    plain = export(policy, FLAT)
    shown = page(plain, "<b>left%2Fright")
    assert shown.js("document.title") == shown.js("document.querySelector('h1').textContent") == "<b>left/right"
    view = np.zeros(5, np.float32)
    first = plain(view)
    assert shown.js("document.querySelector('#action').textContent") == str(first.action)
    view[1], legal = 2.5, np.array([True, False, True, True])
    shown.js(
        "{ const field = document.querySelectorAll('input[type=number]')[1]; field.value = '2.5';"
        "const box = document.querySelectorAll('input[type=checkbox]')[1]; box.checked = false;"
        "field.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    rows = "[...document.querySelectorAll('#chances div span:last-child')].map((one) => one.textContent)"
    expected = softmax(plain(view, legal).numbers)
    assert shown.js(rows) == [f"{share:.4f}" if i != 1 else "illegal" for i, share in enumerate(expected)]
    shown.click("#next")
    again = plain(view, legal, plain(view, legal).memory)
    assert shown.js(rows)[0] == f"{softmax(again.numbers)[0]:.4f}"
    assert shown.js("document.querySelector('#count').textContent") == "step 1"
    shown.click("#again")
    assert shown.js(rows)[0] == f"{expected[0]:.4f}"


def test_what_is_wrong_is_said(page):
    _, policy = made(PPO, {"recurrent": "lstm"}, {"near": PARTS["near"], "map": PARTS["map"]}, MANY)
    shown = page(export(policy, {"near": PARTS["near"], "map": PARTS["map"]}))
    good = "{near: [0, 0, 0, 0], map: Array(180).fill(0)}"
    for call, said in {
        "[1, 2]": "must have: map, near; got: one array",
        "{near: [1], map: Array(180).fill(0)}": "observation.near must have 4 numbers, got 1",
        "{near: [1, 2, 3, NaN], map: Array(180).fill(0)}": "NaN or infinite",
        "{near: [1, 2, 3, '4'], map: Array(180).fill(0)}": "must be numbers",
        "{near: [1, 2, 3, 4], map: Array(180).fill(0.5)}": "whole numbers from 0 to 255",
        f"{good}, [1, 1, 1, 0, 0]": "legal allows no action",
        f"{good}, [1, 1]": "legal must have 5 numbers, got 2",
        f"{good}, null, [[0]]": "memory must have 2 parts, got 1",
    }.items():
        caught = shown.js(f"(() => {{ try {{ policy.act({call}); return ''; }} catch (e) {{ return e.message; }} }})()")
        assert said in caught
    shown.js(
        "{ const field = document.querySelector('textarea'); field.value = '1 2';"
        "field.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    assert shown.js("document.querySelector('#said').textContent") == "observation.map must have 180 numbers, got 2"


def test_a_part_of_a_view_may_be_called_legal(page):
    boxes = {"legal": Box((4,)), "memory": Box((2,))}
    _, policy = made(PPO, {}, boxes, CHOICES)
    plain = export(policy, boxes)
    best = plain({"legal": np.zeros(4, np.float32), "memory": np.zeros(2, np.float32)}).action
    assert page(plain).js("document.querySelector('#action').textContent") == str(best)


def test_a_box_has_its_shape(page):
    _, policy = made(PPO, {}, FLAT, BOX)
    shown = page(export(policy, FLAT))
    assert len(json.loads(shown.js("document.querySelector('#action').textContent"))) == 2


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessible(browser, tmp_path, scheme):
    found = importlib.util.find_spec("axe_core_python")
    if found is None or found.origin is None:
        pytest.skip("axe-core-python is not installed")
    _, policy = made(PPO, {"recurrent": "gru"}, PARTS, MANY)
    browser.visit(
        f"file://{save_js(export(policy, PARTS), tmp_path / 'agent')}", "Boolean(window.policy)", 900, 900, scheme
    )
    assert violations(browser, (Path(found.origin).parent / "axe.min.js").read_text("utf-8")) == []


def test_the_page_is_whole(tmp_path):
    _, policy = made(PPO, {}, FLAT, CHOICES)
    text = save_js(export(policy, FLAT), tmp_path / "agent").read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "default-src 'none'" in text
    assert "@" not in re.sub(r"@media|<script type.*?</script>", "", text, flags=re.DOTALL)
