UPDATE meta SET epoch = epoch + 1
