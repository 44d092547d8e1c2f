SELECT document, source_name FROM schedules WHERE schedule = $1
