SELECT count(*) AS expired FROM kept_checkpoints WHERE expires_at <= $1
