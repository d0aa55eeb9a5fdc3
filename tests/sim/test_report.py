"""Tests of a report as text, as a table of source lines, and as HTML that is deterministic and
self-contained."""

import html.parser
import re
import textwrap
import xml.etree.ElementTree
from urllib.parse import unquote

import numpy as np
import pytest
from numba import cuda, float32

from sim import simulate
from sim.observers import DEFAULT
from sim.observers.banks import Banks
from sim.observers.coalescing import Coalescing
from sim.observers.trace import Trace
from sim.observers.traffic import Traffic
from sim.report import value_text

TOOLS = (*DEFAULT, Coalescing, Banks, Traffic, Trace)


@cuda.jit
def add(a, b):
    return a + b


@cuda.jit
def pair_sums(x, out):
    s = cuda.shared.array(8, float32)
    t = cuda.threadIdx.x
    s[t] = x[t]
    cuda.syncthreads()
    if t < 4:
        out[t] = add(s[2 * t], s[2 * t + 1])


def launched(kernel=pair_sums, observers=TOOLS, **how):
    return simulate(kernel, observers=observers, on_finding="report", **how)[1, 8](
        np.arange(8, dtype=np.float32), np.zeros(4, np.float32)
    )


def expected(text):
    return textwrap.dedent(text).strip("\n")


def test_text():
    assert str(launched()) == expected("""
        pair_sums[1, 8] on the fibers engine: no findings
          threads 8, blocks 1, barriers 1, loads 16, stores 12, atomics 0
          global memory: 2 requests of warps touch 2 sectors of 32 bytes; fewest possible 2
          shared memory: 3 requests of warps take 3 wavefronts; fewest possible 3; no bank conflict
        """)


def test_text_without_the_counting_tools():
    assert (
        str(launched(observers=DEFAULT))
        == "pair_sums[1, 8] on the fibers engine: no findings\n  threads 8, blocks 1, barriers 1"
    )


def test_by_line():
    assert str(launched().by_line()) == expected("""
        loads  stores  bytes  sectors (fewest)  wavefronts (fewest)  ways  barriers  line  pair_sums
                                                                                        1  def pair_sums(x, out):
                                                                                        2      s = cuda.shared.array(8, float32)
                                                                                        3      t = cuda.threadIdx.x
            8       8     64             1 (1)                1 (1)     1               4      s[t] = x[t]
                                                                                  1     5      cuda.syncthreads()
                                                                                        6      if t < 4:
            8       4     48             1 (1)                2 (2)     1               7          out[t] = add(s[2 * t], s[2 * t + 1])
        """)


def test_by_line_shows_a_device_function_that_accesses_arrays():
    @cuda.jit
    def pick(x, i):
        return x[i]

    def kernel(x, out):
        t = cuda.threadIdx.x
        out[t % 4] = pick(x, t % 4)

    text = str(launched(kernel, observers=(Traffic,)).by_line())
    assert text == expected("""
        stores  bytes  line  kernel
                          1  def kernel(x, out):
                          2      t = cuda.threadIdx.x
             8     32     3      out[t % 4] = pick(x, t % 4)

        loads  bytes  line  pick
                         1  def pick(x, i):
            8     32     2      return x[i]
        """)


def test_by_line_of_a_kernel_without_source():
    namespace = {"cuda": cuda}
    exec("def kernel(x, out):\n    x[0] = 1", namespace)
    report = launched(namespace["kernel"], observers=(Traffic,))
    assert (
        str(report.by_line()) == "kernel has no source to show"
        and "kernel has no source to show" in report._repr_html_()
    )


# --- HTML ---------------------------------------------------------------------------------------------------


class Balance(html.parser.HTMLParser):
    """HTML parser that fails on an incorrectly nested tag.

    It collects images, and the text outside scripts and style sheets.
    """

    def __init__(self, text):
        super().__init__()
        self.open, self.images, self.texts, self.attributes = [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.attributes += attributes
        if tag == "img":
            self.images.append(dict(attributes))
        elif tag not in ("br", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-1] not in ("script", "style"):
            self.texts.append(data)


def test_html_is_the_same_for_equal_launches_on_every_engine():
    texts = {
        launched(**how)._repr_html_().replace("threads engine", "fibers engine")
        for how in ({}, {}, {"engine": "threads"})
    }
    assert len(texts) == 1


def test_html_has_no_ids_and_asks_for_nothing_from_outside():
    text = launched()._repr_html_()
    names = {name for name, _ in Balance(text).attributes}
    assert "id" not in names and "onclick" not in names
    # an XML namespace, which a browser never fetches
    assert set(re.findall(r"https?://[^\s\"'<%]+", unquote(text))) == {"http://www.w3.org/2000/svg"}


def test_where_scripts_are_stripped_first_and_last_step_stand_as_images():
    page = Balance(launched()._repr_html_())
    assert len(page.images) == 4  # a timeline and the map of s, with two steps each
    for image in page.images:
        svg = xml.etree.ElementTree.fromstring(unquote(image["src"].removeprefix("data:image/svg+xml,")))
        assert svg.tag.endswith("svg") and len(svg) > 5 and image["alt"]
    assert (
        page.images[0]["alt"]
        == "block 0: what each thread does, access by access. epoch 0, access 0: 8 threads load x (line 4)"
    )


def test_coordinates_are_whole_numbers():
    for image in Balance(launched()._repr_html_()).images:
        numbers = re.findall(
            r"(?:[ Mhvz]|x=|y=|'|width=|height=)-?\d+(\.\d+)?",
            re.sub(r"<style>.*</style>", "", unquote(image["src"])),
        )
        assert len(numbers) > 50 and not any(numbers)


def test_html_tells_what_the_text_tells():
    def wrong(x, out):
        out[cuda.threadIdx.x] = x[cuda.threadIdx.x] < 3

    report = launched(wrong, observers=DEFAULT)
    shown = "".join(Balance(report._repr_html_()).texts)
    assert (
        report.headline in shown
        and report.findings[0].message in shown
        and "threads 8, blocks 1, barriers 0" in shown
    )


def test_names_and_source_are_escaped():
    def compare(x, out):
        if x[0] < 1 and x[1] > 0:
            out[0] = 1

    report = launched(compare)
    assert "if x[0] < 1 and x[1] > 0:" in "".join(Balance(report._repr_html_()).texts).replace("\xa0", "")


def test_light_and_dark():
    text = launched()._repr_html_()
    assert "prefers-color-scheme:dark" in text and "--jp-layout-color0" in text
    assert all("prefers-color-scheme:dark" in unquote(image["src"]) for image in Balance(text).images)


def test_a_figure_without_a_trace_says_what_to_do():
    report = launched(observers=DEFAULT)
    with pytest.raises(
        ValueError,
        match=r"nothing was traced: add the observer Trace, simulate\(kernel, observers=\[\*DEFAULT, Trace\(\)\]\)",
    ):
        report.timeline()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.float32(0.5), "0.5"),
        ((np.float32(0.5), np.float32(-2)), "(0.5, -2.0)"),
        (bytes(range(8)), "bytes 00010203 04050607"),
    ],
)
def test_a_value_is_readable(value, text):
    assert value_text(value) == text
