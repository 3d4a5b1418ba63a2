-- What a field of the protocol's messages can hold, and the last time that has 13 digits. Text that is no number within
-- its bound was not written by these scripts: an entry counts as dead then, and a record as stale.
local MAX_COUNT, MAX_TIME = 4294967295, 9999999999999

local function decimal(text, most, form)
  local number = tonumber(string.match(text or '', form or '^%d+%.?%d*$'))
  return number and number <= most and number or nil
end

local function whole(text, most)
  return decimal(text, most, '^%d+$')
end

-- A promise ends at its expiry, and counts for nothing when it claims to live longer than any promise may:
-- then the server's clock was set back, by a failover for example.
local function is_live(expiry, now, max_ttl)
  return expiry > now and expiry <= now + max_ttl
end

-- A clock reading to act by ends the same way.
local function is_late(not_after, now, max_ttl)
  return not_after > 0 and not is_live(not_after + 1, now, max_ttl)
end

-- Entries of a replica's pending are id -> "<expiry ms, 13 digits> <need>": the fixed width spares a search in each.
local function entry_of(expiry, need)
  return string.format('%013.0f %.0f', expiry, need)
end

-- Blocks of a live entry; nil for a dead one.
local function live_need(entry, now, max_ttl)
  local expiry = whole(string.sub(entry, 1, 13), MAX_TIME)
  return expiry and is_live(expiry, now, max_ttl) and whole(string.sub(entry, 15), MAX_COUNT) or nil
end

-- A hold is "<expiry ms> <need> <priority> <id>"; nil for a dead one.
local function live_hold(text, now, max_ttl)
  local expiry, need, priority, id = string.match(text or '', '^(%d+) (%d+) (%-?%d+) (.+)$')
  expiry, need = whole(expiry, MAX_TIME), whole(need, MAX_COUNT)
  if not (expiry and need and is_live(expiry, now, max_ttl)) then
    return nil
  end
  return { need = need, priority = tonumber(priority), id = id }
end

-- The live hold of a record, whose field is `text`; a dead one is removed.
local function take_hold(record, text, now, max_ttl)
  local hold = live_hold(text, now, max_ttl)
  if text and not hold then
    redis.call('HDEL', record, 'hold')
  end
  return hold
end

-- Removes dead entries, at most `limit`.
local function reap_pending(key, now, max_ttl, limit)
  local entries, dead = redis.call('HGETALL', key), {}
  for i = 1, #entries, 2 do
    if #dead < limit and not live_need(entries[i + 1], now, max_ttl) then
      dead[#dead + 1] = entries[i]
    end
  end
  redis.call('HDEL', key, unpack(dead))
end

-- Blocks promised by live entries of one replica, summed afresh at every call; nothing is ever counted up or down.
local function pending_blocks(key, now, max_ttl, reap_limit)
  local sum, any_dead = 0, false
  for _, entry in ipairs(redis.call('HVALS', key)) do
    local need = live_need(entry, now, max_ttl)
    if need then
      sum = sum + need
    else
      any_dead = true
    end
  end
  if any_dead then
    reap_pending(key, now, max_ttl, reap_limit)
  end
  return sum
end

-- What a reservation id stands for once its replica has seen it, or its router has given it up.
local TOMBSTONE = 'seen'
