-- Each admitted group with the members its job asks for.
WITH RECURSIVE members (job, group_index, sample, group_size) AS (
    SELECT jobs.job, admitted.value ->> 1, 0, jobs.group_size
    FROM json_each($1) AS admitted
    JOIN jobs ON jobs.job = admitted.value ->> 0
    UNION ALL
    SELECT job, group_index, sample + 1, group_size FROM members WHERE sample + 1 < group_size
)
INSERT INTO rollouts (job, group_index, sample, refill, created_at)
SELECT job, group_index, sample, 0, $2 FROM members
