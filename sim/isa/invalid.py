"""The exception for an operand that makes an instruction's behaviour undefined."""


class InvalidOperand(ValueError):
    """An operand that makes an instruction's behaviour undefined. The launch ends with the finding
    `invalid-operand`.

    reason: a sentence that says what the instruction expects.
    fix: how to correct the kernel, in the imperative and without a full stop.
    threads: the threads whose operands contradict each other, or () if only the current thread is concerned.
    """

    def __init__(self, verdict, reason, fix, threads=()):
        super().__init__(verdict, reason, fix)  # pickle calls the class with these arguments
        self.verdict, self.reason, self.fix, self.threads = verdict, reason, fix, threads

    def __str__(self):
        return self.verdict
