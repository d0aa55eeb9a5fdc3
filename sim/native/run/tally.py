"""Counters of compiled launches: what the lanes of a warp do together, counted from the words that compiled
code has written down (sim.native.codegen.access_log).

The rules are those of sim.device.DeviceSpec (requests, sectors, wavefronts), as functions of words; a test
holds them to it.
"""

import ctypes
import functools
from dataclasses import dataclass

import numpy as np

from sim.context import Context
from sim.events import ACTIONS, ADDRESS_BITS, ADDRESS_MASK, GLOBAL, SHARED, SITES, SPACES
from sim.native.codegen.access_log import EPOCH_ENDS, PLACE_SHIFT, SIZE_SHIFT, THREAD_GOES_ON, TOGETHER
from sim.native.codegen.cache import KeptOwn
from sim.native.codegen.int64 import words
from sim.native.codegen.launch_state import shared
from sim.native.codegen.linking import kernel
from sim.native.codegen.shadow import WARP_SHIFT
from sim.observers.banks import Banks
from sim.observers.branches import Branches
from sim.observers.coalescing import Coalescing
from sim.observers.traffic import Traffic

BRANCH, ATOMIC = ACTIONS["branch"], ACTIONS["atomic"]
MACHINE = (1 << SIZE_SHIFT) - 1  # bits of an address
SLOTS = 4  # of a place: one for each memory space, as executions count apart; branches have the last
LANES = 32
COUNTED = {Coalescing: "requests_to_global", Banks: "requests_to_shared", Branches: "branches"}


@shared
class Counting(ctypes.Structure):
    """What counting reads and writes: numbers, and the addresses of arrays of int64."""

    _fields_ = [
        (name, ctypes.c_int64)
        for name in (
            *("entries", "entry_count", "begin", "end"),  # the log; where an epoch begins, and ends
            *("sector_bytes", "bank_bytes", "banks"),
            *("actions", "owners"),  # of each place: what a thread does there, the array that it last named
            *("homes", "home_count"),  # of each array first byte, the byte behind the last, base, space
            *(
                "together",
                "traffic",
                "requests_to_global",
                "requests_to_shared",
                "branches",
            ),  # what is counted
            *("is_touched", "touched", "touched_count"),  # the slots that the epoch comes to
            *("done", "threads"),  # of each slot how often each thread (of whole warps) has come
            *("first", "warps"),  # of each slot each warp's first request
            *("rows", "row_count", "requests"),  # of each request the size and address of each lane, or -1
            *("wanted", "in_bank"),  # of each bank the words that a request wants, and how many
        )
    ]


@functools.partial(kernel, kept=KeptOwn)
def count(counting):
    return counted(counting)


@words
def counted(counting) -> bool:
    """Count the epochs of a log; False where one has more requests than there are rows."""
    for end in range(counting.end, counting.entry_count):
        if counting.entries[end] >> PLACE_SHIFT == EPOCH_ENDS:
            counting.end = end
            if counting.requests == 0:
                find_slots(counting)
                number_requests(counting)
            if counting.requests > counting.row_count:
                return False
            fill_rows(counting)
            count_requests(counting)
            counting.begin = end + 1
            counting.requests = 0
    return True


@words
def find_slots(counting):
    """How often each thread comes to each place; an entry becomes slot, size and simulated address, or -1."""
    thread = 0
    for i in range(counting.begin, counting.end):
        entry = counting.entries[i]
        if entry >> PLACE_SHIFT == THREAD_GOES_ON:
            thread = entry & MACHINE
        elif entry >> PLACE_SHIFT == TOGETHER:
            counting.together[entry & MACHINE] += 1
            counting.entries[i] = -1
        elif counting.actions[entry >> PLACE_SHIFT] == BRANCH:
            slot = SLOTS * (entry >> PLACE_SHIFT) + SLOTS - 1
            counting.entries[i] = come(counting, thread, slot, 0, entry & MACHINE)
        else:
            counting.entries[i] = find_space(counting, thread, entry)


@words
def find_space(counting, thread, entry):
    place, address, size = entry >> PLACE_SHIFT, entry & MACHINE, entry >> SIZE_SHIFT & 7
    owner = owner_of(counting, place, address)
    counting.traffic[(place * counting.home_count + owner) * 8 + size] += 1
    home = counting.homes + 32 * owner
    if home[3] != GLOBAL and home[3] != SHARED:
        return -1
    return come(counting, thread, SLOTS * place + home[3], size, address - home[0] + home[2])


