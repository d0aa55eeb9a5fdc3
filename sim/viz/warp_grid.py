"""The warp grid: the accesses of a source line, warp by warp, with active lanes and the bank or sector of
each lane."""

import numpy as np

from sim.events import SITES, Index3, Site, index_text
from sim.nouns import plural
from sim.recording import Recording
from sim.viz import VERBS, Row, Scene, View
from sim.viz.lockstep import Request, block_number, requests

MOST_STEPS = 128
LEFT, TOP, SIDE = 92, 60, 16
Cost = tuple[str, list[tuple[int, int]], dict[int, int], set[int]]


def warp_grid(
    recording: Recording,
    line: int | None = None,
    function: str | None = None,
    block: int | Index3 | None = None,
    warp: int | None = None,
) -> View:
    """Return a View of the accesses to shared and global memory on one line.

    line: a line of the kernel, or of `function`; None for all lines.
    block, warp: the block, and one of its warps; None for all warps.

    Each row is a lane. Each column is a bank of shared memory, or a sector of global memory that the request
    touches, in address order. The last row counts the words requested per bank, which is the number of
    wavefronts, or the lanes served per sector.

    Raise ValueError if the line has no such access.
    """
    number, spec = block_number(recording, block), recording.spec
    found = [r for r in requests(recording, number) if matches(recording, r, line, function, warp)]
    if not found:
        where = "the kernel" if line is None else f"line {line}"
        raise ValueError(
            f"{where} made no access to shared or global memory in block"
            f" {index_text(recording.blocks[number])}; lines that did: {lines_with_accesses(recording)}"
        )
    columns = max(spec.banks, spec.warp_size)
    what = "every line" if line is None else source_of(recording, found[0])
    title = f"block {index_text(recording.blocks[number])}, {function + ' ' if function else ''}{what}"
    width, height = LEFT + (columns + 1) * SIDE + 8, TOP + (spec.warp_size + 1) * SIDE + 24
    scene = Scene(title, width, height, adds=False)
    add_grid(scene, spec.warp_size, columns)
    scene.legend(
        6,
        ("active", "lane takes part"),
        ("load", "served at once"),
        ("clash", "bank conflict, or more sectors than needed"),
    )
    scene.steps = [step(recording, request, columns, line is None) for request in found[:MOST_STEPS]]
    return scene.of_trace(recording, MOST_STEPS, len(found), "requests")


def add_grid(scene: Scene, lanes: int, columns: int) -> None:
    """Add the cells of all lanes and columns, the row of counts below them, and their labels."""
    scene.cells = [(LEFT - SIDE - 6, TOP + lane * SIDE, SIDE - 2, SIDE - 2) for lane in range(lanes)]
    scene.cells += [
        (LEFT + column * SIDE, TOP + lane * SIDE, SIDE - 2, SIDE - 2)
        for lane in range(lanes + 1)
        for column in range(columns)
    ]
    scene.labels = [
        (LEFT - SIDE - 12, TOP + lane * SIDE + 11, f"lane {lane}" if lane == 0 else lane, "end")
        for lane in range(0, lanes, 4)
    ]
    scene.labels += [(LEFT + column * SIDE + 7, TOP - 6, column, "middle") for column in range(0, columns, 4)]
    scene.labels += [
        (LEFT - 8, TOP + lanes * SIDE + 11, "in all", "end"),
        (LEFT, TOP - 22, "banks of shared memory, or sectors of global memory from the lowest", ""),
    ]


def source_of(recording: Recording, request: Request) -> str:
    """Return "line 5: source text" for the line of a request."""
    site = SITES[int(recording.site[request.rows[0]])]
    return f"line {site.line}: {site.source}"


def matches(
    recording: Recording, request: Request, line: int | None, function: str | None, warp: int | None
) -> bool:
    row = request.rows[0]
    site = SITES[int(recording.site[row])]
    return (
        line in (None, site.line)
        and function in (None, site.function)
        and warp in (None, request.warp)
        and recording.arrays[recording.array[row]].space in ("shared", "global")
    )


