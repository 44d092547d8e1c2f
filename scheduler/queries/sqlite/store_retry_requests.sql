INSERT INTO retry_requests (request_key, request_hash, reply, asked_at)
SELECT value ->> 0, value ->> 1, unhex(value ->> 2), $2 FROM json_each($1)
