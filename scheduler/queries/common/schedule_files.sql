SELECT path, sha256, size FROM schedule_files WHERE schedule = $1 ORDER BY path
