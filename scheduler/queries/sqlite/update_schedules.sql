UPDATE schedules SET
    enabled = new.value ->> 1, cursor_at = new.value ->> 2, last_job = new.value ->> 3,
    last_fire_at = new.value ->> 4, waiting_at = new.value ->> 5, waiting_key = new.value ->> 6,
    fired = new.value ->> 7, skipped = new.value ->> 8, missed = new.value ->> 9, failed = new.value ->> 10,
    problem = new.value ->> 11
FROM json_each($1) AS new
WHERE schedule = new.value ->> 0
