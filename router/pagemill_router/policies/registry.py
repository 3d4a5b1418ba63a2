"""The policies by name: the one place to add one."""

from __future__ import annotations

from pagemill_router.policies.base import Policy
from pagemill_router.policies.least_loaded import LeastLoaded
from pagemill_router.policies.power_of_two import PowerOfTwo
from pagemill_router.policies.prefix_affinity import PrefixAffinity
from pagemill_router.policies.round_robin import RoundRobin

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (PrefixAffinity, LeastLoaded, PowerOfTwo, RoundRobin)
}
DEFAULT_POLICY = PrefixAffinity.name


def make_policy(name: str) -> Policy:
    """The policy of this name; ValueError names the known ones."""
    try:
        return POLICIES[name]()
    except KeyError:
        raise ValueError(f"unknown policy {name!r}; known: {', '.join(sorted(POLICIES))}") from None
