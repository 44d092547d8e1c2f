SELECT project, result_key, checkpoint FROM results ORDER BY position
