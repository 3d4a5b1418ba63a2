"""Every name of a span, an attribute or a metric, in one place.

The GenAI names follow the OpenTelemetry semantic conventions, which keep them outside of the stable package; the rest
is `pagemill.*`. Labels are bounded: model, reason, code, mode, policy, outcome; never an id.
"""

from __future__ import annotations

# Services, as `service.name`.
SERVICE_CLIENT = "pagemill-client"
SERVICE_ROUTER = "pagemill-router"
SERVICE_REPLICA = "pagemill-replica"
SERVICE_ENGINE = "pagemill-engine"

# Spans.
SPAN_CLIENT = "client.generate"
SPAN_ROUTER = "router.generate"
SPAN_ROUTER_QUEUE = "router.queue"
SPAN_ROUTER_RESERVE = "router.reserve"
SPAN_ROUTER_ATTEMPT = "router.attempt"
SPAN_REPLICA = "replica.generate"
SPAN_ENGINE_QUEUE = "engine.queue"
SPAN_ENGINE_PREFILL = "engine.prefill"
SPAN_ENGINE_DECODE = "engine.decode"

# Attributes of spans and metrics.
ATTR_OPERATION = "gen_ai.operation.name"
ATTR_PROVIDER = "gen_ai.provider.name"
ATTR_MODEL = "gen_ai.request.model"
ATTR_MAX_TOKENS = "gen_ai.request.max_tokens"
ATTR_INPUT_TOKENS = "gen_ai.usage.input_tokens"
ATTR_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
ATTR_TOKEN_TYPE = "gen_ai.token.type"
ATTR_FINISH_REASONS = "gen_ai.response.finish_reasons"
ATTR_ERROR_TYPE = "error.type"
ATTR_REQUEST_ID = "pagemill.request_id"
ATTR_CALL_ID = "pagemill.call_id"
ATTR_ATTEMPT = "pagemill.attempt"
ATTR_CACHED_TOKENS = "pagemill.cached_tokens"
ATTR_REPLICA = "pagemill.replica"
ATTR_ROUTER = "pagemill.router"
ATTR_POLICY = "pagemill.policy"
ATTR_ADMISSION_MODE = "pagemill.admission_mode"
ATTR_RESERVE_REPLY = "pagemill.reserve_reply"
ATTR_NEED_BLOCKS = "pagemill.need_blocks"
ATTR_PREEMPTIONS = "pagemill.preemptions"
ATTR_STAGE = "pagemill.stage"
ATTR_OUTCOME = "pagemill.outcome"
ATTR_CODE = "rpc.grpc.status_code"

OPERATION_CHAT = "chat"
OPERATION_TEXT = "text_completion"
PROVIDER = "pagemill"

# Metrics of both tiers: histograms in seconds or tokens.
REQUEST_DURATION = "gen_ai.server.request.duration"
TIME_TO_FIRST_TOKEN = "gen_ai.server.time_to_first_token"
TIME_PER_OUTPUT_TOKEN = "gen_ai.server.time_per_output_token"
TOKEN_USAGE = "gen_ai.client.token.usage"
INTER_TOKEN_LATENCY = "pagemill.inter_token_latency"
REQUESTS = "pagemill.requests"
QUEUE_TIME = "pagemill.queue.time"

# Metrics of replicas.
REPLICA_WAITING = "pagemill.replica.waiting"
REPLICA_RUNNING = "pagemill.replica.running"
REPLICA_LIVE = "pagemill.replica.live"
KV_CAPACITY_BLOCKS = "pagemill.replica.kv.capacity_blocks"
KV_USED_BLOCKS = "pagemill.replica.kv.used_blocks"
KV_CACHED_BLOCKS = "pagemill.replica.kv.cached_blocks"
KV_COMMITTED_BLOCKS = "pagemill.replica.kv.committed_blocks"
KV_USE = "pagemill.replica.kv.use"
PREFIX_PROMPT_TOKENS = "pagemill.replica.prefix.prompt_tokens"
PREFIX_HIT_TOKENS = "pagemill.replica.prefix.hit_tokens"
GENERATED_TOKENS = "pagemill.replica.generated_tokens"
ENGINE_STEPS = "pagemill.replica.steps"
ENGINE_STEP_TIME = "pagemill.replica.step_time"
PREEMPTIONS = "pagemill.replica.preemptions"
DRAINING = "pagemill.replica.draining"
READY = "pagemill.replica.ready"
WATCHING_ROUTERS = "pagemill.replica.watching_routers"
HEARTBEAT_AGE = "pagemill.replica.heartbeat_age"

# Metrics of routers.
ROUTER_QUEUED = "pagemill.router.queued"
ROUTER_STREAMS = "pagemill.router.streams"
ROUTER_REPLICAS = "pagemill.router.replicas"
ROUTER_ADMISSION_MODE = "pagemill.router.admission_mode"
ROUTER_RESERVE_TIME = "pagemill.router.reserve.time"
ROUTER_RESERVES = "pagemill.router.reserves"
ROUTER_ATTEMPTS = "pagemill.router.attempts"
ROUTER_RETRIES = "pagemill.router.retries"
ROUTER_REDIS_ERRORS = "pagemill.router.redis_errors"

SECONDS_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
SMALL_SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.5)
TOKEN_BUCKETS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0)

BUCKETS: dict[str, tuple[float, ...]] = {
    REQUEST_DURATION: SECONDS_BUCKETS,
    TIME_TO_FIRST_TOKEN: SECONDS_BUCKETS,
    TIME_PER_OUTPUT_TOKEN: SMALL_SECONDS_BUCKETS,
    INTER_TOKEN_LATENCY: SMALL_SECONDS_BUCKETS,
    QUEUE_TIME: SECONDS_BUCKETS,
    ENGINE_STEP_TIME: SMALL_SECONDS_BUCKETS,
    ROUTER_RESERVE_TIME: SMALL_SECONDS_BUCKETS,
    TOKEN_USAGE: TOKEN_BUCKETS,
}
"""Upper bounds of the histograms' buckets."""
