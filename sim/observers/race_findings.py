"""The findings about races: their wording, and the facts that determine their advice."""

from sim.events import SHARED, SITES, SPACE_SHIFT, STORE, Access, Finding, alias
from sim.observers import advice, advice_patterns
from sim.observers.copies import WORDS
from sim.observers.critical_sections import CriticalSections
from sim.observers.event_log import OnDemand
from sim.observers.extents import Extents
from sim.observers.facts import Facts
from sim.observers.index_origins import IndexOrigins
from sim.observers.order import HappensBefore
from sim.observers.ordering import MAX_EVENTS
from sim.observers.pairs import both_store, closeness, common_barrier, stores_again
from sim.observers.plain_releases import PlainReleases

COPY = "an asynchronous copy of "


class RaceFindings:
    """The findings about the races of one launch.

    races: the observer of races, which stores the order of the accesses.
    """

    def __init__(self, races):
        self.races, self.context = races, races.context
        self.origins = IndexOrigins(races.context)
        # an OnDemand: the order that would hold if a fence preceded every atomic
        self.generous = None
        # (block, thread) -> (segment, whether it is a grid-wide fence) of each recorded fence and atomic
        self.fences = {}
        self.meetings = {}  # (barrier, such as "syncthreads" or "grid.sync", function) -> its lines
        self.scanned, self.diverged = 0, []  # number of findings scanned; the findings about divergence
        self.elements = {}  # address -> its Element
        self.best = {}  # (space, array, site, site) -> (rank, the finding with the lowest rank)

    def add_meeting(self, what, site):
        """Record the line of a barrier that opened, by its kind and function."""
        place = SITES[site]
        self.meetings.setdefault((what, place.function), set()).add(place.line)

    def add_fence(self, block, thread, segment, is_grid_wide):
        """Record a fence or an atomic of a thread, by the number of its block."""
        self.fences.setdefault((block, thread), []).append((segment, is_grid_wide))

    def begin_search(self, rows):
        """Prepare for the findings about races between some accesses (Rows)."""
        self.extents = Extents(rows, self.context.space)
        self.plain_releases = PlainReleases(rows, self.context.outline, self.context.kernel)
        self.critical_sections = CriticalSections(rows, self.plain_releases.polls)

    def finding(self, collision, sites, equal):
        """Return the finding for a racing pair of sites.

        A report shows one finding per pair of sites, and its advice is expensive to compute. If a pair of
        these sites that was found earlier takes precedence, return its finding again, as another occurrence.
        """
        address, near = collision.address, collision.pairs[sites][2]
        if address not in self.elements:
            self.elements[address] = self.context.space.element(address)
        array, index = element = self.elements[address]
        name = slice(None, None, -1 if sites[1] & 3 == STORE != sites[0] & 3 else 1)  # the writer first
        key = address >> SPACE_SHIFT, array, *sites[name]
        rank, best = (equal, near, index or ()), self.best.get(key)
        if best is not None and best[0][:3] < rank:
            return best[1]
        a, b = collision.accesses(sites)[name]
        rank = *rank, [self.place(row) for row in (a, b)]
        if best is None or rank < best[0]:
            rows, pairs = collision.rows, collision.pairs
            best = rank, self.full_finding(address, element, a, b, rows, equal, pairs)
            self.best[key] = best
        return best[1]

    def place(self, row):
        """Return the block and thread of an access, as a sort key. Reports prefer the lowest one."""
        return self.races.names[row.block][::-1], self.context.thread_index(row.thread)[::-1]

    def full_finding(self, address, element, a, b, rows, equal, pairs):
        if self.races.proxy and (finding := self.races.proxy.unordered(address, a, b)):
            return finding
        space = "shared" if address >> SPACE_SHIFT == SHARED else "global"
        facts = self.facts(a, b, address, rows, equal, pairs, space)
        # The Flight of a copy in an earlier epoch is no longer known.
        flights = self.races.flights
        copies = [row.position in facts.copies or flights.is_source(row, address) for row in (a, b)]
        witnesses = tuple(self.witness(row, is_copy) for row, is_copy in zip((a, b), copies))
        called = f"{element}{alias(witnesses[0], element.array)}"
        done = done_by([self.word(row.site) for row in (a, b)], copies)
        verdict = f"{called} in {space} memory is {done}, and nothing orders the two"
        reason, fix, structured = advice.of_race(facts)
        return Finding(
            f"race-{space}",
            "warning" if equal else "error",
            verdict,
            witnesses,
            *element,
            reason=reason,
            fix=fix,
            near=closeness(a, b),
            advice=structured,
            origins=tuple(self.origins(access, element.array)[0] for access in witnesses),
            follows=structured.pattern in advice_patterns.DIVERGED and bool(self.divergences()),
        )

    def facts(self, a, b, address, rows, equal, pairs, space):
        """Return the Facts about two accesses to a cell.

        equal: whether both write the same value.
        pairs: all pairs of sites that race on the cell.
        """
        lacks_fence = self.lacks_fence(a, b)
        for site in self.context.grid_barriers:
            self.add_meeting("grid.sync", site)
        named = common_barrier(self.context.named_calls, self.races.names[a.block], a, b)
        return Facts(
            a,
            b,
            address,
            equal=equal,
            replaced=stores_again(rows, a) or stores_again(rows, b),
            colliding=both_store(pairs),
            sites=tuple(sorted({site for pair in pairs for site in pair})),
            exceeds_scope=a.block != b.block
            and not self.context.block_scoped.keys().isdisjoint((a.site, b.site)),
            lacks_fence=lacks_fence,
            one_lock=lacks_fence and self.critical_sections.have_one_lock(a, b),
            lock_atomics=self.critical_sections.lock_atomics(a) if self.context.synchronizes else None,
            relaxed=self.races.performed is not self.races.order and self.races.performed.orders(a, b),
            fenced=self.is_fenced(a),
            synchronizes=self.context.synchronizes,
            meetings=self.meetings,
            near=closeness(a, b),
            named=named,
            callers=self.context.callers_of_barrier(self.races.names[a.block], named),
            outline_of=self.context.outline,
            kernel=self.context.kernel,
            language=self.context.language,
            space=space,
            extents=self.extents,
            diverged=frozenset(
                (access.site.function, line)
                for finding in self.divergences()
                if finding.kind == "barrier-divergence"
                for access in finding.accesses
                if access.site
                for line in (access.site.line, *(line for chain in access.site.calls for line in chain))
            ),
            release=self.plain_releases.find(a, b, address) if self.context.synchronizes else None,
            array=self.elements[address][0],
            strong=self.context.strong,
            mbarrier_events=self.races.mbarrier_events,
            copies={
                row.position: copy for row in (a, b) if (copy := self.races.flights.sent_by(row, address))
            },
        )

    def divergences(self):
        """Return all findings about divergence so far."""
        # Scan only new findings, because a launch can have thousands of races.
        new = self.context.findings[self.scanned :]
        self.diverged += [finding for finding in new if finding.kind.endswith("-divergence")]
        self.scanned += len(new)
        return self.diverged

    def word(self, site):
        """Return the participle for an access: "read", "written" or "changed"."""
        return WORDS[self.context.strong.get(site, site & 3)]

    def witness(self, row, is_copy):
        thread = self.context.thread_index(row.thread)
        did, value = ("sent", None) if is_copy else (self.word(row.site), row.value)
        return Access(did, self.races.names[row.block], thread, SITES[row.site], value)

    def is_fenced(self, a):
        """Return whether the thread of an access executed a grid-wide fence before its next atomic."""
        own = self.fences.get((a.block, a.thread), ()) if self.context.synchronizes else ()
        return next((fence for segment, fence in own if segment >= a.segment), False)

    def lacks_fence(self, a, b):
        """Return whether a fence before every atomic would order the two accesses. Return False unless the
        launch synchronises through atomics."""
        if self.races.log.count >= MAX_EVENTS or not self.context.synchronizes:
            return False
        self.generous = self.generous or OnDemand(self.races.log, HappensBefore(generous=True))
        return self.generous.current().before(*sorted((a, b), key=lambda row: row.position))


def done_by(words, copies):
    """Return the part of a verdict that names the two accesses, such as "written by one thread and read by
    another".

    words: the participles for the two accesses.
    copies: for each of them, whether it is an access by an asynchronous copy.
    """
    if words[0] != words[1]:
        by = [COPY * is_copy for is_copy in copies]
        other = f"another{' thread' * any(copies)}"
        return f"{words[0]} by {by[0]}one thread and {words[1]} by {by[1]}{other}"
    if all(copies):
        return f"{words[0]} by asynchronous copies of two threads"
    return f"{words[0]} by two threads{', one of them by an asynchronous copy' * any(copies)}"
