INSERT INTO shards (job, table_name, shard, shard_rows, seq_min, seq_max, sha256, epoch, sealed_at)
SELECT
    value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6, $3, $2
FROM json_each($1)
WHERE true
ON CONFLICT (job, table_name, shard) DO NOTHING