def lines_with_accesses(recording: Recording) -> str:
    lines = {SITES[site].line for site in np.unique(recording.site[recording.array >= 0]).tolist()}
    return ", ".join(map(str, sorted(lines))) or "none"


def step(recording: Recording, request: Request, columns: int, says_line: bool) -> tuple[str, list[Row]]:
    """Return (description with the cost, [(cell, look, mark)]) for one request."""
    rows, spec = request.rows, recording.spec
    home, site = recording.arrays[recording.array[rows[0]]], SITES[int(recording.site[rows[0]])]
    lanes = recording.thread[rows] % spec.warp_size
    cost, asked, total, clashing = (banks if home.space == "shared" else sectors)(
        recording, rows, lanes, home.itemsize, site
    )
    words = (
        f"warp {request.warp}, epoch {request.epoch}: {len(rows)} of {spec.warp_size} lanes"
        f" {VERBS[site.kind][0]} {home.space} array {home.name}: {cost}"
    )
    if says_line:
        words = f"{source_of(recording, request)}\n     {words}"
    looks: list[Row] = [(lane, "active", "") for lane in lanes.tolist()]
    in_all = [(spec.warp_size, column, count) for column, count in total.items()]
    looks += [
        (spec.warp_size + row * columns + column, "clash" if column in clashing else "load", mark)
        for row, column, mark in [*((lane, column, "") for lane, column in asked), *in_all]
        if column < columns
    ]
    return words, looks


def banks(recording: Recording, rows: np.ndarray, lanes: np.ndarray, itemsize: int, site: Site) -> Cost:
    """Return (cost in words, [(lane, bank)], {bank: words requested at a time}, banks with conflicts)."""
    spec, address = recording.spec, recording.address[rows]
    size = np.full(len(rows), itemsize)
    (wavefronts,), (fewest,), (ways,) = spec.wavefronts(
        np.zeros(len(rows), np.int64), lanes, address, size, np.full(len(rows), site.kind == "atomic")
    )
    each = max(itemsize // spec.bank_bytes, 1)
    asked: list[tuple[int, int]] = []
    wanted: dict[int, dict[int, list[int]]] = {}
    for lane, start in zip(lanes.tolist(), address.tolist()):
        for word in range(start // spec.bank_bytes, start // spec.bank_bytes + each):
            # Accesses wider than a word are served in phases: half or quarter warps.
            bank, phase = word % spec.banks, lane * each // spec.banks
            asked.append((lane, bank))
            wanted.setdefault(bank, {}).setdefault(phase, []).append(word)
    # Atomics on the same word are serialised; plain accesses to it are a broadcast.
    together = len if site.kind == "atomic" else lambda words: len(set(words))
    total = {bank: max(map(together, phases.values())) for bank, phases in wanted.items()}
    conflict = "no bank conflict" if ways == 1 else f"{ways}-way bank conflict"
    return (
        f"{conflict}, {plural(int(wavefronts), 'wavefront')} (fewest {fewest})",
        asked,
        total,
        {bank for bank, n in total.items() if n > 1},
    )


def sectors(recording: Recording, rows: np.ndarray, lanes: np.ndarray, itemsize: int, site: Site) -> Cost:
    """Return (the cost as text, [(lane, sector)], {sector: number of lanes}, the set of sectors). The set is
    empty if the access touches no more sectors than the minimum."""
    spec, address = recording.spec, recording.address[rows]
    (touched,), (fewest,) = spec.sectors(np.zeros(len(rows), np.int64), address, np.full(len(rows), itemsize))
    distinct, column = np.unique(address // spec.sector_bytes, return_inverse=True)
    total = dict(enumerate(np.bincount(column).tolist()))
    return (
        f"{plural(int(touched), 'sector')} (fewest {fewest})",
        list(zip(lanes.tolist(), column.tolist())),
        total,
        set(total) if touched > fewest else set(),
    )
