"""cp.async: copies from global to shared memory that a thread starts and later waits for.

The bytes arrive when it waits, or when it ends, never before: whoever reads them without that wait reads what
was there, and the store, which comes late, races with the read. Source: PTX ISA 9.7.9.25.3, "cp.async",
"cp.async.commit_group", "cp.async.wait_group"."""

KINDS = {4: ("u32", 1), 8: ("u32", 2), 16: ("u32", 4)}


class Copies:
    """The copies of one launch that have not arrived, for each thread: groups, the last one still open."""

    def __init__(self, memory):
        self.memory, self.groups = memory, {}

    def copier(self, size, load_site, store_site):
        """(address in shared memory, in global memory, bytes to take) -> None: starts a copy of `size` bytes;
        those behind the bytes taken are 0."""
        kind, count = KINDS[size]
        store = self.memory.storer(kind, "shared", count, store_site)
        load = self.memory.loader(kind, "global", count, load_site)
        by_byte = self.memory.loader("u8", "global", 1, load_site)

        def start(to, source, taken=size):
            def arrive():
                if taken >= size:
                    words = load(source)
                    store(to, *(words if count > 1 else (words,)))
                    return
                raw = bytes(by_byte(source + i) for i in range(taken)) + bytes(size - taken)
                store(to, *(int.from_bytes(raw[i : i + 4], "little") for i in range(0, size, 4)))

            self.of_thread()[-1].append(arrive)

        return start

    def of_thread(self):
        return self.groups.setdefault(self.memory.context.thread, [[]])

    def commit(self):
        self.of_thread().append([])

    def wait_for(self, pending):
        """All committed groups but the last `pending` have arrived."""
        groups = self.of_thread()
        while len(groups) - 1 > pending:
            for arrive in groups.pop(0):
                arrive()

    def wait_all(self):
        for group in self.groups.pop(self.memory.context.thread, ()):
            for arrive in group:
                arrive()
