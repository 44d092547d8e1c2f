INSERT INTO groups (job, group_index, admitted_at)
SELECT value ->> 0, value ->> 1, $2 FROM json_each($1)
