"""Refusal of kernels with instructions that the simulator does not support."""

from sim.errors import LaunchError


def refuse(text, *arguments):
    """Raise LaunchError. This function replaces a function with instructions that are not supported."""
    raise LaunchError(text)


def refusal_message(entry, missing):
    """Return a message that lists the instructions that are not supported, by line and name."""
    lines = "\n".join(f"  PTX line {line}: {what}" for line, what in missing[:10])
    more = f"\n  and {len(missing) - 10} more" if len(missing) > 10 else ""
    return f"{entry.name} uses instructions that sim does not have; nothing has run\n{lines}{more}"
