SELECT path, sha256, size FROM files WHERE job = $1 ORDER BY path