@words
def owner_of(counting, place, address):
    """The array that an address is in: most often the one of the last time."""
    if is_in(counting.homes + 32 * counting.owners[place], address):
        return counting.owners[place]
    for owner in range(counting.home_count):
        if is_in(counting.homes + 32 * owner, address):
            counting.owners[place] = owner
            return owner


@words
def is_in(home, address) -> bool:
    return home[0] <= address < home[1]


@words
def come(counting, thread, slot, size, address):
    """A thread comes to a slot once more."""
    counting.done[slot * counting.threads + thread] += 1
    if counting.is_touched[slot] == 0:
        counting.is_touched[slot] = 1
        counting.touched[counting.touched_count] = slot
        counting.touched_count += 1
    return (slot << 3 | size) << ADDRESS_BITS | address


@words
def number_requests(counting):
    """One for the k-th time that the lanes of a warp come to a slot."""
    for t in range(counting.touched_count):
        slot = counting.touched[t]
        done = counting.done + 8 * slot * counting.threads
        for warp in range(counting.warps):
            counting.first[slot * counting.warps + warp] = counting.requests
            most = 0
            for lane in range(LANES):
                most = max(most, done[LANES * warp + lane])
            counting.requests += most
        forget_threads(counting, slot)


@words
def forget_threads(counting, slot):
    for thread in range(counting.threads):
        counting.done[slot * counting.threads + thread] = 0


@words
def fill_rows(counting):
    for i in range(LANES * counting.requests):
        counting.rows[i] = -1
    thread = 0
    for i in range(counting.begin, counting.end):
        entry = counting.entries[i]
        if entry >> PLACE_SHIFT == THREAD_GOES_ON:
            thread = entry & MACHINE
        elif entry != -1:
            slot = entry >> ADDRESS_BITS + 3
            come, warp = slot * counting.threads + thread, slot * counting.warps + (thread >> WARP_SHIFT)
            row = counting.first[warp] + counting.done[come]
            counting.rows[LANES * row + (thread & LANES - 1)] = entry & (8 << ADDRESS_BITS) - 1
            counting.done[come] += 1


