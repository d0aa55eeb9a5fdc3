"""The limit on the CPU time of a launch after its first error."""

import time

# CPU seconds that a launch may take after its first error, counted from the beginning of the epoch with the
# error. The launch then ends with incomplete results.
SECONDS_AFTER_ERROR = 6.0
UNSET = "No statement has set"  # the beginning of the reason of findings about registers without a value
# A trial decides whether a doubtful error counts, such as a read of unwritten shared memory. The first trial
# takes place FIRST_TRIAL CPU seconds after the error. The time to the next trial grows by TRIAL_FACTOR.
FIRST_TRIAL, TRIAL_FACTOR = 1.0, 4.0
# CPU seconds by which a launch with an error may exceed the limit of `end_after`, while its threads are
# compared to decide whether a loop is endless.
COMPARING_SECONDS = 4.5


class ErrorLimit:
    """The CPU time that a run may still take after an error. Setting `max_steps` disables this limit.

    Some findings are doubtful. A read of unwritten shared memory is an error that a rerun can turn into a
    warning, and a shuffle from a lane that does not participate is a warning that a rerun can turn into an
    error. Doubtful findings start the limit only after a trial has confirmed that the value has an effect.
    """

    def __init__(self, context):
        self.context = context
        self.error_time = None  # the CPU time of the first error that counts
        self.doubt_time = None  # the CPU time of the first doubtful finding
        self.seen = 0  # the number of findings already checked
        self.deadline = None  # the CPU time at which the launch ends in any case, or None
        # A function that decides by reruns whether a doubtful finding counts. It is None if the launch cannot
        # run again.
        self.trial = None
        self.trial_after = FIRST_TRIAL  # CPU seconds between the doubtful finding and the next trial

    @property
    def is_running(self):
        """True if time may end the launch: there is an error, or `end_after` has been called."""
        return self.context.has_errors or self.deadline is not None

    def is_overdue(self):
        """Return whether the launch has run for longer than SECONDS_AFTER_ERROR after an error that counts,
        or longer than `end_after` allows."""
        context = self.context
        if context.max_steps:
            return False
        now, number = time.process_time(), len(context.findings)  # the watchdog calls this in its own thread
        if self.error_time is None and self.seen < number:
            new = context.findings[self.seen : number]
            errors = [one for one in new if one.severity == "error"]
            if self.doubt_time is None and (errors or any(map(reads_absent_lane, new))):
                self.doubt_time = now
            if not all(map(reads_fresh_shared, errors)):
                # Most errors are found at the end of an epoch. The error may have happened at its beginning.
                self.error_time = min(now, context.epoch_time)
        self.seen = number
        is_late = self.deadline is not None and now > self.deadline + self.seconds_to_compare()
        return is_late or self.is_error_overdue()

    def seconds_to_compare(self):
        """Return the seconds by which the launch may exceed its deadline, because a comparison of its threads
        is under way."""
        compares = self.context.has_errors and self.context.loops.progress_check is not None
        return COMPARING_SECONDS if compares else 0.0

    def is_error_overdue(self):
        """Return whether the launch has run for SECONDS_AFTER_ERROR since its first error. A doubtful error
        counts only after a trial has confirmed it."""
        time_of_error = self.error_time
        return time_of_error is not None and time.process_time() - time_of_error > SECONDS_AFTER_ERROR

    def must_end(self):
        """Return whether the launch is overdue. If a trial of doubtful findings is due, perform it."""
        overdue, context = self.is_overdue(), self.context
        if self.error_time is None and self.doubt_time is not None:
            began = time.process_time()
            # If all findings are warnings, perform only one trial: shuffles that read missing lanes are
            # common in correct kernels.
            due = context.has_errors or self.trial_after == FIRST_TRIAL
            if due and began - self.doubt_time > self.trial_after:
                self.trial_after *= TRIAL_FACTOR
                context.in_observer = True  # the watchdog must not end the trial
                if self.trial() if self.trial else context.has_errors:
                    self.error_time, context.findings.has_errors = self.doubt_time, True
                context.in_observer = False
                context.loops.restart()
                self.doubt_time += time.process_time() - began
        return overdue

    def expect_error(self):
        """Start the limit now, because an observer will report an error at the end of the launch."""
        self.context.findings.has_errors = True
        if self.error_time is None:
            self.error_time = time.process_time()

    def exclude(self, seconds):
        """Let the launch end this much later, because compiled code ran, unless a finding precedes that."""
        if self.deadline is not None and not self.context.findings:
            self.deadline += seconds

    def end_after(self, seconds):
        """Let the launch end in this many seconds of CPU time, even without an error. After an error, a
        comparison of the threads that has begun may take COMPARING_SECONDS longer."""
        self.deadline = time.process_time() + seconds


def reads_fresh_shared(finding):
    """Return whether a finding reports a read of unwritten shared memory. A rerun can turn it into a warning
    (sim.reruns)."""
    return finding.kind == "uninitialized-read" and finding.reason.startswith("Fresh shared")


def reads_unset_register(finding):
    """Return whether a finding reports the use of a register that no instruction has set."""
    return finding.kind == "uninitialized-read" and finding.reason.startswith(UNSET)


def reads_absent_lane(finding):
    """Return whether a finding reports a shuffle that reads a lane that does not participate."""
    return finding.kind == "warp-divergence" and finding.severity == "warning"
