"""Relative errors of a kernel's results against float64, and the largest error that a case allows."""

# relative to the largest element of the correct result
FORWARD, BACKWARD = 1e-5, 1e-4
FORWARD_RESULTS = ("O", "L", "o", "token", "flash O", "flash L")
LEAST_SCALE = 0.1  # minimum divisor, for results whose elements are all smaller


def relative_errors(got, wanted, least_scales=None):
    """Return {result: largest error / largest element of the correct result}.

    got: {result: tensor}, for some or all results.
    wanted: {result: tensor}, the correct results.
    least_scales: {result: minimum divisor}, LEAST_SCALE by default. It prevents failures of results near
        zero.
    """
    errors = {}
    for name, result in got.items():
        correct = wanted[name]
        scale = correct.abs().max().clamp_min((least_scales or {}).get(name, LEAST_SCALE))
        errors[name] = ((result - correct).abs().max() / scale).item()
    return errors


def within_tolerance(errors):
    """Return whether every relative error is within its tolerance. NaN never is."""
    return all(error <= (FORWARD if name in FORWARD_RESULTS else BACKWARD) for name, error in errors.items())
