SELECT step, end_number, code FROM breaker_ends WHERE job = $1 ORDER BY step, end_number
