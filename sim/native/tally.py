"""Counters of compiled launches: what the lanes of a warp do together, counted from the words that compiled
code has written down (sim.native.logged).

The rules are those of sim.device.DeviceSpec (requests, sectors, wavefronts), in loops that Numba compiles; a
test holds them to it.
"""

from dataclasses import dataclass

import numpy as np
from numba import njit

from sim.context import Context
from sim.events import ACTIONS, ADDRESS_BITS, ADDRESS_MASK, GLOBAL, SHARED, SITES, SPACES
from sim.native.cache import KeptOwn
from sim.native.internal import External, compiled
from sim.native.logged import EPOCH_ENDS, PLACE_SHIFT, SIZE_SHIFT, THREAD_GOES_ON, TOGETHER
from sim.observers import COUNTERS
from sim.observers.banks import Banks
from sim.observers.branches import Branches
from sim.observers.coalescing import Coalescing
from sim.observers.traffic import Traffic

BRANCH, ATOMIC = ACTIONS["branch"], ACTIONS["atomic"]
MACHINE = (1 << SIZE_SHIFT) - 1  # bits of an address
SLOTS = 4  # of a place: one for each memory space, as executions count apart; branches have the last
LANES = 32


def called_by_python(function):
    """`function` compiled, and kept on disk; what it calls is linked into it."""
    dispatcher = njit(error_model="numpy", nogil=True, no_cfunc_wrapper=True, pipeline_class=External)(
        function
    )
    dispatcher._cache = KeptOwn(function)
    return dispatcher


@called_by_python
def count(
    words,
    actions,
    homes,
    spec,
    together,
    traffic,
    global_requests,
    shared_requests,
    branches,
    room,
    done,
    first,
):
    """Count all epochs of a log. homes: of each array its first byte, the byte behind its last, its simulated
    address and its space. spec: bytes of a sector and of a bank, banks. room, done, first: see room_for."""
    owner_of, is_touched, touched, wanted, in_bank = room
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
            if actions[place] == BRANCH:
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
                is_touched[slot] = 1
                touched[n_touched] = slot
                n_touched += 1
        # 2. a request for the k-th time that the lanes of a warp come to a slot
        requests = 0
        for t in range(n_touched):
            slot = touched[t]
            for warp in range(first.shape[1]):
                first[slot, warp] = requests
                most = 0
                for lane in range(LANES):
                    most = max(most, done[slot, LANES * warp + lane])
                requests += most
        if requests > len(lanes):
            lanes = np.empty((2 * requests, LANES), np.int64)
        for request in range(requests):
            for lane in range(LANES):
                lanes[request, lane] = -1
        for t in range(n_touched):
            for thread in range(done.shape[1]):
                done[touched[t], thread] = 0
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
                    sectors(lanes, request, spec[0], global_requests, place, wanted)
                else:
                    serial = actions[place] == ATOMIC
                    wavefronts(
                        lanes, request, serial, spec[1], spec[2], shared_requests, place, wanted, in_bank
                    )
            for thread in range(done.shape[1]):
                done[slot, thread] = 0
            is_touched[slot] = 0
        begin = end + 1


@compiled
def sectors(lanes, request, sector, counted, place, sets):
    """One request to global memory: DeviceSpec.sectors."""
    n_seen = n_touched = size = 0
    for lane in range(LANES):
        word = lanes[request, lane]
        if word >= 0:
            address, size = word & ADDRESS_MASK, 1 << (word >> ADDRESS_BITS)
            n_seen = with_new(sets, 0, n_seen, address)
            n_touched = with_new(sets, 1, n_touched, address // sector)
    counted[place, 0] += 1
    counted[place, 1] += n_touched
    counted[place, 2] += -(-n_seen * size // sector)


@compiled
def with_new(sets, which, n, value):
    """Put `value` behind the first n values of a set unless it is among them; how many there are then. The
    latest are the likeliest."""
    for i in range(n - 1, -1, -1):
        if sets[which, i] == value:
            return n
    sets[which, n] = value
    return n + 1


@compiled
def wavefronts(lanes, request, serial, bank_bytes, banks, counted, place, wanted, in_bank):
    """One request to shared memory: DeviceSpec.wavefronts."""
    words = 1
    for lane in range(LANES):
        if lanes[request, lane] >= 0:
            words = max(words, (1 << (lanes[request, lane] >> ADDRESS_BITS)) // bank_bytes)
    total = fewest = ways = 0
    for phase in range(words):
        most = 0
        for bank in range(banks):
            in_bank[bank] = 0
        for lane in range(phase * LANES // words, (phase + 1) * LANES // words):
            if lanes[request, lane] < 0:
                continue
            for part in range(words):
                word = (lanes[request, lane] & ADDRESS_MASK) // bank_bytes + part
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
    counted[place, 0] += 1
    counted[place, 1] += total
    counted[place, 2] += fewest
    counted[place, 3] = max(counted[place, 3], ways)


def room_for(places, threads, banks):
    """What count works in, for a kernel of so many places and threads of a block: of each place its array; of
    each slot whether it was touched; the slots that were; the words of each bank, and how many; of each slot
    how often each thread came, and each warp's first request."""
    slots, warps = SLOTS * places, -(-threads // LANES)
    is_touched, touched = np.zeros((2, slots), np.int64)
    wanted, in_bank = np.empty((max(banks, 2), LANES), np.int64), np.empty(banks, np.int64)
    room = np.zeros(places, np.int64), is_touched, touched, wanted, in_bank
    return room, np.zeros((slots, warps * LANES), np.int32), np.zeros((slots, warps), np.int64)


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
        self.actions = np.array(
            [ACTIONS[site.action] if site.action != "branch" else BRANCH for site in module.sites], np.int64
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

        self.room = room_for(n, launch.threads, spec.banks)

    def add(self, words):
        count(
            words,
            self.actions,
            self.table,
            self.spec,
            self.together,
            self.traffic,
            self.of_global,
            self.of_shared,
            self.branches,
            *self.room,
        )

    def counters(self):
        """What the tools that count say of it."""
        context, sites = (
            Context([], self.launch.spec, None, self.launch.block, None),
            [SITES.add(site) for site in self.module.sites],
        )
        for tool in self.launch.observers:
            tool = tool() if isinstance(tool, type) else tool
            if type(tool) in COUNTERS:
                self.fill(tool, sites)
                tool.launch_finished(context)
        return {
            name: value
            for name, value in context.counters.items()
            if name not in ("threads", "blocks", "barriers")
        }

    def fill(self, tool, sites):
        rows = {Coalescing: self.of_global, Banks: self.of_shared, Branches: self.branches}.get(type(tool))
        if type(tool) is Traffic:
            for place, owner, size in np.argwhere(self.traffic).tolist():
                home = self.homes[owner]
                tool.accessed[sites[place], SPACES[home.space], home.name, 1 << size] += int(
                    self.traffic[place, owner, size]
                )
            for place in np.flatnonzero(self.together).tolist():
                name = self.module.operations[place]
                tool.together["syncthreads" if name.startswith("syncthreads") else name, sites[place]] += int(
                    self.together[place]
                )
        else:
            tool.sites = {sites[place]: rows[place].tolist() for place in np.flatnonzero(rows[:, 0]).tolist()}
