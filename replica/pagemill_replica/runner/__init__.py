"""Executes what the scheduler plans."""

from pagemill_replica.runner.build import build_runner
from pagemill_replica.runner.cpu import CpuRunner
from pagemill_replica.runner.errors import SettingError
from pagemill_replica.runner.memory import KvPlan, plan_kv
from pagemill_replica.runner.options import RunnerOptions

__all__ = ["CpuRunner", "KvPlan", "RunnerOptions", "SettingError", "build_runner", "plan_kv"]
