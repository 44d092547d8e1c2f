DELETE FROM schedule_files WHERE schedule IN (SELECT value ->> 0 FROM json_each($1))
