-- Per asked (rollout, step): the outcome of its last ended attempt.
SELECT asked.key AS asked, attempts.outcome AS outcome
FROM json_each($1) AS asked
JOIN attempts ON attempts.job = asked.value ->> 0 AND attempts.group_index = asked.value ->> 1
    AND attempts.sample = asked.value ->> 2 AND attempts.refill = asked.value ->> 3
    AND attempts.step = asked.value ->> 4
WHERE attempts.outcome IS NOT NULL
ORDER BY asked.key, attempts.attempt
