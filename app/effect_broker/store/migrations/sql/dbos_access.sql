-- Rights in the engine's schema, granted again at every migration, since the schema may have been
-- dropped and made anew. The API has none there: a row in these tables starts a run.
GRANT USAGE ON SCHEMA dbos TO effect_broker_worker, effect_broker_owner;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA dbos TO effect_broker_worker;
REVOKE INSERT, UPDATE, DELETE ON dbos.dbos_migrations FROM effect_broker_worker;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA dbos TO effect_broker_worker;
-- Functions are executable by everybody unless that is taken away.
REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA dbos FROM PUBLIC;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA dbos TO effect_broker_worker, effect_broker_owner;
-- What `effect_broker.enqueue_run` needs as the owner: dbos.enqueue_workflow runs with his rights.
GRANT SELECT, INSERT, UPDATE ON dbos.workflow_status TO effect_broker_owner;
GRANT SELECT, INSERT ON dbos.workflow_input TO effect_broker_owner;
-- Finished runs of settled effects are removed by pruning.
GRANT USAGE ON SCHEMA dbos TO effect_broker_prune;
GRANT SELECT, DELETE ON dbos.workflow_status, dbos.workflow_input, dbos.workflow_output,
    dbos.operation_outputs TO effect_broker_prune;
-- The planner has to notice a backlog while it is there: one run among thousands that are queued is
-- found by other indexes than one of few (see 0025_flat_plans.sql). The default waits for a tenth of
-- the table.
ALTER TABLE dbos.workflow_status
    SET (autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 2000);
