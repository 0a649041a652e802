-- What SQL can reach of hand-overs; the protocol is tested by handover_test.py.
CREATE ROLE regress_hawser_nobody;
-- Ids of the server's own processes are the server's affair, with its rights and its words.
SELECT pg_cancel_backend(NULL);
SELECT pg_terminate_backend(pg_backend_pid(), -1);
SET client_min_messages = error;
SELECT pg_cancel_backend(2147483647), pg_terminate_backend(2147483647);
SELECT pg_terminate_backend(pid => 2147483647, timeout => 10);
PREPARE by_plan(int) AS SELECT pg_cancel_backend($1);
EXECUTE by_plan(2147483647);
DEALLOCATE by_plan;
DO $$ BEGIN ASSERT NOT pg_cancel_backend(2147483647); END $$;
RESET client_min_messages;
-- Calls are replaced only in what is planned; what is stored names the server's function.
CREATE VIEW cancels AS SELECT pg_cancel_backend(2147483647) AS done;
SELECT pg_get_viewdef('cancels'::regclass);
EXPLAIN (VERBOSE, COSTS OFF) SELECT done FROM cancels;
DROP VIEW cancels;
-- Who may not call the server's function may not call it by this way.
REVOKE EXECUTE ON FUNCTION pg_cancel_backend(int) FROM PUBLIC;
SET ROLE regress_hawser_nobody;
SELECT pg_cancel_backend(2147483647);
SELECT hawser.cancel_backend(2147483647);
RESET ROLE;
GRANT EXECUTE ON FUNCTION pg_cancel_backend(int) TO PUBLIC;
-- No session of another loading, and none that has not asked, has a challenge.
SHOW hawser.challenge;
SET hawser.challenge = 'x';
SET hawser.hand_over = on;
-- No pooler on this host: no clients.
SELECT count(*) FROM hawser.hawser_sessions;
SELECT attname, atttypid::regtype FROM pg_attribute
WHERE attrelid = 'hawser.hawser_sessions'::regclass AND attnum > 0 ORDER BY attnum;
DROP ROLE regress_hawser_nobody;
