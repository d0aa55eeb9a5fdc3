"""Communication between the ranks of a group: halo rows, K/V blocks around the ring, sums over all ranks."""

from contextlib import contextmanager

import torch
from torch import distributed
from torch.distributed import P2POp
from torch.distributed.device_mesh import DeviceMesh


class Ring:
    """The ranks of a group as a ring. Tensors are exchanged on the device of `like`."""

    def __init__(self, group, like):
        self.group = group.get_group() if isinstance(group, DeviceMesh) else group
        self.rank, self.ranks = self.place = (
            distributed.get_rank(self.group),
            distributed.get_world_size(self.group),
        )
        if self.rank < 0:
            raise ValueError(
                f"argument group does not hold this process, rank {distributed.get_rank()} of the default"
                " group; wanted a group that does"
            )
        self.device = (
            torch.device("cuda", torch.cuda.current_device())
            if distributed.get_backend(self.group) == "nccl"
            else like.device
        )

    def agree(self, facts, length):
        """Check that all ranks have the same `facts` {name: number}; return every rank's `length`, in rank
        order.

        Raise ValueError on all ranks if the facts differ. A rank with invalid arguments passes facts = None;
        the call then returns None there, and raises ValueError on the other ranks.
        """
        # float64 represents all sizes, and the scale, exactly
        mine = torch.tensor([facts is not None, length, *(facts or {}).values()], dtype=torch.float64)
        mine = torch.cat([mine, mine.new_zeros(16 - len(mine))])  # all_gather requires equal shapes
        theirs = torch.stack(self.gather(mine.to(self.device))).tolist()
        if facts is None:
            return None
        for rank, (accepts, _, *values) in enumerate(theirs):
            if not accepts:
                raise ValueError(f"rank {self.rank}: rank {rank} has refused its arguments, and says why")
            for (name, value), other in zip(facts.items(), values):
                if value != other:
                    raise ValueError(
                        f"rank {self.rank} has {name} = {value:g} and rank {rank} has {name} = {other:g};"
                        " wanted the same on every rank of the group"
                    )
        return [int(length) for _, length, *_ in theirs]

    def gather(self, x):
        """Return every rank's x, in rank order; every rank's x must have the same shape."""
        with self.explained("all ranks"):
            parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.ranks)]
            distributed.all_gather(parts, x.contiguous(), group=self.group)
        return parts

    def total(self, x):
        """Return the sum of x over all ranks."""
        with self.explained("all ranks"):
            distributed.all_reduce(x, group=self.group)
        return x

    def pass_on(self, x, receive):
        """Send x to the next rank, and start to receive a tensor like `receive` from the previous rank.

        Return the received tensor, and a function that waits for it. Empty tensors are not sent.
        """
        if self.ranks == 1:  # the ring has only one rank
            return x, lambda: None
        after, before = ((self.rank + step) % self.ranks for step in (1, -1))
        messages = [(distributed.isend, x, after)] * bool(x.numel()) + [
            (distributed.irecv, receive, before)
        ] * bool(receive.numel())
        return receive, self.start(messages)

    def start(self, messages):
        """Start to exchange [(isend or irecv, tensor, rank)]; return a function that waits until all are
        done."""
        peers = sorted({rank for _, _, rank in messages})
        with self.explained(f"ranks {peers}"):
            # batched, so that NCCL does not deadlock when two ranks send to each other
            works = (
                distributed.batch_isend_irecv(
                    [P2POp(kind, x, group=self.group, group_peer=rank) for kind, x, rank in messages]
                )
                if messages
                else []
            )

        def wait():
            with self.explained(f"ranks {peers}"):
                for work in works:
                    work.wait()
            messages.clear()  # until now, `messages` has kept the sent tensors alive

        return wait

    @contextmanager
    def explained(self, peers):
        """Raise a RuntimeError that names the ranks if a rank is lost or times out."""
        try:
            yield
        except RuntimeError as error:
            raise RuntimeError(
                f"rank {self.rank} of {self.ranks}: no exchange with {peers}: a rank has ended, or did not"
                f" call within the group's timeout\n  {error}"
            ) from error

    def exchange(self, sends, shapes):
        """Send one message to each rank in `sends` {rank: tensor}, and receive one from each in `shapes`
        {rank: rows}.

        Return {rank: received tensor}.
        """
        like = next(iter(sends.values()))
        got = {rank: like.new_empty(*like.shape[:2], rows, like.shape[3]) for rank, rows in shapes.items()}
        messages = [
            (distributed.isend, x.contiguous(), rank)
            for rank, x in sends.items()
            if x.numel() and rank != self.rank
        ]
        self.start(
            messages
            + [(distributed.irecv, x, rank) for rank, x in got.items() if x.numel() and rank != self.rank]
        )()
        # a rank's message to itself is not sent
        return got | {self.rank: sends[self.rank]}

    def fetch(self, x, plan, halo):
        """Return this rank's chunks of x (B, H, n, d), each with its halo, fetched from the ranks that hold
        it."""
        sends = {rank: rows_for(x, plan.sources(rank, halo), self.rank) for rank in range(self.ranks)}
        mine = plan.sources(self.rank, halo)
        got = self.exchange(
            sends,
            {
                rank: sum(rows for held in mine for owner, _, rows in held if owner == rank)
                for rank in range(self.ranks)
            },
        )
        # messages contain rows in the order of `sources`, so they are consumed front to back
        taken, chunks = dict.fromkeys(got, 0), []
        for held in mine:
            parts = [x[:, :, :0]]
            for owner, _, rows in held:
                parts.append(got[owner][:, :, taken[owner] : taken[owner] + rows])
                taken[owner] += rows
            chunks.append(torch.cat(parts, 2))
        return chunks

    def return_gradients(self, gradients, plan, halo, like):
        """Send the gradients of the chunks to the owners of the rows. Return the gradient of x in `fetch`.

        The gradients of all chunks that contain a row are summed. `like` has the shape of x.
        """
        sends, mine = {rank: [like[:, :, :0]] for rank in range(self.ranks)}, plan.sources(self.rank, halo)
        for gradient, held in zip(gradients, mine):
            row = 0
            for owner, _, rows in held:
                sends[owner].append(gradient[:, :, row : row + rows])
                row += rows
        theirs = {
            rank: [part for held in plan.sources(rank, halo) for part in held if part[0] == self.rank]
            for rank in range(self.ranks)
        }
        got = self.exchange(
            {rank: torch.cat(parts, 2) for rank, parts in sends.items()},
            {rank: sum(rows for *_, rows in parts) for rank, parts in theirs.items()},
        )
        total = torch.zeros_like(like, memory_format=torch.contiguous_format)
        for rank, parts in theirs.items():
            taken = 0
            for _, row, rows in parts:
                total[:, :, row : row + rows] += got[rank][:, :, taken : taken + rows]
                taken += rows
        return total


def rows_for(x, sources, rank):
    """Return the rows of x (B, H, n, d) that `rank` holds and another rank's `sources` need, in order."""
    return torch.cat(
        [
            x[:, :, :0],
            *(x[:, :, row : row + rows] for held in sources for owner, row, rows in held if owner == rank),
        ],
        2,
    )
