-- Nothing of the extension depends on the search_path, of whoever creates it or uses it.
CREATE SCHEMA trap;
CREATE FUNCTION trap.nullif(text, text) RETURNS text LANGUAGE sql AS $$ SELECT 'trapped'::text $$;
CREATE FUNCTION trap.current_setting(text, bool) RETURNS text LANGUAGE sql AS $$ SELECT 'trapped'::text $$;
CREATE FUNCTION trap.mptcp_backends() RETURNS int LANGUAGE sql AS $$ SELECT 666 $$;
CREATE TYPE trap.int8 AS (trapped bool);
SET search_path = trap, pg_catalog;
CREATE EXTENSION hawser;
SELECT hawser.session_state();
SELECT pg_catalog.count(*) > 0 AS rows FROM hawser.pg_stat_mptcp;
SELECT attname, atttypid::regtype FROM pg_attribute
WHERE attrelid = 'hawser.pg_stat_mptcp'::regclass AND attnum > 0 ORDER BY attnum;
RESET search_path;
-- A schema that is there already is not taken over.
\set SHOW_CONTEXT never
DROP EXTENSION hawser;
CREATE SCHEMA hawser;
CREATE EXTENSION hawser;
DROP SCHEMA hawser;
DROP SCHEMA trap CASCADE;
-- Its script is in PL/pgSQL.
DROP EXTENSION plpgsql;
CREATE EXTENSION hawser;
CREATE EXTENSION hawser CASCADE;
DROP EXTENSION hawser;
-- Everybody may call its functions, whatever the default privileges are.
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
CREATE EXTENSION hawser;
ALTER DEFAULT PRIVILEGES GRANT EXECUTE ON FUNCTIONS TO PUBLIC;
CREATE ROLE regress_hawser_nobody;
SELECT oid::regprocedure FROM pg_proc
WHERE pronamespace = 'hawser'::regnamespace AND NOT has_function_privilege('regress_hawser_nobody', oid, 'EXECUTE');
SET ROLE regress_hawser_nobody;
SELECT pg_backend_pid() > 0 AS called;
SELECT count(*) > 0 AS called FROM pg_stat_activity;
RESET ROLE;
DROP ROLE regress_hawser_nobody;
-- Nobody sets what is told to the pooler.
SET hawser.state = '1';
SET hawser.report = off;
ALTER ROLE CURRENT_USER SET hawser.state = '1';
