"""The pipeline figure: bulk copies and wgmma as bars from their issue to their end, and the phases of
mbarriers.

A row shows a stage (the shared memory of a copy), the products of a warp, or an mbarrier. Time is the number
of events, not of clock cycles. In the simulator, a copy ends as late as the program allows."""

from collections.abc import Sequence

from sim.recording import AsyncEvent
from sim.viz import Scene, View

LEFT, TOP, ROW, WIDE, NARROW, MOST_COLUMNS = 150, 40, 20, 14, 5, 144
LEGEND = {
    "load": "copy to shared memory",
    "store": "copy from it",
    "active": "wgmma",
    "line": "phase complete",
    "rail": "a warp has waited",
}


def pipeline(events: Sequence[AsyncEvent], title: str = "bulk copies, wgmma and phases") -> View:
    """Return a View of the events of one block, recorded by the observer Pipeline.

    Example: `seen = Pipeline(); simulate(kernel, observers=[*DEFAULT, seen])[grid, block](...);
    pipeline(seen.events)`.
    """
    events, total = events[:MOST_COLUMNS], len(events)
    lanes = dict.fromkeys(event.lane for event in events if event.action == "issue")
    lanes |= dict.fromkeys(event.lane for event in events if event.action in ("pass", "end") and event.lane)
    row = {lane: TOP + i * ROW for i, lane in enumerate(lanes)}
    # Fit all columns into 720 pixels if possible.
    column = min(WIDE, max(NARROW, 720 // max(len(events), 1)))
    scene = Scene(
        title, LEFT + column * len(events) + 12, TOP + ROW * len(lanes) + 16, adds=False, empty="none"
    )
    scene.width = max(scene.width, 640)
    scene.labels += [(LEFT - 8, y + 13, lane, "end") for lane, y in row.items()]
    ends = {event.operation: i for i, event in enumerate(events) if event.action == "end"}
    for i, event in enumerate(events):
        x = LEFT + column * i
        if event.action == "issue":
            last = ends.get(event.operation, len(events) - 1)
            look = "active" if event.text.startswith("wgmma") else "load" if " to " in event.text else "store"
            scene.boxes.append((look, x, row[event.lane] + 3, column * (last - i + 1) - 3, ROW - 8))
        elif event.lane:
            look, wide = ("line", 3) if event.action == "end" else ("rail", column - 2)
            scene.boxes.append((look, x, row[event.lane] + 3, wide, ROW - 8))
        scene.cells.append((x - 1, TOP - 4, column - 1, ROW * len(lanes) + 6))
        scene.steps.append((event.text, [(i, "cursor", "")]))
    drawn = {look for look, *_ in scene.boxes}
    scene.legend(8, *((look, meaning) for look, meaning in LEGEND.items() if look in drawn))
    if total > len(events):
        scene.notices.append(f"The first {MOST_COLUMNS} of {total:,} events are drawn.")
    if not events:
        return View(f"{title}: none", f"<div>{title}: none</div>")
    return scene.view()
