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

local function is_entry_live(entry, now, max_ttl)
  return is_live(tonumber(string.sub(entry, 1, 13)), now, max_ttl)
end

-- Removes dead entries, at most `limit`.
local function reap_pending(key, now, max_ttl, limit)
  local entries, dead = redis.call('HGETALL', key), {}
  for i = 1, #entries, 2 do
    if #dead < limit and not is_entry_live(entries[i + 1], now, max_ttl) then
      dead[#dead + 1] = entries[i]
    end
  end
  redis.call('HDEL', key, unpack(dead))
end

-- Blocks promised by live entries of one replica, summed afresh at every call; nothing is ever counted up or down.
local function pending_blocks(key, now, max_ttl, reap_limit)
  local sum, any_dead = 0, false
  for _, entry in ipairs(redis.call('HVALS', key)) do
    if is_entry_live(entry, now, max_ttl) then
      sum = sum + tonumber(string.sub(entry, 15))
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
