SELECT job, group_index, sample, refill, step, attempt, checkpoint FROM checkpoints
