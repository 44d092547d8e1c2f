-- What sandboxes were created from that have not ended.
SELECT s.job, s.base AS checkpoint
FROM sandboxes AS s JOIN jobs AS j ON j.job = s.job
WHERE s.base IS NOT NULL AND j.finished_at IS NULL
