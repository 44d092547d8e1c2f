SELECT request_hash, reply FROM retry_requests WHERE request_key = $1