@words
def count_requests(counting):
    for t in range(counting.touched_count):
        slot = counting.touched[t]
        last = counting.requests
        if t + 1 < counting.touched_count:
            last = counting.first[counting.touched[t + 1] * counting.warps]
        for request in range(counting.first[slot * counting.warps], last):
            count_request(counting, slot // SLOTS, slot % SLOTS, counting.rows + 8 * LANES * request)
        forget_threads(counting, slot)
        counting.is_touched[slot] = 0
    counting.touched_count = 0


@words
def count_request(counting, place, space, row):
    if space == SLOTS - 1:
        count_branch(counting.branches + 16 * place, row)
    elif space == GLOBAL:
        count_sectors(counting, counting.requests_to_global + 24 * place, row)
    else:
        serial = counting.actions[place] == ATOMIC
        count_wavefronts(counting, counting.requests_to_shared + 32 * place, row, serial)


@words
def count_branch(counts, row):
    yes, no = 0, 0
    for lane in range(LANES):
        if row[lane] >= 0:
            yes |= row[lane]
            no |= ~row[lane]
    counts[0] += 1
    counts[1] += yes & no & 1


@words
def count_sectors(counting, counts, row):
    """One request to global memory: DeviceSpec.sectors."""
    addresses, sectors = counting.wanted, counting.wanted + 8 * LANES
    n_seen, n_touched, size = 0, 0, 0
    for lane in range(LANES):
        if row[lane] >= 0:
            address, size = row[lane] & ADDRESS_MASK, 1 << (row[lane] >> ADDRESS_BITS)
            n_seen = with_new(addresses, n_seen, address, True)
            n_touched = with_new(sectors, n_touched, address // counting.sector_bytes, True)
    counts[0] += 1
    counts[1] += n_touched
    counts[2] += (n_seen * size + counting.sector_bytes - 1) // counting.sector_bytes


@words
def with_new(values, n, value, once):
    """Put `value` behind the first n values, if `once` unless it is among them; how many there are then. The
    latest are the likeliest."""
    for i in range(n if once else 0):
        if values[n - 1 - i] == value:
            return n
    values[n] = value
    return n + 1


@words
def count_wavefronts(counting, counts, row, serial):
    """One request to shared memory: DeviceSpec.wavefronts."""
    words = 1
    for lane in range(LANES):
        if row[lane] >= 0:
            words = max(words, (1 << (row[lane] >> ADDRESS_BITS)) // counting.bank_bytes)
    total, fewest, ways = 0, 0, 0
    for phase in range(words):
        most = 0
        for bank in range(counting.banks):
            counting.in_bank[bank] = 0
        for lane in range(phase * LANES // words, (phase + 1) * LANES // words):
            if row[lane] >= 0:
                for part in range(words):
                    word = (row[lane] & ADDRESS_MASK) // counting.bank_bytes + part
                    bank = word % counting.banks
                    known = counting.wanted + 8 * LANES * bank
                    counting.in_bank[bank] = with_new(known, counting.in_bank[bank], word, not serial)
                    most = max(most, counting.in_bank[bank])
        total += most
        fewest += most > 0
        ways = max(ways, most)
    counts[0] += 1
    counts[1] += total
    counts[2] += fewest
    counts[3] = max(counts[3], ways)


@dataclass(frozen=True)
class Home:
    """An array that words may name: its name and space, where it is, and its simulated address."""

    name: str
    space: int
    low: int
    high: int
    base: int


class Tally:
    """The counters of one launch. `places`: the Sites of the lowered text, `operations` what threads do
    together there."""

    def __init__(self, launch, module, homes):
        self.launch, self.module, self.homes = launch, module, homes
        n, spec, warps = len(module.sites), launch.spec, -(-launch.threads // LANES)
        self.counting = Counting(
            sector_bytes=spec.sector_bytes,
            bank_bytes=spec.bank_bytes,
            banks=spec.banks,
            home_count=len(homes),
            threads=LANES * warps,
            warps=warps,
        )
        self.held = {}
        self.hold("actions", [ACTIONS[site.action] for site in module.sites])
        self.hold("homes", [(home.low, home.high, home.base, home.space) for home in homes])
        for name, shape in {
            "owners": n,
            "together": n,
            "traffic": (n, len(homes), 8),
            "requests_to_global": (n, 3),
            "requests_to_shared": (n, 4),
            "branches": (n, 2),
            "is_touched": SLOTS * n,
            "touched": SLOTS * n,
            "done": (SLOTS * n, LANES * warps),
            "first": (SLOTS * n, warps),
            "wanted": (max(spec.banks, 2), LANES),
            "in_bank": spec.banks,
        }.items():
            self.hold(name, np.zeros(shape, np.int64))

    def hold(self, name, values):
        """Give compiled code the address of an array."""
        array = self.held[name] = np.ascontiguousarray(values, np.int64)
        setattr(self.counting, name, array.ctypes.data)

    def add(self, log):
        counting = self.counting
        counting.entries, counting.entry_count, counting.begin, counting.end = log.ctypes.data, len(log), 0, 0
        while not count(ctypes.addressof(counting)):
            counting.row_count = 2 * counting.requests
            self.hold("rows", np.empty((counting.row_count, LANES), np.int64))

    def counters(self):
        """What the tools that count say of it."""
        context = Context([], self.launch.spec, None, self.launch.block, None)
        sites = [SITES.add(site) for site in self.module.sites]
        for tool in self.launch.observers:
            tool = tool() if isinstance(tool, type) else tool
            if type(tool) is Traffic:
                self.fill_traffic(tool, sites)
            elif type(tool) in COUNTED:
                rows = self.held[COUNTED[type(tool)]]
                tool.sites = {sites[place]: row.tolist() for place, row in enumerate(rows) if row[0]}
            else:
                continue
            tool.launch_finished(context)
        own = ("threads", "blocks", "barriers")
        return {name: value for name, value in context.counters.items() if name not in own}

    def fill_traffic(self, tool, sites):
        traffic, together = self.held["traffic"], self.held["together"]
        for place, owner, size in np.argwhere(traffic).tolist():
            home = self.homes[owner]
            key = sites[place], SPACES[home.space], home.name, 1 << size
            tool.accessed[key] += int(traffic[place, owner, size])
        for place in np.flatnonzero(together).tolist():
            name = self.module.operations[place]
            name = "syncthreads" if name.startswith("syncthreads") else name
            tool.together[name, sites[place]] += int(together[place])
