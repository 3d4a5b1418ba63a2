-- A promise ends at its expiry, and counts for nothing when it claims to live longer than any promise may:
-- then the server's clock was set back, by a failover for example.
local function is_live(expiry, now, max_ttl)
  return expiry > now and expiry <= now + max_ttl
end

-- A clock reading to act by ends the same way.
local function is_late(not_after, now, max_ttl)
  return not_after > 0 and not is_live(not_after + 1, now, max_ttl)
end

-- Blocks promised by live entries of one replica, summed afresh at every call; nothing is ever counted up or down.
-- Entries are id -> "<expiry ms> <need>". At most `reap` dead ones are removed at a time.
local function pending_blocks(key, now, max_ttl, reap)
  local entries = redis.call('HGETALL', key)
  local sum, dead = 0, {}
  for i = 1, #entries, 2 do
    local value = entries[i + 1]
    local space = string.find(value, ' ', 1, true)
    if is_live(tonumber(string.sub(value, 1, space - 1)), now, max_ttl) then
      sum = sum + tonumber(string.sub(value, space + 1))
    elseif #dead < reap then
      dead[#dead + 1] = entries[i]
    end
  end
  if #dead > 0 then
    redis.call('HDEL', key, unpack(dead))
  end
  return sum
end

-- What a reservation id stands for once its replica has seen it, or its router has given it up.
local TOMBSTONE = 'seen'
