-- A replica says what it has, and which reservations it has seen.
-- KEYS: 1 facts of the pool, 2 roster, 3 record, 4 pending; then one reservation key for each seen id.
-- ARGV: 1 the head as JSON {replica, seq, seen, block_size, model_id, not_after, record_ttl, tombstone_ttl, max_ttl, reap},
--       then field and value pairs of the record.
-- Returns JSON {status, now, ...}.
local now = now_ms()
local head = cjson.decode(ARGV[1])

local facts = redis.call('HMGET', KEYS[1], 'block_size', 'model_id')
if facts[1] and tonumber(facts[1]) ~= head.block_size then
  return cjson.encode({ status = 'refused', now = now, field = 'block_size', pool = facts[1] })
end
if facts[2] and facts[2] ~= head.model_id then
  return cjson.encode({ status = 'refused', now = now, field = 'model_id', pool = facts[2] })
end

local record = redis.call('HMGET', KEYS[3], 'seq', 'since', 'hold')
local stored = whole(record[1], MAX_COUNT) or 0
if head.seq <= stored then
  return cjson.encode({ status = 'old', now = now, seq = stored })
end
if is_late(head.not_after, now, head.max_ttl) then
  return cjson.encode({ status = 'late', now = now })
end

redis.call('HSET', KEYS[1], 'block_size', head.block_size, 'model_id', head.model_id)
redis.call('PEXPIRE', KEYS[1], head.record_ttl)

-- A time beyond this one comes from a clock that was set back; who lives adds itself again.
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - head.record_ttl)
redis.call('ZREMRANGEBYSCORE', KEYS[2], '(' .. now, '+inf')
redis.call('ZADD', KEYS[2], now, head.replica)
redis.call('PEXPIRE', KEYS[2], head.record_ttl)

redis.call('HSET', KEYS[3], 'seq', head.seq, 'at', now, unpack(ARGV, 2))
if not whole(record[2], MAX_TIME) then
  redis.call('HSET', KEYS[3], 'since', now)
end
take_hold(KEYS[3], record[3], now, head.max_ttl)
redis.call('PEXPIRE', KEYS[3], head.record_ttl)

for i, id in ipairs(head.seen) do
  redis.call('HDEL', KEYS[4], id)
  redis.call('SET', KEYS[4 + i], TOMBSTONE, 'PX', head.tombstone_ttl)
end
local pending = pending_blocks(KEYS[4], now, head.max_ttl, head.reap)
return cjson.encode({ status = 'ok', now = now, seq = head.seq, pending = pending })
