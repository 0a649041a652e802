/* hawser 0.1.0. Everything is named with its schema: no search_path is trusted. */

\echo Use "CREATE EXTENSION hawser" to load this file. \quit

-- Fails where there is such a schema: what others put there must not become part of this.
CREATE SCHEMA hawser;
GRANT USAGE ON SCHEMA hawser TO PUBLIC;

-- All functions are for all roles, and look themselves at who calls them. It is said of each, since ALTER DEFAULT
-- PRIVILEGES may have it otherwise; who may not call the server's function may not call what is in its place.

CREATE FUNCTION hawser.mptcp_backends(
    OUT pid pg_catalog.int4,
    OUT mptcp pg_catalog.bool,
    OUT fallback pg_catalog.bool,
    OUT subflows pg_catalog.int4,
    OUT local_token pg_catalog.int8,
    OUT remote_token pg_catalog.int8,
    OUT bytes_sent pg_catalog.int8,
    OUT bytes_received pg_catalog.int8,
    OUT bytes_retransmitted pg_catalog.int8,
    OUT subflow_rates pg_catalog.int8[],
    OUT pooler pg_catalog.text)
RETURNS SETOF pg_catalog.record
LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'hawser_mptcp_backends';
GRANT EXECUTE ON FUNCTION hawser.mptcp_backends() TO PUBLIC;
COMMENT ON FUNCTION hawser.mptcp_backends() IS
    'MPTCP of the connections of backends, and of clients of poolers on this host, that the caller may see';

CREATE VIEW hawser.pg_stat_mptcp AS
    SELECT m.pid, m.mptcp, m.fallback, m.subflows, m.local_token, m.remote_token,
           m.bytes_sent, m.bytes_received, m.bytes_retransmitted, m.subflow_rates, m.pooler
    FROM hawser.mptcp_backends() AS m;
GRANT SELECT ON hawser.pg_stat_mptcp TO PUBLIC;
COMMENT ON VIEW hawser.pg_stat_mptcp IS
    'one row for each backend and walsender, as in pg_stat_ssl, and for each client of a pooler on this host';

-- What SHOW hawser.state says, or NULL where the session did not ask for it.
CREATE FUNCTION hawser.session_state() RETURNS pg_catalog.text
LANGUAGE sql STABLE PARALLEL RESTRICTED
SET search_path = pg_catalog, pg_temp
AS $$
    SELECT nullif(current_setting('hawser.state', true), '')
$$;
GRANT EXECUTE ON FUNCTION hawser.session_state() TO PUBLIC;
COMMENT ON FUNCTION hawser.session_state() IS
    'what this session had at the end of its last transaction, as it was told to its client';

-- For poolers, as a FunctionCall message: extension/README.md, "The hand-over". A client that calls it is disconnected.
CREATE FUNCTION hawser.hand_over(message pg_catalog.bytea) RETURNS pg_catalog.void
LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'hawser_hand_over';
GRANT EXECUTE ON FUNCTION hawser.hand_over(pg_catalog.bytea) TO PUBLIC;
COMMENT ON FUNCTION hawser.hand_over(pg_catalog.bytea) IS
    'called by poolers alone: this session serves another client from now on';

-- For poolers, on server connections of their own. It serves that pooler's clients as its own user.
CREATE FUNCTION hawser.serve_inside(control_socket pg_catalog.text, token pg_catalog.text) RETURNS pg_catalog.void
LANGUAGE c STRICT VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'hawser_serve_inside';
GRANT EXECUTE ON FUNCTION hawser.serve_inside(pg_catalog.text, pg_catalog.text) TO PUBLIC;
COMMENT ON FUNCTION hawser.serve_inside(pg_catalog.text, pg_catalog.text) IS
    'called by poolers alone: this session serves clients of a pooler on this host from now on';

-- What pg_cancel_backend() and pg_terminate_backend() become when a statement is planned.
CREATE FUNCTION hawser.cancel_backend(pid pg_catalog.int4) RETURNS pg_catalog.bool
LANGUAGE c STRICT VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'hawser_cancel_backend';
GRANT EXECUTE ON FUNCTION hawser.cancel_backend(pg_catalog.int4) TO PUBLIC;
COMMENT ON FUNCTION hawser.cancel_backend(pg_catalog.int4) IS
    'pg_cancel_backend(), also with the process id that a pooler gave its client';

