-- Milliseconds since the Unix epoch by the server's own clock. The one place where scripts read the time.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
