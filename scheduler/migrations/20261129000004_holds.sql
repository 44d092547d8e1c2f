-- Why a held job is held, and why rows of closed groups of a job cannot be written. Both were words
-- in `reason`, which is the job's own from here on.
ALTER TABLE jobs ADD COLUMN hold TEXT;
ALTER TABLE jobs ADD COLUMN unrecorded TEXT;

UPDATE jobs SET hold = CASE
    WHEN reason LIKE 'rows are missing: %' THEN 'unrecorded'
    WHEN reason LIKE 'too_big_for_yard:%' OR reason LIKE 'refused_by_every_node:%' THEN 'no_node'
    ELSE 'breaker'
END
WHERE state = 'held';

UPDATE jobs SET unrecorded = reason, reason = '' WHERE hold = 'unrecorded';
UPDATE jobs SET unrecorded = substr(reason, instr(reason, '; rows are missing: ') + 2),
    reason = substr(reason, 1, instr(reason, '; rows are missing: ') - 1)
WHERE hold IN ('no_node', 'breaker') AND instr(reason, '; rows are missing: ') > 0;
UPDATE jobs SET unrecorded = replace(
    substr(unrecorded, length('rows are missing: ') + 1), '; it is tried again at the next start', ''
)
WHERE unrecorded IS NOT NULL;
