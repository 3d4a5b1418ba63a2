"""Executes what the scheduler plans."""

from pagemill_replica.runner.build import build_runner
from pagemill_replica.runner.config import RunnerConfig
from pagemill_replica.runner.cpu import CpuRunner
from pagemill_replica.runner.errors import SettingError
from pagemill_replica.runner.memory import KvPlan, plan_kv
from pagemill_replica.runner.warmup import warm_up

__all__ = ["CpuRunner", "KvPlan", "RunnerConfig", "SettingError", "build_runner", "plan_kv", "warm_up"]
