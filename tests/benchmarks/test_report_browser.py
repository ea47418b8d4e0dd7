"""The page in a real browser: quiet, closed, fitting every screen, and what its script adds."""

from __future__ import annotations

import importlib.util

import pytest
from sample_page import GROUPS, sample_page

from zoo.benchmarks.report import screenshots, write
from zoo.benchmarks.report.browser import find_browser, open_tab
from zoo.errors import UserError

browser = pytest.mark.skipif(find_browser() is None, reason="there is no Chromium here")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write(sample_page(), tmp_path_factory.mktemp("report") / "report.html")[0]


@pytest.fixture(scope="module")
def tab():
    with open_tab() as opened:
        yield opened


def load(tab, file, width=1000, scripts=True):
    tab.call("Emulation.setScriptExecutionDisabled", value=not scripts)
    size = {"width": width, "height": 900, "deviceScaleFactor": 1}
    tab.call("Emulation.setDeviceMetricsOverride", **size, mobile=False)
    tab.events.clear()
    tab.call("Page.navigate", url=file.as_uri())
    tab.wait_for("Page.loadEventFired")


@browser
def test_the_page_is_quiet_asks_for_nothing_and_fits_every_screen(report, tmp_path, capsys):
    assert screenshots.main([str(report), "--out", str(tmp_path / "img")]) == 0
    files = sorted((tmp_path / "img").iterdir())
    assert [f.name for f in files] == ["report-dark.png", "report-desktop.png", "report-phone.png"]
    assert all(f.read_bytes().startswith(b"\x89PNG") for f in files)
    assert capsys.readouterr().out.count(" kB\n") == 3
    if importlib.util.find_spec("PIL"):
        assert all(f.stat().st_size < 250_000 for f in files)


