-- Of jobs, and of schedules whose fires read them again.
SELECT sha256 FROM files
UNION ALL
SELECT sha256 FROM schedule_files
