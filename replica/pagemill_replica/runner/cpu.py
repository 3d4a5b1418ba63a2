"""Executes step plans on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

from pagemill_kernels import ops
from pagemill_replica.engine.plan import StepPlan
from pagemill_replica.model import Decoder
from pagemill_replica.runner.memory import KvPlan
from pagemill_replica.runner.sampling import SamplingBatches
from pagemill_replica.runner.step import StepArrays, check_bounds, step_arrays
from pagemill_replica.runner.threads import use_threads
from pagemill_replica.runner.warmup import warm_up_plans


class CpuRunner:
    """Owns a decoder and its KV cache; implements `engine.plan.Runner`. Used by one thread, the one that built it."""

    def __init__(self, decoder: Decoder, plan: KvPlan, threads: int) -> None:
        use_threads(threads)
        self.decoder = decoder
        self.plan = plan
        self.threads = threads
        self.kv = ops.alloc_kv(decoder.kv_layout(plan.block_size), plan.num_blocks, decoder.device)
        self._sampling = SamplingBatches()

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV cache."""
        return self.plan.num_blocks

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.plan.block_size

    @property
    def max_context(self) -> int:
        """Tokens of prompt and output together that the runner computes at most, were the pool large enough."""
        return self.plan.max_context

    @property
    def max_request_tokens(self) -> int:
        """The largest prompt and output together: the smaller of context and pool."""
        return self.plan.max_request_tokens

    @property
    def vocab_size(self) -> int:
        """Number of token ids the model knows."""
        return self.decoder.config.vocab_size

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache."""
        return self.kv.nbytes

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return self.decoder.weight_bytes

    @property
    def dtype(self) -> str:
        """Number format, such as `float32`."""
        return str(self.decoder.dtype).removeprefix("torch.")

    @property
    def device(self) -> str:
        """Where it computes: `cpu`."""
        return self.decoder.device.type

    @property
    def deterministic(self) -> bool:
        """Whether results are independent of neighbours and of how sequences are cut into steps."""
        return self.decoder.deterministic

    def execute(self, plan: StepPlan) -> list[int | None]:
        """See `engine.plan.Runner`. ValueError, before anything is written, where a plan leaves the model's bounds."""
        logits = self.logits(plan)
        drawing = [sequence for sequence in plan.sequences if sequence.samples]
        drawn = iter(ops.sample(logits, self._sampling.build(drawing)).tolist() if drawing else ())
        return [next(drawn) if sequence.samples else None for sequence in plan.sequences]

    def logits(self, plan: StepPlan) -> torch.Tensor:
        """Computes the step up to its logits, float32 [sequences that sample, vocab]."""
        arrays = step_arrays(plan.sequences, self.block_size)
        check_bounds(arrays, self.vocab_size, self.decoder.max_positions, self.num_blocks)
        return self._forward(arrays)

    def warm_up(self, progress: Callable[[str, float], None] = lambda _stage, _fraction: None) -> None:
        """Compiles the kernels, then runs prefill, mixed steps and decode through model and sampler.

        Call it before the first step: the blocks that it writes are zeroed again, and nothing else stays of it.
        """
        config = self.decoder.config
        sizes = (config.hidden_size, config.intermediate_size)
        ops.warm_up(self.kv.layout, sizes, self.decoder.device, lambda _kernel, done: progress("warm-up", done * 0.5))
        plans = warm_up_plans(self.num_blocks, self.block_size, self.max_context)
        for index, plan in enumerate(plans):
            progress("warm-up", 0.5 + 0.5 * index / len(plans))
            self.execute(plan)
        self._sampling.forget()
        used = torch.arange(1 + max(block for plan in plans for s in plan.sequences for block in s.block_table))
        ops.write_blocks(self.kv, used, torch.zeros_like(ops.read_blocks(self.kv, used)))
        progress("warm-up", 1.0)

    def _forward(self, arrays: StepArrays) -> torch.Tensor:
        batch = ops.AttentionBatch(
            torch.from_numpy(arrays.query_start),
            torch.from_numpy(arrays.context_lens),
            torch.from_numpy(arrays.block_tables),
        )
        return self.decoder.forward(
            torch.from_numpy(arrays.token_ids),
            torch.from_numpy(arrays.positions),
            torch.from_numpy(arrays.slots),
            batch,
            self.kv,
            torch.from_numpy(arrays.sample_rows),
        )
