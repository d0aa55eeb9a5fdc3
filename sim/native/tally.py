"""Counters of compiled launches: what the lanes of a warp do together, counted from the words that compiled
code has written down (sim.native.logged).

The rules are those of sim.device.DeviceSpec (requests, sectors, wavefronts), in loops that Numba compiles; a
test holds them to it.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from sim.context import Context
from sim.events import ADDRESS_BITS, ADDRESS_MASK, GLOBAL, KINDS, SHARED, SITES, SPACES
from sim.native.cache import KeptOwn
from sim.native.logged import EPOCH_ENDS, PLACE_SHIFT, SIZE_SHIFT, THREAD_GOES_ON, TOGETHER
from sim.observers import COUNTERS
from sim.observers.banks import Banks
from sim.observers.branches import Branches
from sim.observers.coalescing import Coalescing
from sim.observers.traffic import Traffic

BRANCH, ATOMIC = KINDS["branch"], KINDS["atomic"]
MACHINE = (1 << SIZE_SHIFT) - 1  # bits of an address
SLOTS = 4  # of a place: one for each memory space, as executions count apart; branches have the last
LANES, THREADS = 32, 1024


def compiled(function):
    dispatcher = njit(error_model="numpy", nogil=True)(function)
    dispatcher._cache = KeptOwn(function)
    return dispatcher


@compiled
def count(words, kinds, homes, spec, together, traffic, global_requests, shared_requests, branches):
    """Count all epochs of a log. homes: of each array its first byte, the byte behind its last, its simulated
    address and its space. spec: bytes of a sector and of a bank, banks."""
    slots = SLOTS * len(kinds)
    done, first, owner_of = (
        np.zeros((slots, THREADS), np.int32),
        np.zeros((slots, THREADS // LANES), np.int64),
        np.zeros(len(kinds), np.int64),
    )
    touched, is_touched = np.empty(slots, np.int64), np.zeros(slots, np.bool_)
    lanes = np.empty((1024, LANES), np.int64)
    begin = 0
    for end in range(len(words)):
        if words[end] >> PLACE_SHIFT != EPOCH_ENDS:
            continue
        # 1. how often each thread comes to each place; a word becomes slot, size and simulated address
        thread, n_touched = 0, 0
        for i in range(begin, end):
            place = words[i] >> PLACE_SHIFT
            if place == THREAD_GOES_ON:
                thread = words[i] & MACHINE
                continue
            if place == TOGETHER:
                together[words[i] & MACHINE] += 1
                words[i] = -1
                continue
            address, size = words[i] & MACHINE, words[i] >> SIZE_SHIFT & 7
            if kinds[place] == BRANCH:
                slot = SLOTS * place + SLOTS - 1
            else:
                owner = owner_of[place]
                if not homes[owner, 0] <= address < homes[owner, 1]:
                    owner = 0
                    while not homes[owner, 0] <= address < homes[owner, 1]:
                        owner += 1
                    owner_of[place] = owner
                traffic[place, owner, size] += 1
                space = homes[owner, 3]
                if space != GLOBAL and space != SHARED:
                    words[i] = -1
                    continue
                slot = SLOTS * place + space
                address += homes[owner, 2] - homes[owner, 0]
            words[i] = (slot << 3 | size) << ADDRESS_BITS | address
            done[slot, thread] += 1
            if not is_touched[slot]:
                is_touched[slot] = True
                touched[n_touched] = slot
                n_touched += 1
        # 2. a request for the k-th time that the lanes of a warp come to a slot
        requests = 0
        for t in range(n_touched):
            slot = touched[t]
            for warp in range(THREADS // LANES):
                first[slot, warp] = requests
                most = 0
                for lane in range(LANES):
                    most = max(most, done[slot, LANES * warp + lane])
                requests += most
        if requests > len(lanes):
            lanes = np.empty((2 * requests, LANES), np.int64)
        lanes[:requests] = -1
        for t in range(n_touched):
            done[touched[t]] = 0
        thread = 0
        for i in range(begin, end):
            word = words[i]
            if word == -1:
                continue
            if word >> PLACE_SHIFT == THREAD_GOES_ON:
                thread = word & MACHINE
                continue
            slot = word >> ADDRESS_BITS + 3
            lanes[first[slot, thread // LANES] + done[slot, thread], thread % LANES] = (
                word & (8 << ADDRESS_BITS) - 1
            )
            done[slot, thread] += 1
        # 3. what each request comes to
        request = 0
        for t in range(n_touched):
            slot = touched[t]
            place, space = slot // SLOTS, slot % SLOTS
            last = first[touched[t + 1], 0] if t + 1 < n_touched else requests
            for request in range(first[slot, 0], last):
                if space == SLOTS - 1:
                    yes = no = 0
                    for lane in range(LANES):
                        if lanes[request, lane] >= 0:
                            if lanes[request, lane] & 1:
                                yes += 1
                            else:
                                no += 1
                    branches[place, 0] += 1
                    branches[place, 1] += yes > 0 and no > 0
                elif space == GLOBAL:
                    sectors(lanes[request], spec[0], global_requests[place])
                else:
                    wavefronts(
                        lanes[request], kinds[place] == ATOMIC, spec[1], spec[2], shared_requests[place]
                    )
            done[slot] = 0
            is_touched[slot] = False
        begin = end + 1


@compiled
def sectors(lanes, sector, counted):
    """One request to global memory: DeviceSpec.sectors."""
    seen, n_seen, touched, n_touched, size = np.empty(LANES, np.int64), 0, np.empty(LANES, np.int64), 0, 0
    for lane in range(LANES):
        if lanes[lane] >= 0:
            address, size = lanes[lane] & ADDRESS_MASK, 1 << (lanes[lane] >> ADDRESS_BITS)
            n_seen = with_new(seen, n_seen, address)
            n_touched = with_new(touched, n_touched, address // sector)
    counted[0] += 1
    counted[1] += n_touched
    counted[2] += -(-n_seen * size // sector)


@compiled
def with_new(values, n, value):
    """Put `value` behind the first n values unless it is among them; how many there are then. The latest are
    the likeliest."""
    for i in range(n - 1, -1, -1):
        if values[i] == value:
            return n
    values[n] = value
    return n + 1


@compiled
def wavefronts(lanes, serial, bank_bytes, banks, counted):
    """One request to shared memory: DeviceSpec.wavefronts."""
    words = 1
    for lane in range(LANES):
        if lanes[lane] >= 0:
            words = max(words, (1 << (lanes[lane] >> ADDRESS_BITS)) // bank_bytes)
    total = fewest = ways = 0
    wanted, in_bank = np.empty((LANES, LANES), np.int64), np.zeros(LANES, np.int64)
    for phase in range(words):
        most = 0
        in_bank[:] = 0
        for lane in range(phase * LANES // words, (phase + 1) * LANES // words):
            if lanes[lane] < 0:
                continue
            for part in range(words):
                word = (lanes[lane] & ADDRESS_MASK) // bank_bytes + part
                bank = word % banks
                n, known = in_bank[bank], False
                for i in range(n if not serial else 0):
                    if wanted[bank, i] == word:
                        known = True
                        break
                if not known:
                    wanted[bank, n] = word
                    in_bank[bank] = n + 1
                    most = max(most, n + 1)
        total += most
        fewest += most > 0
        ways = max(ways, most)
    counted[0] += 1
    counted[1] += total
    counted[2] += fewest
    counted[3] = max(counted[3], ways)


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
        n, spec = len(module.sites), launch.spec
        self.kinds = np.array(
            [KINDS[site.kind] if site.kind != "branch" else BRANCH for site in module.sites], np.int64
        )
        self.table = np.array(
            [(home.low, home.high, home.base, home.space) for home in homes], np.int64
        ).reshape(-1, 4)
        self.spec = np.array([spec.sector_bytes, spec.bank_bytes, spec.banks], np.int64)
        self.together, self.traffic = np.zeros(n, np.int64), np.zeros((n, len(homes), 8), np.int64)
        self.of_global, self.of_shared, self.branches = (
            np.zeros((n, 3), np.int64),
            np.zeros((n, 4), np.int64),
            np.zeros((n, 2), np.int64),
        )

    def add(self, words):
        count(
            words,
            self.kinds,
            self.table,
            self.spec,
            self.together,
            self.traffic,
            self.of_global,
            self.of_shared,
            self.branches,
        )

    def counters(self):
        """What the tools that count say of it."""
        context, numbers = (
            Context([], self.launch.spec, None, self.launch.block, None),
            [SITES.add(site) for site in self.module.sites],
        )
        for tool in self.launch.observers:
            tool = tool() if isinstance(tool, type) else tool
            if type(tool) in COUNTERS:
                self.fill(tool, numbers)
                tool.launch_finished(context)
        return {
            name: value
            for name, value in context.counters.items()
            if name not in ("threads", "blocks", "barriers")
        }

    def fill(self, tool, numbers):
        rows = {Coalescing: self.of_global, Banks: self.of_shared, Branches: self.branches}.get(type(tool))
        if type(tool) is Traffic:
            for place, owner, size in np.argwhere(self.traffic).tolist():
                home = self.homes[owner]
                tool.accessed[numbers[place], SPACES[home.space], home.name, 1 << size] += int(
                    self.traffic[place, owner, size]
                )
            for place in np.flatnonzero(self.together).tolist():
                name = self.module.operations[place]
                tool.together["syncthreads" if name.startswith("syncthreads") else name, numbers[place]] += (
                    int(self.together[place])
                )
        else:
            tool.sites = {
                numbers[place]: rows[place].tolist() for place in np.flatnonzero(rows[:, 0]).tolist()
            }
