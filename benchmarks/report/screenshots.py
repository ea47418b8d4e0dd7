"""Look at a report in a headless browser: pictures of it, and what is wrong with it.

``python -m zoo.benchmarks.report.screenshots report.html --out docs/img`` writes
``report-desktop.png``, ``report-phone.png`` and ``report-dark.png``, the top of the page each, and
ends with status 1 where the page reports errors, asks the network for anything, or is wider than
the screen.
"""

from __future__ import annotations

import argparse
import base64
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from zoo.benchmarks.report.browser import Tab, open_tab
from zoo.core.atomic import replacing
from zoo.errors import UserError

__all__ = ["VIEWS", "Finding", "View", "look", "main"]


@dataclass(frozen=True)
class View:
    """A screen: its size in CSS pixels, device pixels for each of them, and how much is shown."""

    name: str
    width: int
    height: int
    scale: float = 1.0
    dark: bool = False


VIEWS = (
    View("desktop", 1280, 1600),
    View("phone", 390, 1400, scale=2.0),
    View("dark", 1280, 1600, dark=True),
)
#: the narrowest screen on which a page must not scroll sideways
NARROW = View("narrow", 360, 800)


@dataclass(frozen=True)
class Finding:
    """What one view showed.

    Attributes
    ----------
    view : View
        On which screen.
    errors : tuple of str
        Messages of the console, uncaught exceptions, refusals of the page's own policy.
    requests : tuple of str
        Addresses asked for besides the page itself.
    overflow : int
        How many CSS pixels the page is wider than the screen, with everything unfolded.
    image : bytes
        The picture, PNG.
    """

    view: View
    errors: tuple[str, ...]
    requests: tuple[str, ...]
    overflow: int
    image: bytes

    @property
    def problems(self) -> list[str]:
        """What is wrong, a sentence each."""
        found = [f"{self.view.name}: {error}" for error in self.errors]
        found += [f"{self.view.name}: asks for {address}" for address in self.requests]
        if self.overflow > 0:
            found.append(f"{self.view.name}: {self.overflow} px wider than the screen")
        return found


def look(page: Path, views: Sequence[View] = (*VIEWS, NARROW)) -> list[Finding]:
    """Open a page on each screen.

    Raises
    ------
    UserError
        Where there is no such file, or no browser.
    """
    if not page.is_file():
        raise UserError(f"{page} is no file: name a report that `zoo report` wrote.")
    with open_tab() as tab:
        return [_look(tab, page.resolve().as_uri(), view) for view in views]


def _look(tab: Tab, address: str, view: View) -> Finding:
    size = {"width": view.width, "height": view.height, "deviceScaleFactor": view.scale}
    tab.call("Emulation.setDeviceMetricsOverride", **size, mobile=view.width < 600)
    theme = {"name": "prefers-color-scheme", "value": "dark" if view.dark else "light"}
    tab.call("Emulation.setEmulatedMedia", features=[theme])
    tab.events.clear()
    tab.call("Page.navigate", url=address)
    tab.wait_for("Page.loadEventFired")
    image = tab.call("Page.captureScreenshot", format="png")["data"]
    tab.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true; })")
    overflow = tab.evaluate("document.documentElement.scrollWidth") - view.width
    asked = [
        event["params"]["request"]["url"]
        for event in tab.events
        if event.get("method") == "Network.requestWillBeSent"
    ]
    others = (url for url in asked if url != address and not url.startswith("data:"))
    return Finding(view, _errors(tab), tuple(others), int(overflow), _smaller(image))


def _errors(tab: Tab) -> tuple[str, ...]:
    found = []
    for event in tab.events:
        told = event.get("params", {})
        if event.get("method") == "Runtime.consoleAPICalled":
            found.append(" ".join(str(a.get("value", a)) for a in told["args"]))
        elif event.get("method") == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            found.append(details.get("exception", {}).get("description", details["text"]))
        elif event.get("method") == "Log.entryAdded":
            found.append(told["entry"]["text"])
    return tuple(found)


def _smaller(encoded: str) -> bytes:
    """Reduce a picture to 256 colours where Pillow is installed; pages have few."""
    data = base64.b64decode(encoded)
    try:
        from PIL import Image
    except ImportError:
        return data
    out = io.BytesIO()
    with Image.open(io.BytesIO(data)) as image:
        reduced = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        reduced.save(out, "PNG", optimize=True)
    return min(data, out.getvalue(), key=len)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m zoo.benchmarks.report.screenshots",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("page", type=Path, help="a report, .html")
    parser.add_argument("--out", type=Path, default=Path(), help="where the pictures go")
    arguments = parser.parse_args(argv)
    try:
        findings = look(arguments.page)
        arguments.out.mkdir(parents=True, exist_ok=True)
        for finding in findings:
            if finding.view in VIEWS:
                file = arguments.out / f"{arguments.page.stem}-{finding.view.name}.png"
                with replacing(file) as out:
                    out.write(finding.image)
                print(f"{file}  {len(finding.image) / 1000:.0f} kB")
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    problems = [problem for finding in findings for problem in finding.problems]
    print(*problems, sep="\n", end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
