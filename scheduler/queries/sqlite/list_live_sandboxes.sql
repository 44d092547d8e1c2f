-- Those that have not ended, newest first, behind ($1, $2), with all the labels of $3.
SELECT
    j.job, j.state, j.reason, j.created_at, j.finished_at, s.image, s.labels, s.start_timeout, s.timeout,
    s.idle_timeout, a.node, a.started_at, r.failure_domain, r.failure_code, r.failure_message,
    CASE WHEN j.finished_at IS NOT NULL THEN (
        SELECT last.outcome FROM attempts AS last
        WHERE last.job = j.job AND last.group_index = 0 AND last.sample = 0 AND last.refill = 0 AND last.step = 0
        ORDER BY last.attempt DESC LIMIT 1
    ) END AS outcome
FROM jobs AS j
JOIN sandboxes AS s ON s.job = j.job
LEFT JOIN attempts AS a
    ON a.job = j.job AND a.group_index = 0 AND a.sample = 0 AND a.refill = 0 AND a.step = 0 AND a.attempt = 0
LEFT JOIN rollouts AS r ON r.job = j.job AND r.group_index = 0 AND r.sample = 0 AND r.refill = 0
WHERE j.kind = 'sandbox' AND j.finished_at IS NULL AND (j.created_at, j.job) < ($1, $2)
  AND NOT EXISTS (
    SELECT 1 FROM json_each($3) AS wanted
    WHERE NOT EXISTS (
        SELECT 1 FROM json_each(s.labels) AS label WHERE label.key = wanted.key AND label.value = wanted.value
    )
  )
ORDER BY j.created_at DESC, j.job DESC
LIMIT $4
