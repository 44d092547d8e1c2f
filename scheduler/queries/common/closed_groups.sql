-- Closed, not sealed, behind seq $2, in the order they are written.
SELECT group_index, closed_seq, closed_as, closed_valid, replaces_seq, admitted_at FROM groups
WHERE job = $1 AND closed_seq > $2 AND sealed_at IS NULL
ORDER BY closed_seq
LIMIT $3
