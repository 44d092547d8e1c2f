SELECT reference, pinned FROM images WHERE job = $1
