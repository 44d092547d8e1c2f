UPDATE meta SET commit_seq = $1 WHERE epoch = $2 AND commit_seq = $1 - 1