@browser
def test_a_faulty_page_is_found_out(tmp_path, capsys):
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><meta charset=utf-8><div style='width:2000px'>wide</div>"
        "<img src=missing.png><script>console.error('oh', 7); undefined_name;</script>"
    )
    assert screenshots.main([str(page), "--out", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "desktop: oh 7" in told
    assert "dark: ReferenceError: undefined_name is not defined" in told
    assert f"phone: asks for {page.with_name('missing.png').as_uri()}" in told
    assert "narrow: 16" in told  # 2000 px, the margins, less 360 px


def test_a_missing_page_is_told(tmp_path, capsys):
    assert screenshots.main([str(tmp_path / "x.html")]) == 2
    assert "is no file" in capsys.readouterr().err


def test_a_missing_browser_is_told(report, monkeypatch):
    monkeypatch.setenv("CHROME", "/no/such/browser")
    with pytest.raises(UserError, match="there is no Chromium"), open_tab():
        pass


@browser
def test_without_scripts_everything_is_there_and_no_dead_button(report, tab):
    load(tab, report, scripts=False)
    nodes = tab.call("DOM.getDocument", depth=-1)["root"]["nodeId"]

    def count(selector):
        return len(tab.call("DOM.querySelectorAll", nodeId=nodes, selector=selector)["nodeIds"])

    assert count("button") == 0
    assert count(".legend li") == 9 * 3
    assert count("figure > svg") == 11
    load(tab, report)
    assert tab.evaluate("document.querySelectorAll('.legend button').length") == 9 * 3


@browser
def test_a_legend_hides_a_group_and_shows_it_again(report, tab):
    load(tab, report)
    hidden = "document.querySelectorAll('#curve-0-steps .hidden').length"
    click = "document.querySelectorAll('#curve-0-steps .legend button')[1].click()"
    pressed = "document.querySelectorAll('#curve-0-steps .legend button')[1].ariaPressed"
    tab.evaluate(click)
    assert (tab.evaluate(hidden), tab.evaluate(pressed)) == (3, "false")  # band, runs, centre
    assert tab.evaluate("document.querySelectorAll('#curve-0-time .hidden').length") == 0
    tab.evaluate(click)
    assert (tab.evaluate(hidden), tab.evaluate(pressed)) == (0, "true")


@browser
def test_a_column_is_sorted_by_value_and_back(report, tab):
    load(tab, report)
    head = "document.querySelectorAll('[aria-labelledby=speed] thead th')[{}]"
    rows = (
        "[...document.querySelectorAll('[aria-labelledby=speed] tbody th')].map(t => t.innerText)"
    )

    def click(column):
        tab.evaluate(head.format(column) + ".querySelector('button').click()")
        return [GROUPS.index(name.strip()) for name in tab.evaluate(rows)]

    # 4.0 min, 4.2 min, 1.6 h; then 1.2M, 980k, 1.2M
    assert click(3) == [0, 1, 2]
    assert tab.evaluate(head.format(3) + ".ariaSort") == "ascending"
    assert click(3) == [2, 1, 0]
    assert click(3) == [0, 1, 2]
    assert click(4) == [1, 0, 2]
    assert click(1) == [2, 1, 0]  # 4,130, 3,980, 2,950


@browser
def test_a_chart_is_read_off_with_the_pointer(report, tab):
    load(tab, report)
    page = sample_page()
    chart = next(b for b in page.sections[1].blocks if getattr(b, "name", "") == "curve-0-steps")
    series = chart.series[0]
    assert series.x[20] == 50_000
    told = tab.evaluate(
        """(() => {
        const svg = document.querySelector('#curve-0-steps > svg[data-x]');
        const [low, high, start, end] = svg.dataset.x.split(' ').map(Number);
        const box = svg.getBoundingClientRect();
        const place = (start + (50000 - low) / (high - low) * (end - start)) / 440 * box.width;
        const at = { clientX: box.left + place, clientY: -10000 };
        svg.dispatchEvent(new PointerEvent('pointermove', at));
        const row = [...svg.parentNode.querySelectorAll('.readout div')]
          .find(part => part.textContent.startsWith('ppo'));
        return [svg.parentNode.querySelector('.readout div').textContent, row.textContent];
        })()"""
    )
    place, row = told
    assert place in ("50.0k", "50k")
    values = [
        float(n.replace("−", "-"))
        for n in row.removeprefix("ppo").strip("]").replace("[", ",").split(",")
    ]
    expected = [series.y[20], series.low[20], series.high[20]]
    assert values == pytest.approx(expected, abs=2.0)  # of 500, in steps of a pixel


@browser
def test_a_chart_is_read_off_with_the_keys(report, tab):
    load(tab, report)
    key = (
        "document.querySelector('#curve-3-steps > svg[data-x]').dispatchEvent("
        "new KeyboardEvent('keydown', {{ key: '{}' }}))"
    )
    shown = "document.querySelector('#curve-3-steps .readout').hidden"
    assert tab.evaluate(shown) is True
    tab.evaluate(key.format("ArrowRight"))
    assert tab.evaluate(shown) is False
    assert "%" in tab.evaluate("document.querySelector('#curve-3-steps .readout').innerText")
    rows = "document.querySelectorAll('#curve-3-steps .readout div').length"
    assert tab.evaluate(rows) == 4  # the place, and each group once however far one goes
    tab.evaluate(key.format("ArrowRight"))
    assert tab.evaluate(rows) == 4
    tab.evaluate(key.format("Escape"))
    assert tab.evaluate(shown) is True


@browser
def test_the_theme_is_switched_and_kept(report, tab):
    load(tab, report)
    ground = "getComputedStyle(document.body).backgroundColor"
    before = tab.evaluate(ground)
    tab.evaluate("document.querySelector('.theme').click()")
    after = tab.evaluate(ground)
    assert {before, after} == {"rgb(255, 255, 255)", "rgb(21, 23, 28)"}
    assert tab.evaluate("localStorage.getItem('zoo-report-theme')") in ("dark", "light")


@browser
@pytest.mark.parametrize(
    ("theme", "ground"), [("dark", "rgb(21, 23, 28)"), ("light", "rgb(255, 255, 255)")]
)
def test_the_remembered_theme_is_shown_from_the_start(report, tab, theme, ground):
    source = f"localStorage.setItem('zoo-report-theme', '{theme}')"
    script = tab.call("Page.addScriptToEvaluateOnNewDocument", source=source)
    load(tab, report)
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == ground
    tab.call("Page.removeScriptToEvaluateOnNewDocument", **script)
    tab.evaluate("localStorage.clear()")


@browser
def test_a_link_into_a_folded_section_opens_it(report, tab):
    load(tab, report)
    state = "document.getElementById('run-14').closest('details').open"
    assert tab.evaluate(state) is False
    tab.evaluate(
        "new Promise(done => { addEventListener('hashchange', () => done());"
        " document.querySelector('aside a').click(); })"
    )
    assert tab.evaluate(state) is True


@browser
def test_everything_is_printed(report, tab):
    load(tab, report)
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.evaluate("document.querySelectorAll('details:not([open])').length") == 2
    assert tab.call("Page.printToPDF")["data"].startswith("JVBERi")