CREATE FUNCTION hawser.terminate_backend(pid pg_catalog.int4, timeout pg_catalog.int8 DEFAULT 0) RETURNS pg_catalog.bool
LANGUAGE c STRICT VOLATILE PARALLEL SAFE
AS 'MODULE_PATHNAME', 'hawser_terminate_backend';
GRANT EXECUTE ON FUNCTION hawser.terminate_backend(pg_catalog.int4, pg_catalog.int8) TO PUBLIC;
COMMENT ON FUNCTION hawser.terminate_backend(pg_catalog.int4, pg_catalog.int8) IS
    'pg_terminate_backend(), also with the process id that a pooler gave its client';

CREATE FUNCTION hawser.clients(
    OUT pid pg_catalog.int4,
    OUT client_addr pg_catalog.inet,
    OUT client_port pg_catalog.int4,
    OUT datname pg_catalog.text,
    OUT usename pg_catalog.text,
    OUT application_name pg_catalog.text,
    OUT state pg_catalog.text,
    OUT backend pg_catalog.int4,
    OUT pooler pg_catalog.text,
    OUT local pg_catalog.bool)
RETURNS SETOF pg_catalog.record
LANGUAGE c STRICT VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'hawser_clients';
GRANT EXECUTE ON FUNCTION hawser.clients() TO PUBLIC;
COMMENT ON FUNCTION hawser.clients() IS
    'clients of poolers that the caller may see';

CREATE VIEW hawser.hawser_sessions AS
    SELECT c.pid, c.client_addr, c.client_port, c.datname, c.usename, c.application_name,
           c.state, c.backend, c.pooler, c.local
    FROM hawser.clients() AS c;
GRANT SELECT ON hawser.hawser_sessions TO PUBLIC;
COMMENT ON VIEW hawser.hawser_sessions IS
    'one row for each client of a pooler on this host, and for those of others that a backend serves';

-- What the server's functions of these names become likewise: a client is known by its own process id in all of them.
-- Made from the server's catalog, since versions of the server have other columns.
SET LOCAL search_path = pg_catalog, pg_temp;
DO $script$
DECLARE
    function pg_proc;
BEGIN
    FOR function IN
        SELECT * FROM pg_proc WHERE pronamespace = 'pg_catalog'::regnamespace AND proname IN (
            'pg_show_all_settings', 'pg_backend_pid', 'pg_stat_get_activity', 'pg_stat_get_backend_pid', 'pg_stat_get_progress_info',
            'pg_get_replication_slots', 'pg_lock_status', 'pg_blocking_pids', 'pg_safe_snapshot_blocking_pids',
            'pg_isolation_test_session_is_blocked', 'pg_log_backend_memory_contexts',
            'pg_stat_get_backend_io', 'pg_stat_get_backend_wal', 'pg_stat_reset_backend_stats')
    LOOP
        EXECUTE format('CREATE FUNCTION hawser.%I(%s) RETURNS %s LANGUAGE c %s %s PARALLEL %s COST %s %s AS %L, %L',
            function.proname, pg_get_function_arguments(function.oid), pg_get_function_result(function.oid),
            CASE function.provolatile WHEN 'i' THEN 'IMMUTABLE' WHEN 's' THEN 'STABLE' ELSE 'VOLATILE' END,
            CASE WHEN function.proisstrict THEN 'STRICT' ELSE '' END,
            CASE WHEN function.proname = 'pg_show_all_settings' THEN 'RESTRICTED' ELSE -- a worker is no client's
                CASE function.proparallel WHEN 's' THEN 'SAFE' WHEN 'r' THEN 'RESTRICTED' ELSE 'UNSAFE' END END,
            function.procost, CASE WHEN function.proretset THEN format('ROWS %s', function.prorows) ELSE '' END,
            'MODULE_PATHNAME', 'hawser_' || function.proname);
        EXECUTE format('GRANT EXECUTE ON FUNCTION hawser.%I(%s) TO PUBLIC', function.proname,
            pg_get_function_identity_arguments(function.oid));
        EXECUTE format('COMMENT ON FUNCTION hawser.%I(%s) IS %L', function.proname,
            pg_get_function_identity_arguments(function.oid),
            function.proname || CASE WHEN function.proname = 'pg_show_all_settings'
                THEN '(), with what the client of a pooler began with' ELSE '(), with the process ids that poolers gave their clients' END);
    END LOOP;
END $script$;
