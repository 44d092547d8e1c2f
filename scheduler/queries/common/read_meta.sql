SELECT yard_id, epoch, commit_seq FROM meta
