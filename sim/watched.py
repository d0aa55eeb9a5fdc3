"""Computes the fraction of a launch that each observer has seen, and writes notes about the rest."""

from sim.hooks import observer_class, overridden_hooks

# hooks for the start and end of launches, blocks and epochs, which carry no information about single threads
FRAMES = {"launch_started", "launch_finished", "barrier_opened", "grid_barrier_opened", "block_ended"}
ACCESSES = {"accesses", "access_refused"}


def has_checks(observers):
    """Return whether one of these observers, which are instances or classes, can report findings."""
    return any(observer.checks for observer in observers)


def watched(observers, share=1.0, silent=None, left=0):
    """Return ({observer's name: the fraction of the launch that it saw}, notes).

    observers: instances, or classes whose checks are part of compiled code.
    share: the fraction of accesses that the engine passed to observers.
    silent: {hook that is never called, or not for every event: reason}.
    left: the number of accesses that were logged but not passed to observers.
    """
    silent = silent or {}
    shares, notes, seen = {}, [], set()
    for observer in observers:
        name, hooks = observer_class(observer).__name__, {*overridden_hooks(observer)}
        missing = [hook for hook in silent if hook in hooks]
        notes += [f"{name} has not observed all {hook}: {silent[hook]}" for hook in missing]
        compiled = isinstance(observer, type)
        recorded = 1.0 if compiled else observer.share
        if recorded < 1:
            notes.append(f"{name} has recorded only {recorded:.1%} of the events that it observes")
        events = hooks - FRAMES
        announced = share if "accesses" in events and not compiled else 1.0
        share_of_one = recorded * announced if events - set(missing) or not events else 0.0
        shares[name] = min(share_of_one, shares.get(name, 1.0))  # several observers may share a name
        seen |= events - set(missing)
    if left and "accesses" in seen:
        notes.append(f"{left:,} accesses of threads that were stopped have not been checked")
    if not seen & ACCESSES:
        notes.append("no observer has checked the accesses to memory")
    elif not has_checks(observers):
        notes.append("nothing has checked the launch: its observers only count or record events")
    return shares, tuple(notes)
