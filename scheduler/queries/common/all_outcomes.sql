SELECT job, outcome FROM attempts WHERE outcome IS NOT NULL
