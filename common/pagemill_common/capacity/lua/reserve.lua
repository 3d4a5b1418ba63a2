-- Routers ask for room for up to 32 requests at once; each gets a short reservation on one replica, or the reason why not.
-- KEYS: for each replica its record and its pending, then one reservation key for each member.
-- ARGV: 1 JSON {replicas: [key], members: [{id, c: [[replica index, cost, need]], priority, ceiling (permille), band, hold}],
--       not_after, ttl, max_ttl, stale, reap, hold_ttl}; times in milliseconds.
-- Returns JSON {now, figures: [one for each replica], results: [one for each member]}.
local now = now_ms()
local ask = cjson.decode(ARGV[1])
local replicas = {}

local COUNTS = { 'capacity', 'used', 'committed', 'waiting', 'running', 'block_size' }

-- Figures from `counts` and `throughput` of a record, and whether all can be read; zeros where one cannot.
local function read_figures(key, counts, throughput)
  local figures, zeros = { replica = key, throughput = decimal(throughput, MAX_COUNT) }, { replica = key, throughput = 0 }
  local readable = figures.throughput ~= nil
  for i, name in ipairs(COUNTS) do
    figures[name], zeros[name] = whole(counts[i], MAX_COUNT), 0
    readable = readable and figures[name] ~= nil
  end
  return readable and figures or zeros, readable
end

local function standing_of(at, draining)
  if not at or at > now or now - at > ask.stale then
    return 'stale'
  end
  if draining == '1' then
    return 'draining'
  end
  return 'ready'
end

for i, key in ipairs(ask.replicas) do
  local record, pending = KEYS[2 * i - 1], KEYS[2 * i]
  local told = redis.call('HMGET', record, 'at', 'draining', 'throughput', 'hold')
  local figures, readable = read_figures(key, redis.call('HMGET', record, unpack(COUNTS)), told[3])
  local at = whole(told[1], MAX_TIME)
  figures.standing = told[1] and standing_of(readable and at, told[2]) or 'unknown'
  figures.age = at and now - at or -1
  figures.pending = pending_blocks(pending, now, ask.max_ttl, ask.reap)
  local hold = take_hold(record, told[4], now, ask.max_ttl)
  replicas[i] = { record = record, pending_key = pending, hold = hold, figures = figures }
end

local function held_back(replica, member)
  local hold = replica.hold
  if hold and hold.id ~= member.hold and member.priority <= hold.priority then
    return hold.need
  end
  return 0
end

local function below_ceiling(blocks, figures, member)
  return blocks * 1000 <= figures.capacity * member.ceiling
end

-- Among the replicas with room whose cost is within the band of the cheapest of them, the emptiest.
local function choose(member)
  local fitting, cheapest = {}, nil
  for _, candidate in ipairs(member.c) do
    local replica = replicas[candidate[1]]
    local figures = replica.figures
    local blocks = figures.committed + figures.pending + candidate[3]
    if figures.standing == 'ready' and below_ceiling(blocks + held_back(replica, member), figures, member) then
      fitting[#fitting + 1] = { replica = replica, cost = candidate[2], need = candidate[3], load = blocks / figures.capacity }
      if not cheapest or candidate[2] < cheapest then
        cheapest = candidate[2]
      end
    end
  end
  local best = nil
  for _, fit in ipairs(fitting) do
    if fit.cost <= cheapest + member.band and (not best or fit.load < best.load) then
      best = fit
    end
  end
  return best
end

local function reason_for(member)
  local ready, possible, silent = false, false, false
  for _, candidate in ipairs(member.c) do
    local figures = replicas[candidate[1]].figures
    if figures.standing == 'ready' then
      ready = true
      possible = possible or below_ceiling(candidate[3], figures, member)
    elseif figures.standing ~= 'draining' then
      silent = true
    end
  end
  if ready then
    return possible and 'full' or 'too_large'
  end
  return silent and 'stale' or 'draining'
end

local function write_hold(replica, need, member)
  replica.hold = { need = need, priority = member.priority, id = member.hold }
  local text = string.format('%.0f %.0f %.0f %s', now + ask.hold_ttl, need, member.priority, member.hold)
  redis.call('HSET', replica.record, 'hold', text)
  return replica.figures.replica
end

-- One replica keeps what frees up there for a request that has waited long: the one that does so already, else the emptiest
-- that could ever take it and does so for nobody of equal or higher priority.
local function place_hold(member)
  local best, best_load, best_need = nil, nil, nil
  for _, candidate in ipairs(member.c) do
    local replica, need = replicas[candidate[1]], candidate[3]
    local figures = replica.figures
    if figures.standing == 'ready' and below_ceiling(need, figures, member) then
      if replica.hold and replica.hold.id == member.hold then
        return write_hold(replica, need, member)
      end
      local load = (figures.committed + figures.pending) / figures.capacity
      if (not replica.hold or replica.hold.priority < member.priority) and (not best or load < best_load) then
        best, best_load, best_need = replica, load, need
      end
    end
  end
  return best and write_hold(best, best_need, member) or nil
end

local function drop_hold(member)
  for _, candidate in ipairs(member.c) do
    local replica = replicas[candidate[1]]
    if replica.hold and replica.hold.id == member.hold then
      replica.hold = nil
      redis.call('HDEL', replica.record, 'hold')
    end
  end
end

local function grant(member, fit, reservation_key)
  local figures, expires = fit.replica.figures, now + ask.ttl
  redis.call('SET', reservation_key, string.format('%.0f %.0f %s', expires, fit.need, figures.replica), 'PX', ask.ttl)
  redis.call('HSET', fit.replica.pending_key, member.id, entry_of(expires, fit.need))
  redis.call('PEXPIRE', fit.replica.pending_key, 2 * ask.max_ttl)
  figures.pending = figures.pending + fit.need
  if member.hold ~= '' then
    drop_hold(member)
  end
  return { replica = figures.replica, need = fit.need, expires = expires }
end

-- What an id already stands for, so that the same call twice is the same as once.
local function answered(reservation_key)
  local value = redis.call('GET', reservation_key)
  if not value then
    return nil
  end
  if value == TOMBSTONE then
    return { refused = 'seen' }
  end
  local expires, need, replica = string.match(value, '^(%d+) (%d+) (.+)$')
  expires, need = whole(expires, MAX_TIME), whole(need, MAX_COUNT)
  if not (expires and need and is_live(expires, now, ask.max_ttl)) then
    return nil
  end
  return { replica = replica, need = need, expires = expires, again = true }
end

local function decide(member, reservation_key)
  local result = answered(reservation_key)
  if result then
    return result
  end
  if is_late(ask.not_after, now, ask.max_ttl) then
    return { refused = 'late' }
  end
  local fit = choose(member)
  if fit then
    return grant(member, fit, reservation_key)
  end
  return { refused = reason_for(member), hold = member.hold ~= '' and place_hold(member) or nil }
end

local results, figures = {}, {}
for i, member in ipairs(ask.members) do
  results[i] = decide(member, KEYS[2 * #ask.replicas + i])
end
for i, replica in ipairs(replicas) do
  figures[i] = replica.figures
  figures[i].held = replica.hold and replica.hold.need or 0
end
return cjson.encode({ now = now, figures = figures, results = results })
