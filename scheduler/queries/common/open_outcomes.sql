-- Of sessions that may be parked: in groups that are not sealed, the attempts of a step in their order.
SELECT a.job, a.group_index, a.sample, a.refill, a.step, a.outcome
FROM attempts AS a
JOIN jobs AS j ON j.job = a.job
JOIN groups AS g ON g.job = a.job AND g.group_index = a.group_index
WHERE a.outcome IS NOT NULL AND j.finished_at IS NULL AND g.sealed_at IS NULL
ORDER BY a.job, a.group_index, a.sample, a.refill, a.step, a.attempt
