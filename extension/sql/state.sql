-- What SHOW gives is what was told at the end of the last transaction.
SHOW hawser.state;
SET work_mem = '5MB';
SHOW hawser.state;
BEGIN;
SET work_mem = '6MB';
SHOW hawser.state;
ROLLBACK;
SHOW hawser.state;
RESET work_mem;
BEGIN;
CREATE TEMP TABLE t (i int) ON COMMIT DROP;
COMMIT;
SHOW hawser.state;
CREATE TEMP TABLE t (i int);
SHOW hawser.state;
DROP TABLE t;
SELECT pg_advisory_lock(1);
DECLARE c CURSOR WITH HOLD FOR SELECT 1;
PREPARE p AS SELECT 1;
LISTEN channel;
SHOW hawser.state;
SELECT pg_advisory_unlock(1);
CLOSE c;
DEALLOCATE p;
UNLISTEN *;
SHOW hawser.state;
-- In a function, which the wire does not show.
DO $$ BEGIN PERFORM set_config('my.name', 'a value', false); END $$;
SHOW hawser.state;
SELECT hawser.session_state();
DISCARD ALL;
SHOW hawser.state;
-- A new session has none of it.
\c
SHOW hawser.state;
-- One that did not ask is told nothing.
\c "options='-c session_preload_libraries=hawser'"
SET work_mem = '5MB';
SHOW hawser.state;
