"""Gives sequences their blocks and finds the prefixes they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from pagemill_replica.engine.block_pool import AccountingError, Block, BlockPool
from pagemill_replica.engine.chain import Hasher, Link
from pagemill_replica.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Fit:
    """What it takes to place a sequence."""

    hits: list[Block]
    """Blocks that already hold its leading tokens."""
    need: int
    """Idle blocks that placing it takes: new ones, and hits that nobody else holds."""
    missing: Link | None
    """The first link that was looked up and not found."""


class KvManager:
    """Owns the block tables of all sequences."""

    def __init__(self, pool: BlockPool, hasher: Hasher, block_size: int) -> None:
        if block_size < 1:
            raise ValueError(f"block_size must be at least 1, not {block_size}")
        self.pool = pool
        self.block_size = block_size
        self._hasher = hasher
        self._held_changes: dict[int, int] = {}

    @property
    def capacity_tokens(self) -> int:
        """Tokens that an empty pool holds."""
        return self.pool.num_blocks * self.block_size

    def blocks_for(self, tokens: int) -> int:
        """Blocks that hold `tokens` tokens."""
        return -(-tokens // self.block_size)

    def fit(self, sequence: Sequence) -> Fit:
        """Looks up the leading blocks of a sequence without blocks; changes nothing but what is known of its chain.

        At least the last token is left to compute, since its logits are wanted: a full hit ends at total - 1, rounded
        down to a block.
        """
        hits: list[Block] = []
        idle_hits = 0
        missing: Link | None = None
        for index in range((sequence.total - 1) // self.block_size):
            link = self._link(sequence, index)
            block = self.pool.find(link)
            if block is None or block.link is None:
                missing = link
                break
            # Keeping the link found makes the comparison of the next one end there.
            self._adopt(sequence, index, block.link)
            hits.append(block)
            idle_hits += block.refs == 0
        return Fit(hits, self.blocks_for(sequence.total) - len(hits) + idle_hits, missing)

    def place(self, sequence: Sequence, fit: Fit) -> None:
        """Gives a sequence the blocks for all its tokens, hits first. The pool must have `fit.need` idle blocks."""
        for block in fit.hits:
            self.pool.acquire(block)
        sequence.blocks = [block.id for block in fit.hits]
        sequence.blocks += self.pool.allocate(self.blocks_for(sequence.total) - len(fit.hits))
        sequence.registered = len(fit.hits)
        sequence.computed = len(fit.hits) * self.block_size
        self._held_changes[sequence.key] = len(sequence.blocks)

    def grow(self, sequence: Sequence, positions: int) -> bool:
        """Makes room for `positions` tokens; False, with nothing changed, where the pool is out of blocks."""
        short = self.blocks_for(positions) - len(sequence.blocks)
        if short <= 0:
            return True
        if short > self.pool.free_count:
            return False
        # The same list grows in place: a runner may hold on to it between steps.
        sequence.blocks += self.pool.allocate(short)
        self._held_changes[sequence.key] = len(sequence.blocks)
        return True

    def advance(self, sequence: Sequence, count: int) -> None:
        """Records that `count` more tokens are computed, and names the blocks that became full."""
        sequence.computed += count
        full = sequence.computed // self.block_size
        while sequence.registered < full:
            index = sequence.registered
            known = self.pool.register(sequence.blocks[index], self._link(sequence, index))
            self._adopt(sequence, index, known)
            sequence.registered += 1

    def release(self, sequence: Sequence) -> None:
        """Takes all blocks back; what they hold stays findable until they are reused."""
        if sequence.blocks:
            self.pool.release(sequence.blocks)
            self._held_changes[sequence.key] = 0
        sequence.blocks = []
        sequence.computed = 0
        sequence.registered = 0

    def forget(self, key: int) -> None:
        """Drops the pending change of a request that has ended."""
        self._held_changes.pop(key, None)

    def take_held_changes(self) -> dict[int, int]:
        """Keys and blocks held, for sequences whose number changed since the last call."""
        changes = self._held_changes
        if changes:
            self._held_changes = {}
        return changes

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Compares all books with the live sequences' tables, exactly. Raises AccountingError."""
        sequences = list(sequences)
        self.pool.check(Counter(block for s in sequences for block in s.blocks))
        for s in sequences:
            if not self.blocks_for(s.computed) <= len(s.blocks) <= self.blocks_for(s.total):
                raise AccountingError(f"request {s.key}: {len(s.blocks)} blocks, {s.computed} of {s.total} computed")
            if s.registered != s.computed // self.block_size:
                raise AccountingError(f"request {s.key}: {s.registered} blocks named, {s.computed} tokens computed")

    def _link(self, sequence: Sequence, index: int) -> Link:
        """The link of full block `index`, whose predecessors are known or get known here."""
        links = sequence.links
        if not links:
            links.append(Link(self._hasher.root(sequence.salt), None, sequence.salt))
        while len(links) <= index + 1:
            start = (len(links) - 1) * self.block_size
            tokens = tuple(sequence.token_ids[start : start + self.block_size])
            parent = links[-1]
            links.append(Link(self._hasher.child(parent.hash, tokens), parent, tokens))
        return links[index + 1]

    def _adopt(self, sequence: Sequence, index: int, link: Link) -> None:
        if sequence.links[index + 1] is not link:
            sequence.links[index + 1] = link
            # Links after it were made with another parent object; equal, but slower to compare.
            del sequence.links[index + 2 :]
