SELECT node, incarnation, lease, version FROM nodes ORDER BY node
