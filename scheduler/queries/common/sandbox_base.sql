SELECT base FROM sandboxes WHERE job = $1 AND base IS NOT NULL
