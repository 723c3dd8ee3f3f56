#!lua flags=no-writes
-- Whether a bucket may have gone back in time since it was loaded (design §9). The epoch survives a
-- restart from an old file and a failover; the server's run id differs after either, and after a
-- failover and back it is the old one again, but then the replication id differs.
--
-- KEYS[1] epoch  KEYS[2] server (written by load.lua)  KEYS[3] loading
--
-- Returns {epoch or "", 1 when the server is in the life that the bucket was loaded in, else 0,
--          the epoch that is being loaded or ""}
local now = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') .. ' '
  .. string.match(redis.call('INFO', 'replication'), 'master_replid:(%x+)')
return {redis.call('GET', KEYS[1]) or '', redis.call('GET', KEYS[2]) == now and 1 or 0,
  redis.call('GET', KEYS[3]) or ''}
