SELECT max(version) FROM _sqlx_migrations
