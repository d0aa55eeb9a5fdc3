"""Refusal of kernels that contain unsupported instructions."""

from sim.errors import LaunchError
from sim.ptx.origin import plain_name


def refuse(text, *arguments):
    """Raise LaunchError. This function replaces a function that contains unsupported instructions."""
    raise LaunchError(text)


def refusal_message(entry, missing):
    """Return a message that lists the unsupported instructions, by line and name."""
    lines = "\n".join(f"  PTX line {line}: {what}" for line, what in missing[:10])
    more = f"\n  and {len(missing) - 10} more" if len(missing) > 10 else ""
    return (
        f"{plain_name(entry.name)} uses instructions that sim does not support, and did not run\n"
        f"{lines}{more}"
    )
