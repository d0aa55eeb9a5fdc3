"""Figures and tables for terminals and notebooks. This file defines their common base classes.

The input is a Recording (the trace of a launch) or the counters of a Report. The output is a View: text in a
terminal, HTML in a notebook. A Scene is a picture that changes in steps.

A Scene's HTML needs neither a library nor a running kernel: its script draws the picture with a slider. An
untrusted notebook strips scripts, SVG and style sheets, so the first and the last step are also embedded as
images. JupyterLab reserves the arrow keys and Enter for its shortcuts unless the focused element has the
attribute `data-lm-suppress-shortcuts`, so the script sets it on every control; setting it on a parent has no
effect. Coordinates are integers and elements have no ids, so that equal traces give equal text.

Next read `lockstep`, which groups a trace into warp requests. The figures are `memory_map`, `timeline`,
`pipeline` and `warp_grid`. `by_line` is a table, and `page` renders a whole report.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import escape
from typing import Any
from urllib.parse import quote

from sim.nouns import plural
from sim.recording import Recording

# The Okabe-Ito palette, which is safe for colour-blind readers. Global memory is darker than shared memory.
FILLS = {
    "load": "#56b4e9",
    "store": "#e69f00",
    "atomic": "#cc79a7",
    "global-load": "#0072b2",
    "global-store": "#d55e00",
    "clash": "#d55e00",
    "active": "#009e73",
}
CSS = (
    "text{font:11px system-ui,sans-serif;fill:var(--ink)}"
    ".mark{font-size:9px;fill:#000;text-anchor:middle}.end{text-anchor:end}.middle{text-anchor:middle}"
    ".empty{fill:var(--faint)}.line{fill:var(--ink)}.none{fill:none}.rail{fill:var(--dim)}"
    ".cursor{fill:none;stroke:var(--ink);stroke-width:2}.now{stroke:var(--ink);stroke-width:2}"
    + "".join(f".{name}{{fill:{colour}}}" for name, colour in FILLS.items())
    # Black text on this blue would have a contrast of only 4:1.
    + ".global-load+.mark{fill:#fff}.on-dark{fill:#fff}"
)
LIGHT, DARK = (
    {"ink": "#1b1b1b", "paper": "#ffffff", "faint": "#ebebeb", "dim": "#8a8a8a"},
    {"ink": "#e8e8e8", "paper": "#161616", "faint": "#333333", "dim": "#8a8a8a"},
)
THEMED = {
    "ink": "var(--jp-content-font-color1, var(--vscode-editor-foreground, {}))",
    "paper": "var(--jp-layout-color0, var(--vscode-editor-background, {}))",
    "faint": "var(--jp-layout-color2, {})",
}
NOTEBOOK_CSS = """.sim-view{background:var(--paper);color:var(--ink);padding:8px;font:14px/1.4 system-ui,sans-serif}
.sim-view pre,.sim-view code{font:13px/1.45 var(--jp-code-font-family,ui-monospace,monospace);background:none!important;color:inherit;padding:0;margin:0}
.sim-view pre{overflow-x:auto;margin:6px 0}.sim-view figure{margin:14px 0 0}.sim-view figcaption{font-weight:600}
.sim-view svg,.sim-view img{display:block;max-width:100%;height:auto;margin:6px 0}.sim-view input{width:min(100%,480px);vertical-align:middle}
.sim-view output{display:block;min-height:2.8em;white-space:pre-wrap}.sim-view small{opacity:.8}.sim-view table{border-collapse:collapse;margin:8px 0;font-size:13px;display:block;overflow-x:auto}
.sim-view th,.sim-view td{text-align:right!important;padding:1px 10px 1px 0;border:0;background:var(--paper);white-space:pre}
.sim-view th{font-weight:600;border-bottom:1px solid var(--dim)}.sim-view .text{text-align:left!important}.sim-view .source{font-size:12px;white-space:pre-wrap;display:block;min-width:34em}.sim-view h4{margin:12px 0 2px;font-size:14px;font-weight:600}
.sim-view .error,.sim-view .warning{white-space:pre-wrap}.sim-view .error{border-left:4px solid #d55e00;padding-left:8px}.sim-view .warning{border-left:4px solid #e69f00;padding-left:8px}
"""  # noqa: E501
SCRIPT = """(()=>{const me=document.currentScript;if(!me)return;
const root=me.parentElement,live=root.querySelector(".sim-live"),scene=%s;
live.innerHTML=scene.svg+'<button aria-label="one step back">◀</button> <label>step <input type="range" min="0" max="'+(scene.steps.length-1)+'" value="0"></label> <button aria-label="one step on">▶</button> <span></span><output></output>';
for(const control of live.querySelectorAll("button,input"))control.dataset.lmSuppressShortcuts="";
const make=name=>svg.appendChild(document.createElementNS("http://www.w3.org/2000/svg",name));
const svg=live.querySelector("svg"),slider=live.querySelector("input"),cells=scene.cells.map(([x,y,w,h])=>{
const box=make("rect"),mark=make("text");for(const [k,v] of Object.entries({x,y,width:w,height:h}))box.setAttribute(k,v);
mark.setAttribute("x",x+(w>>1));mark.setAttribute("y",y+(h>>1)+3);mark.setAttribute("class","mark");return[box,mark]});
const show=()=>{const at=+slider.value,state=cells.map(()=>[scene.empty,"",0]);
for(let s=scene.adds?0:at;s<=at;s++)for(let now=scene.steps[s][1],c=0;c<now.length;c+=3)state[now[c]]=[scene.looks[now[c+1]],now[c+2],s==at&&scene.adds];
state.forEach(([look,text,now],i)=>{cells[i][0].setAttribute("class",look+(now?" now":""));cells[i][1].textContent=text});
live.querySelector("span").textContent=(at+1)+" of "+scene.steps.length;live.querySelector("output").textContent=scene.steps[at][0]};
slider.addEventListener("input",show);live.querySelectorAll("button").forEach((button,on)=>button.addEventListener("click",()=>{slider.value=+slider.value+2*on-1;show()}));root.querySelector(".sim-static").hidden=true;live.hidden=false;show()})()"""  # noqa: E501


def variables(values: dict[str, str], themed: bool) -> str:
    """Return CSS custom properties. `themed`: prefer the notebook's own colours where it defines them."""
    return "".join(
        f"--{name}:{THEMED.get(name, '{}').format(value) if themed else value};"
        for name, value in values.items()
    )


STYLE = (
    f".sim-view{{{variables(LIGHT, True)}}}"
    f"@media(prefers-color-scheme:dark){{.sim-view{{{variables(DARK, True)}}}}}"
    f"{NOTEBOOK_CSS}" + "".join(f".sim-view {rule}}}" for rule in CSS.split("}") if rule)
)
IMAGE_STYLE = (
    f"svg{{{variables(LIGHT, False)}}}@media(prefers-color-scheme:dark){{svg{{{variables(DARK, False)}}}}}"
    f"{CSS}.paper{{fill:var(--paper)}}"
)


# Inline styles survive in notebooks that strip style sheets.
LEFT_ALIGNED = 'class="text" style="text-align:left"'


Row = tuple[Any, ...]  # a row of the table that describes a picture


@dataclass(frozen=True)
class View:
    """A figure or table. `str(view)` is its text, and a notebook displays its HTML."""

    text: str
    body: str  # HTML

    @property
    def html(self) -> str:
        return f'<div class="sim-view"><style>{STYLE}</style>{self.body}</div>'

    def _repr_html_(self) -> str:
        return self.html

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


@dataclass
class Scene:
    """A picture of cells whose looks change in steps.

    cells: (x, y, width, height) per cell.
    steps: (description, [(cell, look, mark), ...]) per step. A look is a CSS class.
    adds: whether steps accumulate. If not, each step starts with empty cells.
    notices: sentences about omitted data.
    """

    title: str
    width: int
    height: int
    adds: bool = True
    empty: str = "empty"  # look of a cell that was not accessed
    boxes: list[Row] = field(default_factory=list)  # Boxes that never change: (look, x, y, width, height).
    labels: list[Row] = field(default_factory=list)  # (x, y, text, look)
    cells: list[tuple[int, int, int, int]] = field(default_factory=list)
    steps: list[tuple[str, list[Row]]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    def of_trace(self, recording: Recording, most: int, total: int, steps: str) -> View:
        """Return the View, with notices if only `most` of `total` steps are drawn or the trace is
        incomplete."""
        if total > most:
            self.notices.append(f"The first {most} of {total:,} {steps} are drawn.")
        if recording.cut:
            self.notices.append(f"The trace was full: {plural(recording.cut, 'later event')} are not in it.")
        return self.view()

    def view(self) -> View:
        words = [f"{position}. {label}" for position, (label, _) in enumerate(self.steps, 1)]
        # Keep the text short in a terminal.
        shown = words if len(words) <= 24 else [*words[:12], "...", *words[-4:]]
        text = "\n  ".join([self.title, *self.notices, *shown])
        return View(text, self.figure("\n".join(shown)))

    def figure(self, words: str) -> str:
        """Return the figure as HTML: a picture with a slider, and static images for notebooks that strip
        scripts."""
        notices = "".join(f"<div><small>{escape(notice)}</small></div>" for notice in self.notices)
        images = "".join(
            f"<div>{escape(name)}: {escape(self.steps[at][0])}</div>{self.image(at)}"
            for name, at in (("First step", 0), ("Last step", -1))
        )
        looks = sorted({look for _, changes in self.steps for _, look, _ in changes})
        steps = [
            [label, [part for cell, look, mark in changes for part in (cell, looks.index(look), mark)]]
            for label, changes in self.steps
        ]
        svg, cells = self.svg([]), self.cells
        scene = dict(svg=svg, cells=cells, steps=steps, looks=looks, adds=self.adds, empty=self.empty)
        # An escaped `<` keeps the data from ending the script element.
        data = json.dumps(scene, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
        return (
            f"<figure><figcaption>{escape(self.title)}</figcaption>{notices}<div"
            f' class="sim-static">{images}</div>'
            '<div class="sim-live" hidden></div>'
            f"<details><summary>in words</summary><pre>{escape(words)}</pre></details>"
            f"<script>{SCRIPT % data}</script></figure>"
        )

    def image(self, at: int) -> str:
        """Return step `at` (0 or -1) as an <img> element."""
        at %= len(self.steps)
        state = dict.fromkeys(range(len(self.cells)), (self.empty, ""))
        for _, changes in self.steps[0 if self.adds else at : at + 1]:
            state |= {cell: (look, mark) for cell, look, mark in changes}
        drawn = [(look, *self.cells[cell]) for cell, (look, _) in state.items()]
        drawn += [("none now", *self.cells[cell]) for cell, *_ in self.steps[at][1] if self.adds]
        marks = [
            (x + (w >> 1), y + (h >> 1) + 3, mark, "mark on-dark" if look == "global-load" else "mark")
            for (x, y, w, h), (look, mark) in zip(self.cells, state.values())
            if mark != ""
        ]
        head = f"<style>{IMAGE_STYLE}</style><rect class='paper' width='100%' height='100%'/>"
        svg = self.svg(drawn, marks, head)
        alternative = escape(f"{self.title}. {self.steps[at][0]}", quote=True)
        return (
            f'<img alt="{alternative}" width="{self.width}"'
            f' src="data:image/svg+xml,{quote(svg, safe=" =:/;,().-!")}">'
        )

    def svg(self, drawn: Iterable[Row], marks: Iterable[Row] = (), head: str = "") -> str:
        """Return the picture as SVG. Boxes with the same look are combined into one path."""
        alike: dict[str, list[Row]] = {}
        for look, *box in [*self.boxes, *drawn]:
            alike.setdefault(look, []).append(tuple(box))
        shapes = "".join(
            f"<path class='{look}' d='{''.join(f'M{x} {y}h{w}v{h}h{-w}z' for x, y, w, h in boxes)}'/>"
            for look, boxes in ((look, merge_boxes(boxes)) for look, boxes in alike.items())
        )
        texts = "".join(
            f"<text x='{x}' y='{y}' class='{look}'>{escape(str(text))}</text>"
            for x, y, text, look in [*self.labels, *marks]
        )
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {self.width} {self.height}'"
            f" width='{self.width}' role='img'"
            f" aria-label='{escape(self.title, quote=True)}'>{head}{shapes}{texts}</svg>"
        )

    def legend(self, y: int, *entries: tuple[str, str]) -> None:
        """Add a legend: coloured boxes with their meaning, from left to right."""
        x = 8
        for look, meaning in entries:
            self.boxes.append((look, x, y, 12, 12))
            self.labels.append((x + 17, y + 10, meaning, ""))
            # A letter is 7 pixels wide on average at this font size.
            x += 34 + 7 * len(meaning)


def merge_boxes(boxes: Iterable[Row]) -> list[list[int]]:
    """Merge boxes (x, y, width, height) that touch horizontally and have the same height."""
    result: list[list[int]] = []
    for x, y, w, h in sorted(boxes, key=lambda box: (box[1], box[3], box[0])):
        if result and result[-1][1::2] == [y, h] and result[-1][0] + result[-1][2] == x:
            result[-1][2] += w
        else:
            result.append([x, y, w, h])
    return result


VERBS = {
    "load": ("load", "loads"),
    "store": ("store to", "stores to"),
    "atomic": ("atomically change", "atomically changes"),
}  # plural and singular verb forms


def ranges(numbers: Iterable[int]) -> str:
    """Return [0, 1, 2, 5] as "0-2, 5"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
