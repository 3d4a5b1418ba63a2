-- A router gives a reservation up that it has sent to no replica.
-- KEYS: 1 reservation, then the pending keys where it may stand. ARGV: 1 id, 2 how long the id stays spent, milliseconds.
-- Returns how many entries were removed. A reserve that arrives after its own release finds the id spent.
local removed = 0
for i = 2, #KEYS do
  removed = removed + redis.call('HDEL', KEYS[i], ARGV[1])
end
redis.call('SET', KEYS[1], TOMBSTONE, 'PX', ARGV[2])
return removed
