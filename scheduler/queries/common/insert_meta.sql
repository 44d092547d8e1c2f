INSERT INTO meta (only_row, yard_id, epoch, commit_seq) VALUES (1, $1, 0, 0) ON CONFLICT DO NOTHING
