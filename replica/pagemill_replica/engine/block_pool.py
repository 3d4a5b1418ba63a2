"""The blocks of the KV cache: who references them, which are idle, and which prefix each still holds.

    in use (refs > 0)                     idle (refs = 0), reused from the left
    ┌────┬────┬────┐      ┌───────────────┬────────────────────────────────────────┐
    │ 7  │ 2  │ 9  │      │ hold nothing  │ hold a prefix, longest unused first    │
    └────┴────┴────┘      └───────────────┴────────────────────────────────────────┘

An idle block keeps its prefix until it is reused: eviction is lazy.
"""

from __future__ import annotations

from collections.abc import Iterable

from pagemill_replica.engine.chain import Link, same_prefix


class AccountingError(RuntimeError):
    """The books of the KV cache do not add up: a defect of the engine."""


class Block:
    """One block. Idle blocks are linked to their neighbours in the free list."""

    __slots__ = ("after", "before", "id", "link", "refs")

    def __init__(self, block_id: int) -> None:
        self.id = block_id
        self.refs = 0
        self.link: Link | None = None
        """The prefix that ends with this block, where the cache can find it."""
        self.before: Block | None = None
        self.after: Block | None = None


class FreeList:
    """A doubly linked list through the blocks themselves: every operation is O(1)."""

    __slots__ = ("_ends", "count")

    def __init__(self) -> None:
        self._ends = Block(-1)
        self._ends.before = self._ends.after = self._ends
        self.count = 0

    def push_first(self, block: Block) -> None:
        """Makes `block` the next to be reused."""
        self._insert(self._ends, block)

    def push_last(self, block: Block) -> None:
        """Makes `block` the last to be reused."""
        before = self._ends.before
        assert before is not None
        self._insert(before, block)

    def pop_first(self) -> Block:
        """Takes the block to be reused next. Raises IndexError where there is none."""
        first = self._ends.after
        if first is None or first is self._ends:
            raise IndexError("no idle block")
        self.remove(first)
        return first

    def remove(self, block: Block) -> None:
        """Takes `block` out, wherever it stands."""
        before, after = block.before, block.after
        assert before is not None
        assert after is not None
        before.after, after.before = after, before
        block.before = block.after = None
        self.count -= 1

    def walk(self) -> Iterable[Block]:
        """All blocks, next to be reused first."""
        block = self._ends.after
        while block is not None and block is not self._ends:
            yield block
            block = block.after

    def _insert(self, before: Block, block: Block) -> None:
        after = before.after
        assert after is not None
        block.before, block.after = before, after
        before.after = after.before = block
        self.count += 1


class BlockPool:
    """Owns every block's references, place in the free list and prefix."""

    def __init__(self, num_blocks: int) -> None:
        """Raises ValueError where there is not even one block."""
        if num_blocks < 1:
            raise ValueError(f"a KV cache needs at least one block, not {num_blocks}")
        self._blocks = [Block(i) for i in range(num_blocks)]
        self._free = FreeList()
        for block in self._blocks:
            self._free.push_last(block)
        self._by_hash: dict[bytes, Block] = {}
        self._idle_cached = 0
        # Net changes since the last `take_events`, in order; a hash is in at most one of them.
        self._stored: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return len(self._blocks)

    @property
    def free_count(self) -> int:
        """Idle blocks, those that still hold a prefix included."""
        return self._free.count

    @property
    def used_count(self) -> int:
        """Blocks in use, shared ones once."""
        return len(self._blocks) - self._free.count

    @property
    def idle_cached_count(self) -> int:
        """Idle blocks that still hold a prefix."""
        return self._idle_cached

    @property
    def hashes(self) -> list[bytes]:
        """Hashes of all prefixes the cache can find."""
        return list(self._by_hash)

    def find(self, link: Link) -> Block | None:
        """The block that holds exactly this prefix, in use or idle."""
        block = self._by_hash.get(link.hash)
        if block is None or block.link is None or not same_prefix(block.link, link):
            return None
        return block

    def allocate(self, count: int) -> list[int]:
        """Takes `count` idle blocks, one reference each; they lose the prefixes they held.

        Raises IndexError, with nothing taken, where fewer are idle.
        """
        if count > self._free.count:
            raise IndexError(f"{count} blocks asked for, {self._free.count} idle")
        taken: list[int] = []
        for _ in range(count):
            block = self._free.pop_first()
            if block.link is not None:
                self._idle_cached -= 1
                self._forget(block, block.link)
            block.refs = 1
            taken.append(block.id)
        return taken

    def acquire(self, block: Block) -> None:
        """Adds a reference to a block that `find` gave."""
        if block.refs == 0:
            self._free.remove(block)
            if block.link is not None:
                self._idle_cached -= 1
        block.refs += 1

    def release(self, block_ids: list[int]) -> None:
        """Drops one reference to each block of a chain, given from its first block on.

        The tail goes first, so that a prefix outlives what continues it. Raises AccountingError for a block not in use.
        """
        for block_id in reversed(block_ids):
            block = self._blocks[block_id]
            if block.refs <= 0:
                raise AccountingError(f"block {block_id} is freed twice")
            block.refs -= 1
            if block.refs:
                continue
            if block.link is None:
                self._free.push_first(block)
            else:
                self._idle_cached += 1
                self._free.push_last(block)

    def register(self, block_id: int, link: Link) -> Link:
        """Lets the cache find `link` in a block in use whose content is computed.

        The first block with a prefix keeps its name; a second one, or one whose hash collides, stays unnamed. Returns
        the link that stands for this prefix: an equal one already there, else `link`.
        """
        known = self._by_hash.get(link.hash)
        if known is not None and known.link is not None:
            return known.link if same_prefix(known.link, link) else link
        block = self._blocks[block_id]
        block.link = link
        self._by_hash[link.hash] = block
        if link.hash in self._removed:
            del self._removed[link.hash]
        else:
            self._stored[link.hash] = None
        return link

    def take_events(self) -> tuple[list[bytes], list[bytes]]:
        """Hashes stored and hashes removed since the last call, net: applying both in any order gives the state."""
        events = (list(self._stored), list(self._removed))
        if events[0]:
            self._stored = {}
        if events[1]:
            self._removed = {}
        return events

    def check(self, references: dict[int, int]) -> None:
        """Compares the books with `references`, block id to number of holders. Raises AccountingError."""
        idle = list(self._free.walk())
        if len(idle) != self._free.count or len({b.id for b in idle}) != len(idle):
            raise AccountingError(f"the free list has {len(idle)} blocks and counts {self._free.count}")
        idle_ids = {b.id for b in idle}
        for block in self._blocks:
            if block.refs != references.get(block.id, 0):
                raise AccountingError(
                    f"block {block.id} counts {block.refs} references and has {references.get(block.id, 0)}"
                )
            if (block.refs == 0) != (block.id in idle_ids):
                raise AccountingError(f"block {block.id} with {block.refs} references is on the wrong side")
            if block.link is not None and self._by_hash.get(block.link.hash) is not block:
                raise AccountingError(f"block {block.id} holds a prefix the cache cannot find")
        if any(b.link is None or b.link.hash != h for h, b in self._by_hash.items()):
            raise AccountingError("the cache names a block that holds another prefix")
        if self._idle_cached != sum(b.link is not None for b in idle):
            raise AccountingError("idle cached blocks are miscounted")

    def _forget(self, block: Block, link: Link) -> None:
        block.link = None
        del self._by_hash[link.hash]
        if link.hash in self._stored:
            del self._stored[link.hash]
        else:
            self._removed[link.hash] = None
